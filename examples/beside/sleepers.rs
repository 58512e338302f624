//! Processes that do nothing, for whoever reads them all.

use std::error::Error;
use std::ptr::null_mut;

/// Children that sleep, and end with this.
#[derive(Default)]
pub struct Sleepers(Vec<i32>);

impl Sleepers {
    /// To be called while there is one thread.
    ///
    /// # Errors
    /// The system has no room for so many.
    pub fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        let mut sleepers = Self::default();
        for number in 0..count {
            // SAFETY: this has one thread, and the child makes system calls only.
            let pid = unsafe { libc::fork() };
            match pid {
                -1 => return Err(format!("no process after {number}, expected {count}").into()),
                0 => sleep_for_good(),
                pid => sleepers.0.push(pid),
            }
        }
        Ok(sleepers)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

fn sleep_for_good() -> ! {
    // SAFETY: asks to be ended with the parent, and waits for it.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        loop {
            libc::pause();
        }
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for pid in &self.0 {
            // SAFETY: a child of ours that nobody has waited for.
            unsafe {
                libc::kill(*pid, libc::SIGKILL);
                libc::waitpid(*pid, null_mut(), 0);
            }
        }
    }
}
