//! On which pages and NUMA nodes ranges of a process's memory lie, by a few pages of each: nodes by
//! move_pages(2), sizes by /proc/PID/pagemap and /proc/kpageflags. Never by smaps or numa_maps, which
//! walk all of its page tables. What is not known is None; a page that moves while it is looked at
//! may be told wrongly, which pinned ones don't.

mod frames;
mod spread;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{PROC_SUPER_MAGIC, statfs};
use rustix::io::Errno;

use super::process::vanished;
use super::{Host, Presence, Processes, Rights, ThreadOf, move_pages};
use crate::model::{Place, Placement, ProcessKey};
use frames::{Entry, Sizes};
use spread::{spread, whole_pages};

pub use spread::MOST_SAMPLES;

/// An entry of pagemap, a word of kpageflags.
const WORD: usize = 8;

/// Why nothing tells of some figure, whatever the page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    #[error("{what} takes {capabilities}")]
    Rights { what: &'static str, capabilities: &'static str },
    #[error("this kernel has no {0}")]
    Absent(&'static str),
    /// Or the process is one that it hides.
    #[error("/proc does not show the kernel's own processes")]
    Hidden,
    #[error("{what}: {}", io::Error::from_raw_os_error(*.errno))]
    Refused { what: &'static str, errno: i32 },
}

/// What was found of the ranges of one process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sampled {
    /// Of each range, in their order: its whole pages, each sample's share at the sample's place.
    pub placements: Vec<Placement>,
    /// Why sizes of pages are missing.
    pub no_sizes: Option<Lack>,
    /// Why nodes are missing.
    pub no_nodes: Option<Lack>,
}

/// Looks at pages of processes.
#[derive(Debug)]
pub struct Sampler {
    host: Host,
    rights: Rights,
    sizes: Sizes,
    flags: Result<File, Lack>,
    /// Whether /proc is the kernel's, and no copy of one.
    live: bool,
}

