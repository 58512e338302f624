//! The tracefs that tracepoints are attached by, where the machine has not mounted it.

use std::io::{Error, Result};
use std::path::Path;
use std::process::Command;

const TRACEFS: &str = "/sys/kernel/tracing";

/// Mounts it for this process and its children alone. To be called while there is one thread.
///
/// # Errors
/// It takes CAP_SYS_ADMIN.
pub fn mount_tracefs() -> Result<()> {
    if Path::new(TRACEFS).join("events").exists() {
        return Ok(());
    }
    // SAFETY: there is one thread, whose view of mounts alone becomes another.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(Error::last_os_error());
    }
    mount(&["--make-rprivate", "/"])?;
    mount(&["-t", "tracefs", "tracefs", TRACEFS])
}

fn mount(words: &[&str]) -> Result<()> {
    let status = Command::new("mount").args(words).status()?;
    if status.success() { Ok(()) } else { Err(Error::other(format!("mount {words:?}: {status}"))) }
}
