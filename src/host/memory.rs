//! The memory of the host in one reading: /proc/meminfo, /proc/vmstat, hugepages of every size on
//! every NUMA node, transparent hugepages, limits of hugetlb cgroups. What can't be read or
//! understood is told, and hides nothing else. Every size is in bytes.

mod hugepages;
mod limits;
mod lines;
mod modes;

use std::io;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};

pub use hugepages::{NodePool, PageSize};
pub use limits::CgroupPages;
pub use lines::{MemInfo, VmEvents};
pub use modes::Setting;

use super::{Host, HostError};
use limits::Limits;

/// What one reading found.
#[derive(Debug, Default)]
pub struct HostMemory {
    pub info: MemInfo,
    pub events: VmEvents,
    /// Every size of hugepages, by size.
    pub sizes: Vec<PageSize>,
    /// The pool of each size on each node that has memory, by node and size.
    pub pools: Vec<NodePool>,
    /// How transparent hugepages are set.
    pub settings: Vec<Setting>,
    /// Cgroups whose hugepages are limited, by path.
    pub cgroups: Vec<CgroupPages>,
    /// Those with a limit that are not among them, and those that were not looked at; None where
    /// cgroups can't limit hugepages.
    pub cgroups_omitted: Option<u64>,
    /// What is there, and could not be read or understood.
    pub troubles: Vec<HostError>,
}

/// Reads it again and again.
#[derive(Debug)]
pub struct MemoryReader {
    host: Host,
    files: Files,
    limits: Limits,
}

impl MemoryReader {
    #[must_use]
    pub fn new(host: Host) -> Self {
        Self { host, files: Files::default(), limits: Limits::default() }
    }

    /// One reading.
    pub fn read(&mut self) -> HostMemory {
        let Self { host, files, limits } = self;
        let mut troubles = Vec::new();
        let hugepages::Found { sizes, pools } = hugepages::read(host, files, &mut troubles);
        let modes::Found { settings, has_thp } = modes::read(host, files, &mut troubles);
        let kernel = lines::Kernel { has_hugetlb: !sizes.is_empty(), has_thp };
        let info = lines::meminfo(&host.proc("meminfo"), kernel, files, &mut troubles);
        let events = lines::vmstat(&host.proc("vmstat"), files, &mut troubles);
        let page_bytes: Vec<_> = sizes.iter().map(|size| size.page_bytes).collect();
        let limits::Found { cgroups, omitted: cgroups_omitted } =
            limits.read(host, &page_bytes, Instant::now(), files, &mut troubles);
        HostMemory { info, events, sizes, pools, settings, cgroups, cgroups_omitted, troubles }
    }
}

/// Reads small files, one after the other, into the same buffer.
#[derive(Debug, Default)]
struct Files {
    buffer: Vec<u8>,
}

impl Files {
    /// By three system calls or four: there are hundreds of these files.
    fn read(&mut self, path: &Path) -> io::Result<&[u8]> {
        const PIECE: usize = 16 << 10;
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() {
                self.buffer.resize(filled + PIECE, 0);
            }
            match rustix::io::read(&file, &mut self.buffer[filled..])? {
                0 => return Ok(&self.buffer[..filled]),
                more => filled += more,
            }
        }
    }

    /// The number that is all of a file.
    fn number(&mut self, path: &Path) -> io::Result<u64> {
        number(self.read(path)?.trim_ascii()).ok_or_else(|| strange("expected a number"))
    }
}

/// Digits, and nothing but them.
fn number(text: &[u8]) -> Option<u64> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn strange(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn trouble(path: &Path, source: io::Error) -> HostError {
    HostError::Read { path: path.to_owned(), source }
}

fn absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
