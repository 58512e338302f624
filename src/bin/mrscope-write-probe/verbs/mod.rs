//! Objects of libibverbs. Each holds the one that it is made of, so that it is given back first,
//! and tells which call failed. Dropping one never fails: what the kernel keeps, it takes back at
//! the end of the process.
#![allow(unsafe_code)]

mod context;
mod queue;
mod region;

pub use context::{Context, Port};
pub use queue::{Pair, Path, Span};
pub use region::{Domain, Region};

use rustix::io::Errno;

/// Of a call that returns its error, in either sign.
fn done(code: i32) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(code.saturating_abs())) }
}
