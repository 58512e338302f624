//! How the process ends from outside: with its parent, on TERM as by default, and before anybody
//! else where memory is short.
#![allow(unsafe_code)]

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Ties the end of this process to that of `parent`'s thread which started it.
///
/// # Errors
/// The parent is another one by now, so it would never be heard of again.
pub fn tie(parent: Option<i32>) -> Result<(), String> {
    // Who started it may ignore TERM, or have it blocked, and that is inherited.
    // SAFETY: the default action and an empty set are valid for any thread; no handler is set.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
    }
    // It may always be raised; where it can't, the kernel chooses by size, as for others.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let Some(parent) = parent else { return Ok(()) };
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("PR_SET_PDEATHSIG: {error}"))?;
    // It may have died before the signal was set up.
    if getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(format!("--parent {parent}: it is not the parent (any more)"))
    }
}
