//! Reads /proc and /sys under a root given as a value; every reader is a pure parse behind it.
//! Never writes, never keeps what it read.

mod infiniband;
mod kallsyms;
mod modules;
mod preemption;
mod process;
mod tracefs;

use std::io;
use std::path::{Path, PathBuf};

pub use infiniband::device_names;
pub use kallsyms::{Home, Symbols};
pub use modules::Modules;
pub use preemption::preempts;
pub use process::{Presence, Processes};
pub use tracefs::tracefs;

/// Where /proc and /sys are.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
}

/// A file of the host that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("{path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
}

impl Host {
    /// The running machine.
    #[must_use]
    pub fn live() -> Self {
        Self::at("/")
    }

    /// A captured tree, or another mount of /proc and /sys.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// `path` (given without a leading slash) under this root.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    fn text(&self, path: impl AsRef<Path>) -> Result<String, HostError> {
        let path = self.path(path);
        std::fs::read(&path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .map_err(|source| HostError::Read { path, source })
    }
}
