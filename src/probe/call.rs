//! One call of the program, from its arguments to a report or the reason why there is none.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use super::child::{self, Ended, Run};
use super::{Answer, Failure, MAX_ANSWER_BYTES, ProbeOptions, Report};

const PROGRAM: &str = "mrscope-write-probe";
/// The dynamic loader's status where a library is missing.
const NO_LIBRARY: i32 = 127;

/// The program in the folder of the one that runs now.
#[must_use]
pub fn program_beside() -> PathBuf {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join(PROGRAM));
    beside().unwrap_or_else(|| PROGRAM.into())
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum NoReport {
    /// The program is missing, or a library that it is linked with.
    #[error("{0}")]
    NotStarted(String),
    /// It is there, and the system does not start it, or can't watch it.
    #[error("{0}")]
    Refused(String),
    #[error("{}", told(.0))]
    Told(Box<Failure>),
    #[error("it was killed after {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// What it wrote is no answer.
    #[error("{0}, expected one JSON object")]
    Garbage(String),
    /// Even a kill has to wait for a call in the kernel.
    #[error("it hangs in the kernel and can't be killed (a driver may be stuck: see dmesg)")]
    Stuck(Child),
    /// The asker is to end.
    #[error("stopped")]
    Stopped,
}

impl NoReport {
    /// All words for them beside those of [`super::Reason`].
    pub const WORDS: [&str; 4] = ["not_started", "timeout", "garbage", "stuck"];

    /// One word for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotStarted(_) | Self::Refused(_) => "not_started",
            Self::Told(failure) => failure.reason.word(),
            Self::TimedOut(_) => "timeout",
            Self::Garbage(_) => "garbage",
            Self::Stuck(_) => "stuck",
            Self::Stopped => "stopped",
        }
    }
}

/// The call that failed, how, and what helps.
fn told(failure: &Failure) -> String {
    let Failure { verb, detail, remedy, .. } = failure;
    let errno = failure.errno_name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    format!("{verb}{errno}: {detail}; {remedy}")
}

/// Calls the program and waits for its answer. It is killed after `timeout`, and as soon as `stop`
/// can be read; `started` gets its pid. It inherits nothing of the environment, by which libraries
/// could be told to do other things than what is measured.
///
/// # Errors
/// See [`NoReport`].
pub fn call(
    program: &Path,
    options: &ProbeOptions,
    timeout: Duration,
    stop: BorrowedFd<'_>,
    started: impl FnOnce(u32),
) -> Result<Report, NoReport> {
    let mut command = Command::new(program);
    command.args(options.arguments()).env_clear();
    // A signal from a terminal is for the asker, who ends the child by itself.
    command.process_group(0);
    command.env("PATH", OsStr::new("/usr/sbin:/usr/bin:/sbin:/bin"));
    let ran = child::run(&mut command, MAX_ANSWER_BYTES, timeout, stop, started);
    let Run { ended, stuck } = ran.map_err(|error| {
        let why = format!("{}: {error}, expected the write probe", program.display());
        if error.kind() == ErrorKind::NotFound {
            NoReport::NotStarted(why)
        } else {
            NoReport::Refused(why)
        }
    })?;
    if let Some(child) = stuck {
        return Err(NoReport::Stuck(child));
    }
    match ended {
        Ended::Stopped => Err(NoReport::Stopped),
        Ended::TimedOut => Err(NoReport::TimedOut(timeout)),
        Ended::TooLong => Err(NoReport::Garbage(format!("more than {MAX_ANSWER_BYTES} bytes"))),
        Ended::Exited { output, errors, code } => {
            let report = judge(&output, &errors, code)?;
            let (device, port) = (&report.device, report.port);
            if (device, port) != (&options.device, options.port) {
                let other = format!("it tells of {device} port {port}");
                return Err(NoReport::Garbage(other));
            }
            Ok(report)
        }
    }
}

fn judge(output: &[u8], errors: &str, code: Option<i32>) -> Result<Report, NoReport> {
    match Answer::parse(output) {
        Ok(Answer::Ok(report)) => Ok(report),
        Ok(Answer::Error(failure)) => Err(NoReport::Told(Box::new(failure))),
        Err(_) if code == Some(NO_LIBRARY) => {
            let said = errors.lines().next().unwrap_or("a library is missing");
            let why = format!("{said}; install libibverbs1 and ibverbs-providers");
            Err(NoReport::NotStarted(why))
        }
        Err(error) => {
            let how = code.map_or("by a signal".to_owned(), |code| format!("with status {code}"));
            // A usage error, or whatever a library had to say at its end.
            let said = errors.lines().next().map(|line| format!(" ({line})")).unwrap_or_default();
            Err(NoReport::Garbage(format!("{error}; it ended {how}{said}")))
        }
    }
}
