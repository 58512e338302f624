//! The host's memory: what /proc/meminfo, /proc/vmstat and the pools of hugepages say.

use super::Host;

/// One reading.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostMemory {}

/// Reads it again and again.
#[derive(Debug)]
pub struct MemoryReader {}

impl MemoryReader {
    #[must_use]
    pub fn new(_host: Host) -> Self {
        Self {}
    }

    /// Nothing of a bad file, line or value hides another.
    #[must_use]
    pub fn read(&mut self) -> HostMemory {
        HostMemory {}
    }
}
