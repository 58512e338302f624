//! Reads /proc and /sys where they are said to be; every reader is a pure parse behind it.
//! Never writes, never keeps what it read, but for what counters of perf events have counted.

mod cgroup;
mod cpu_counters;
mod cpus;
mod infiniband;
mod kallsyms;
mod lockdown;
mod memory;
mod modules;
mod move_pages;
mod nodes;
mod own;
mod owner;
mod page_walks;
pub mod perf;
mod placement;
mod ports;
mod preemption;
mod process;
mod process_counters;
mod program;
mod rights;
mod scaled;
mod tasks;
mod tracefs;
mod whole;

use std::io;
use std::path::{Path, PathBuf};

pub use cgroup::{CgroupPaths, Cgroups};
pub use cpu_counters::{CpuCounters, NodeTotal, OpensOnCpu, ReadsCounters, Verdict};
pub use cpus::online_cpus;
pub use infiniband::{device, device_names, has_rdma, reg_pages};
pub use kallsyms::{Home, Symbols};
pub use lockdown::confidential;
pub use memory::{
    CgroupPages, HostMemory, MemInfo, MemoryReader, NodePool, PageSize, Setting, VmEvents,
};
pub use modules::{Modules, load_of};
pub use nodes::{Node, memory_nodes};
pub use own::{OwnFigures, own_figures, page_bytes, raise_memlock, raise_open_files};
pub use owner::Owner;
pub use page_walks::page_walk_events;
pub use placement::{Lack, MOST_SAMPLES, Sampled, Sampler};
pub use ports::{Port, device_node, has_queue_pairs, port, port_numbers, port_rate, ports};
pub use preemption::preempts;
pub use process::{Presence, Processes, ThreadOf, hides_processes};
pub use process_counters::{OpensInThread, ProcessCounters, Uncounted};
pub use program::{Program, program_of};
pub use rights::Rights;
pub use tasks::read_tasks;
pub use tracefs::tracefs;
pub use whole::boot_seconds;

/// Where /proc and /sys are.
#[derive(Debug, Clone)]
pub struct Host {
    proc: PathBuf,
    sys: PathBuf,
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

    /// A captured tree with `proc` and `sys` in it.
    #[must_use]
    pub fn at(root: impl AsRef<Path>) -> Self {
        Self::new(root.as_ref().join("proc"), root.as_ref().join("sys"))
    }

    /// Where procfs and sysfs are mounted.
    #[must_use]
    pub fn new(proc: impl Into<PathBuf>, sys: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into(), sys: sys.into() }
    }

    /// A file of procfs.
    #[must_use]
    pub fn proc(&self, path: impl AsRef<Path>) -> PathBuf {
        self.proc.join(path)
    }

    /// A file of sysfs.
    #[must_use]
    pub fn sys(&self, path: impl AsRef<Path>) -> PathBuf {
        self.sys.join(path)
    }

    fn proc_text(&self, path: impl AsRef<Path>) -> Result<String, HostError> {
        text(self.proc(path))
    }

    fn sys_text(&self, path: impl AsRef<Path>) -> Result<String, HostError> {
        text(self.sys(path))
    }
}

/// Words of a file, whatever bytes are in it.
fn text(path: PathBuf) -> Result<String, HostError> {
    std::fs::read(&path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .map_err(|source| HostError::Read { path, source })
}