impl Sampler {
    /// `rights` are raised for each reading, of what [`Rights::for_sampling`] leaves.
    #[must_use]
    pub fn new(host: &Host, rights: Rights) -> Self {
        let base = rustix::param::page_size() as u64;
        let live = statfs(host.proc("")).is_ok_and(|of| of.f_type == PROC_SUPER_MAGIC);
        let flags = rights.with(|| File::open(host.proc("kpageflags")));
        let flags = flags.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Lack::Absent("/proc/kpageflags"),
            _ => rights.lack_of_flags().unwrap_or_else(|| refused("/proc/kpageflags", &error)),
        });
        Self { host: host.clone(), rights, sizes: Sizes::of(host, base), flags, live }
    }

    /// Where so many bytes from each address on lie. None if the process has ended. At most
    /// [`MOST_SAMPLES`] pages are looked at in each range, by one call of move_pages, one read of
    /// pagemap for each and at most two of kpageflags, one more where hugepages are of more sizes.
    #[must_use]
    pub fn sample(&self, key: ProcessKey, ranges: &[(u64, u64)]) -> Option<Sampled> {
        self.rights.with(|| {
            let processes = Processes::of(&self.host);
            if !self.live || !processes.all_visible() {
                return Some(self.nothing(ranges, Some(Lack::Hidden)));
            }
            let tid = self.living(key.tgid);
            let sampled = self.look(tid, ranges);
            // All was its own if it is still there: its pid can't have been another's before.
            match processes.presence(key.tgid, key.start_ns) {
                Presence::Gone => None,
                Presence::Unknown => Some(self.nothing(ranges, Some(Lack::Hidden))),
                Presence::Runs if tid != key.tgid => {
                    let its_own = processes.of_thread(tid) == ThreadOf::Process(key.tgid);
                    Some(if its_own { sampled } else { self.nothing(ranges, None) })
                }
                Presence::Runs => Some(sampled),
            }
        })
    }

    fn pages(&self, range: (u64, u64)) -> Range<u64> {
        whole_pages(range.0, range.1, self.sizes.base)
    }

    /// A thread that its memory can be asked of: the leader, or, where that has ended, another.
    fn living(&self, tgid: u32) -> u32 {
        let ask = |tid: u32| move_pages::nodes_of(tid, &[]);
        let ended = |error: io::Error| Errno::from_io_error(&error) == Some(Errno::INVAL);
        if !ask(tgid).is_err_and(ended) {
            return tgid;
        }
        let threads = std::fs::read_dir(self.host.proc(format!("{tgid}/task")));
        let names = threads.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut tids = names.filter_map(|name| name.to_str()?.parse().ok());
        tids.find(|tid| ask(*tid).is_ok()).unwrap_or(tgid)
    }

    fn nothing(&self, ranges: &[(u64, u64)], lack: Option<Lack>) -> Sampled {
        let placements = ranges.iter().map(|range| {
            let pages = self.pages(*range);
            let mut placement = Placement::default();
            placement.add(Place::default(), (pages.end - pages.start) * self.sizes.base);
            placement
        });
        Sampled { placements: placements.collect(), no_sizes: lack.clone(), no_nodes: lack }
    }

    fn look(&self, tid: u32, ranges: &[(u64, u64)]) -> Sampled {
        let mut sampled = Sampled::default();
        let pagemap = match self.pagemap(tid) {
            Ok(pagemap) => pagemap,
            Err(lack) => {
                sampled.no_sizes = Some(lack);
                None
            }
        };
        let mut flags = HashMap::new();
        for range in ranges {
            let pages = self.pages(*range);
            let samples: Vec<_> = spread(pages.end - pages.start)
                .map(|(page, share)| ((pages.start + page) * self.sizes.base, share))
                .collect();
            let addresses: Vec<_> = samples.iter().map(|(address, _)| *address).collect();
            let nodes = match move_pages::nodes_of(tid, &addresses) {
                Ok(nodes) => nodes,
                Err(error) => {
                    sampled.no_nodes = self.no_nodes(&error).or(sampled.no_nodes);
                    vec![None; samples.len()]
                }
            };
            let mut placement = Placement::default();
            for ((address, share), node) in samples.into_iter().zip(nodes) {
                let size = pagemap.as_ref().map(|file| self.size_at(file, address, &mut flags));
                let page_bytes = match size.unwrap_or(Ok(None)) {
                    Ok(page_bytes) => page_bytes,
                    Err(lack) => {
                        sampled.no_sizes = Some(lack);
                        None
                    }
                };
                placement.add(Place { page_bytes, node }, share * self.sizes.base);
            }
            sampled.placements.push(placement);
        }
        sampled
    }

    /// None if the thread has ended.
    fn pagemap(&self, tid: u32) -> Result<Option<File>, Lack> {
        const WHAT: &str = "/proc/PID/pagemap";
        let error = match File::open(self.host.proc(format!("{tid}/pagemap"))) {
            Ok(file) => return Ok(Some(file)),
            Err(error) => error,
        };
        Err(match error.kind() {
            io::ErrorKind::NotFound if self.host.proc(tid.to_string()).exists() => {
                Lack::Absent(WHAT)
            }
            _ if vanished(&error) => return Ok(None),
            io::ErrorKind::PermissionDenied => {
                self.rights.lack_of_pagemap().unwrap_or_else(|| refused(WHAT, &error))
            }
            _ => refused(WHAT, &error),
        })
    }

    fn no_nodes(&self, error: &io::Error) -> Option<Lack> {
        const WHAT: &str = "move_pages";
        match Errno::from_io_error(error) {
            // It has ended.
            Some(Errno::SRCH | Errno::INVAL) => None,
            Some(Errno::NOSYS) => Some(Lack::Absent(WHAT)),
            Some(Errno::PERM) => self.rights.lack_of_nodes().or(Some(refused(WHAT, error))),
            _ => Some(refused(WHAT, error)),
        }
    }

    /// The size of the page at an address, None where there is none. `known` are words of
    /// kpageflags that were read before.
    fn size_at(
        &self,
        pagemap: &File,
        address: u64,
        known: &mut HashMap<u64, Option<u64>>,
    ) -> Result<Option<u64>, Lack> {
        let entry = match word(pagemap, address / self.sizes.base) {
            Ok(Some(entry)) => Entry::of(entry),
            // Its memory is gone, or it is beyond all memory.
            Ok(None) => Entry::NotThere,
            Err(error) if vanished(&error) => Entry::NotThere,
            Err(error) => return Err(refused("/proc/PID/pagemap", &error)),
        };
        let frame = match entry {
            Entry::NotThere => return Ok(None),
            _ if self.sizes.only_base() => return Ok(Some(self.sizes.base)),
            Entry::Hidden => return Err(Rights::LACK_OF_FRAMES),
            Entry::Frame(frame) => frame,
        };
        let flags = self.flags.as_ref().map_err(Clone::clone)?;
        let read = |frame| match known.get(&frame) {
            Some(word) => Ok(*word),
            None => word(flags, frame).inspect(|word| {
                known.insert(frame, *word);
            }),
        };
        self.sizes.of_page(frame, read).map_err(|error| refused("/proc/kpageflags", &error))
    }
}

/// One word of a file of words. None at its end.
fn word(file: &File, at: u64) -> io::Result<Option<u64>> {
    let mut word = [0; WORD];
    let read = file.read_at(&mut word, at.saturating_mul(WORD as u64))?;
    Ok((read == WORD).then(|| u64::from_ne_bytes(word)))
}

fn refused(what: &'static str, error: &io::Error) -> Lack {
    Lack::Refused { what, errno: error.raw_os_error().unwrap_or_default() }
}
