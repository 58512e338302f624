//! One answer, in time: what the process is at is known here, and if it takes too long, that is
//! the answer and the process ends, whatever call hangs.
#![allow(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mrscope::probe::{Answer, ProbeOptions};

use crate::failure::{self, ProbeError};

static AT: Mutex<&str> = Mutex::new("start");

/// Says which call is about to be made.
pub fn at(verb: &'static str) {
    *AT.lock().unwrap_or_else(PoisonError::into_inner) = verb;
}

fn doing() -> &'static str {
    *AT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Speaks once.
#[derive(Debug, Clone, Default)]
pub struct Voice {
    spoken: Arc<AtomicBool>,
}

impl Voice {
    /// Prints the answer, unless one was printed, and gives the exit status for it.
    pub fn say(&self, answer: &Answer) -> ExitCode {
        if self.spoken.swap(true, Ordering::SeqCst) {
            // The other thread is about to end the process.
            loop {
                std::thread::park();
            }
        }
        let printed = match answer.to_json() {
            Ok(line) => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
            }
            Err(error) => {
                eprintln!("mrscope-write-probe: {error}");
                false
            }
        };
        match answer {
            Answer::Ok(_) if printed => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }

    /// Whether nobody has spoken.
    fn is_free(&self) -> bool {
        !self.spoken.load(Ordering::SeqCst)
    }
}

/// Ends the process after that time.
///
/// # Errors
/// There is no thread for it.
pub fn begin(after: Duration, options: &ProbeOptions, voice: &Voice) -> std::io::Result<()> {
    let (options, voice) = (options.clone(), voice.clone());
    let watch = move || {
        std::thread::sleep(after);
        if !voice.is_free() {
            return;
        }
        let error = ProbeError::Timeout { at: doing(), ms: options.guard_ms };
        voice.say(&Answer::Error(failure::of(&error, failure::reason_alone(&error), &options)));
        // SAFETY: ends the process at once. Destructors would wait for the call that hangs.
        unsafe { libc::_exit(1) }
    };
    std::thread::Builder::new().name("guard".to_owned()).spawn(watch).map(drop)
}
