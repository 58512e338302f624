//! The seam between the kernel and everything behind it.

use crate::model::{HookState, ProcessKey, Snapshot};

/// A source of snapshots: the kernel's maps, or a recording.
pub trait KernelEvents {
    /// Reads all maps. `devices` are the names of those that there are.
    ///
    /// # Errors
    /// A map could not be read: the figures of this reading are unknown, none are lost.
    fn snapshot(&mut self, devices: &[String]) -> Result<Snapshot, EventsError>;

    /// Frees the rows of processes that are gone and hold nothing.
    fn forget(&mut self, gone: &[ProcessKey]);

    /// How each hook is attached.
    fn hooks(&self) -> Vec<HookState>;
}

/// Nothing is watched: the collector is switched off.
pub struct Unwatched;

impl KernelEvents for Unwatched {
    fn snapshot(&mut self, _: &[String]) -> Result<Snapshot, EventsError> {
        Ok(Snapshot::default())
    }

    fn forget(&mut self, _: &[ProcessKey]) {}

    fn hooks(&self) -> Vec<HookState> {
        Vec::new()
    }
}

/// Why the kernel's maps can't be had.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// The kernel refuses BPF to this process.
    #[error("BPF is denied: {0}; expected CAP_BPF and CAP_PERFMON (or root)")]
    Denied(String),
    /// The kernel can't do what every program needs.
    #[error("this kernel can't load the BPF objects: {0}")]
    Unsupported(String),
    #[error("map {map}: {source}")]
    Map { map: &'static str, source: std::io::Error },
}
