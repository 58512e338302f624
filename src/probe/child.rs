//! One run of a child process: what it wrote, bounded in time and length. Never waits for one that
//! can't be killed: such a one is handed back.

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// What is kept of its errors.
const MOST_ERRORS: usize = 4096;
/// How long the end of a child that was killed is waited for.
const GRACE: Duration = Duration::from_secs(1);

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself; the code is None for one that a signal ended.
    Exited { output: Vec<u8>, errors: String, code: Option<i32> },
    /// It wrote more than it may, and was killed.
    TooLong,
    /// It took longer than it may, and was killed.
    TimedOut,
    /// It was to end, and was killed.
    Stopped,
}

/// A run that is over, or a child that does not die.
#[derive(Debug)]
pub struct Run {
    pub ended: Ended,
    /// It hangs in the kernel, so that even a kill has to wait.
    pub stuck: Option<Child>,
}

/// Starts the child; `started` gets its pid. It is killed after `timeout`, beyond `most` bytes, and
/// as soon as `stop` can be read.
///
/// # Errors
/// It can't be started, or not be watched.
pub fn run(
    command: &mut Command,
    most: usize,
    timeout: Duration,
    stop: BorrowedFd<'_>,
    started: impl FnOnce(u32),
) -> io::Result<Run> {
    let deadline = Instant::now() + timeout;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    started(child.id());
    let watched = watch(&mut child, most, deadline, stop);
    let exited = matches!(watched, Ok((_, true)));
    if !exited {
        // One that has just ended can't be killed, and need not be.
        let _ = child.kill();
    }
    if !exited && !ends_within(&mut child, GRACE)? {
        // Whatever came before: this is what its owner has to know.
        return Ok(Run { ended: Ended::TimedOut, stuck: Some(child) });
    }
    let code = child.wait().ok().and_then(|status| status.code());
    Ok(Run { ended: with_code(watched?.0, code), stuck: None })
}

fn with_code(ended: Ended, status: Option<i32>) -> Ended {
    match ended {
        Ended::Exited { output, errors, .. } => Ended::Exited { output, errors, code: status },
        other => other,
    }
}

/// What comes first: its end, too much output, the deadline, or a stop; and whether it has exited.
fn watch(
    child: &mut Child,
    most: usize,
    deadline: Instant,
    stop: BorrowedFd<'_>,
) -> io::Result<(Ended, bool)> {
    let pid = pidfd_open(pid_of(child)?, PidfdFlags::empty())?;
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let mut exited = false;
    loop {
        let mut fds = vec![PollFd::new(&stop, PollFlags::IN), PollFd::new(&pid, PollFlags::IN)];
        let first = fds.len();
        fds.extend(out.as_ref().map(|out| PollFd::new(out, PollFlags::IN)));
        fds.extend(err.as_ref().map(|err| PollFd::new(err, PollFlags::IN)));
        // What it wrote before its end is there when its end is seen.
        wait(&mut fds, if exited { Instant::now() } else { deadline })?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            return Ok((Ended::Stopped, exited));
        }
        let mut pipes = ready[first..].iter().copied();
        let out_ready = out.is_some() && pipes.next().unwrap_or_default();
        let err_ready = err.is_some() && pipes.next().unwrap_or_default();
        if out_ready && !more(&mut out, &mut output)? {
            out = None;
        }
        if err_ready && !more(&mut err, &mut errors)? {
            err = None;
        }
        errors.truncate(MOST_ERRORS);
        if output.len() > most {
            return Ok((Ended::TooLong, exited));
        }
        let silent = !out_ready && !err_ready;
        if (exited && silent) || (ready[1] && out.is_none() && err.is_none()) {
            let errors = String::from_utf8_lossy(&errors).into_owned();
            return Ok((Ended::Exited { output, errors, code: None }, true));
        }
        exited = ready[1];
        // What it started may write on when it has ended: the deadline holds all the same.
        if Instant::now() >= deadline {
            return Ok((Ended::TimedOut, exited));
        }
    }
}

/// Takes what a pipe has; false at its end.
fn more(pipe: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let Some(pipe) = pipe else { return Ok(false) };
    let length = pipe.read(&mut buffer)?;
    into.extend_from_slice(&buffer[..length]);
    Ok(length > 0)
}

fn ends_within(child: &mut Child, grace: Duration) -> io::Result<bool> {
    match pidfd_open(pid_of(child)?, PidfdFlags::empty()) {
        Ok(pid) => {
            let mut fds = [PollFd::new(&pid, PollFlags::IN)];
            Ok(wait(&mut fds, Instant::now() + grace)? > 0)
        }
        // Without a file to wait on: by now, or at the next look.
        Err(_) => Ok(child.try_wait()?.is_some()),
    }
}

/// How many are ready by then. A signal that some thread handles ends no wait.
///
/// # Errors
/// The system can't wait for them.
pub fn wait(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<usize> {
    loop {
        match poll(fds, Some(&timespec(left(deadline)))) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready?),
        }
    }
}

fn pid_of(child: &Child) -> io::Result<Pid> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Rounded up, so that a wait for a deadline does not end just before it.
fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// Guard against a hang; nothing is judged by it.
    const LONG: Duration = Duration::from_secs(30);

    fn stop() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    fn shell(script: &str, timeout: Duration, stop: &OwnedFd) -> Run {
        let mut command = Command::new("sh");
        run(command.args(["-c", script]), 1000, timeout, stop.as_fd(), |_| ()).unwrap()
    }

    fn ended(script: &str, timeout: Duration) -> Ended {
        let run = shell(script, timeout, &stop());
        assert!(run.stuck.is_none());
        run.ended
    }

    #[test]
    fn all_that_a_child_wrote_is_there_with_its_status() {
        let exited = |output: &str, errors: &str, code| Ended::Exited {
            output: output.into(),
            errors: errors.into(),
            code,
        };
        assert_eq!(ended("printf a; printf b >&2; exit 3", LONG), exited("a", "b", Some(3)));
        assert_eq!(ended("kill -KILL $$", LONG), exited("", "", None));
        // Who closes its output early is waited for.
        assert_eq!(ended("exec >&- 2>&-; exit 5", LONG), exited("", "", Some(5)));
    }

    #[test]
    fn output_without_an_end_ends_the_child() {
        assert_eq!(ended("while :; do echo more and more; done", LONG), Ended::TooLong);
        let Ended::Exited { errors, .. } = ended("yes | head -c 100000 >&2", LONG) else {
            panic!("errors are cut off, and kill nobody");
        };
        assert_eq!(errors.len(), MOST_ERRORS);
    }

    #[test]
    fn a_child_that_sleeps_or_was_stopped_is_killed_at_its_deadline() {
        assert_eq!(ended("exec sleep 1000", Duration::from_millis(50)), Ended::TimedOut);
        assert_eq!(ended("kill -STOP $$", Duration::from_millis(50)), Ended::TimedOut);
        // Its own child holds the pipe open: nobody waits for that one.
        let orphan = ended("sleep 5 & printf x", LONG);
        assert!(matches!(orphan, Ended::Exited { code: Some(0), .. }), "{orphan:?}");
    }

    #[test]
    fn a_stop_ends_it_at_once() {
        let stop = stop();
        rustix::io::write(&stop, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(shell("exec sleep 1000", LONG, &stop).ended, Ended::Stopped);
    }

    #[test]
    fn what_can_t_be_started_is_an_error() {
        let mut command = Command::new("/nonexistent/probe");
        let stop = stop();
        let error = run(&mut command, 10, LONG, stop.as_fd(), |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
