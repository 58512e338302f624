//! Hugepages of every size on every NUMA node, by sysfs. The kernel counts pages; here are bytes.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::{Files, absent, number, strange, trouble};
use crate::host::{Host, HostError};

const SIZES: &str = "kernel/mm/hugepages";
const NODES: &str = "devices/system/node";
const HAS_MEMORY: &str = "devices/system/node/has_memory";

/// More nodes than any kernel can have: 2^10.
const NODES_LIMIT: u32 = 1 << 16;

/// A size of hugepages, all nodes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageSize {
    pub page_bytes: u64,
    pub reserved_bytes: Option<u64>,
    pub overcommit_limit_bytes: Option<u64>,
}

/// The pool of one size on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodePool {
    pub page_bytes: u64,
    pub numa_node: u32,
    /// Surplus pages are among them.
    pub pool_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    pub surplus_bytes: Option<u64>,
}

pub(super) struct Found {
    pub sizes: Vec<PageSize>,
    pub pools: Vec<NodePool>,
}

pub(super) fn read(host: &Host, files: &mut Files, troubles: &mut Vec<HostError>) -> Found {
    let mut sysfs = Sysfs { host, files, troubles };
    let global = host.sys(SIZES);
    let known = match sysfs.sizes(&global) {
        Ok(known) => known,
        Err(error) if absent(&error) => BTreeSet::new(),
        Err(error) => {
            sysfs.troubles.push(trouble(&global, error));
            BTreeSet::new()
        }
    };
    let sizes = known
        .iter()
        .map(|&page_bytes| {
            let folder = folder(&global, page_bytes);
            PageSize {
                page_bytes,
                reserved_bytes: sysfs.bytes(&folder, "resv_hugepages", page_bytes, None),
                overcommit_limit_bytes: sysfs.bytes(
                    &folder,
                    "nr_overcommit_hugepages",
                    page_bytes,
                    None,
                ),
            }
        })
        .collect();
    let mut pools = Vec::new();
    match sysfs.nodes() {
        Some(nodes) => {
            let before = sysfs.troubles.len();
            for node in nodes {
                sysfs.node(node, &known, &mut pools);
            }
            if pools.is_empty() && !known.is_empty() && sysfs.troubles.len() == before {
                sysfs.troubles.push(trouble(&host.sys(NODES), strange("no node has a pool")));
            }
        }
        // A kernel without NUMA.
        None => pools.extend(known.iter().map(|&size| sysfs.pool(&global, size, 0, None))),
    }
    Found { sizes, pools }
}

struct Sysfs<'a> {
    host: &'a Host,
    files: &'a mut Files,
    troubles: &'a mut Vec<HostError>,
}

impl Sysfs<'_> {
    /// Sizes that a folder has folders for.
    fn sizes(&mut self, folder: &Path) -> io::Result<BTreeSet<u64>> {
        let mut sizes = BTreeSet::new();
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            let Some(size) = name.as_encoded_bytes().strip_prefix(b"hugepages-") else { continue };
            let bytes = size.strip_suffix(b"kB").and_then(number);
            match bytes.and_then(|kib| kib.checked_mul(1024)).filter(|bytes| *bytes > 0) {
                Some(bytes) => {
                    sizes.insert(bytes);
                }
                None => self.troubles.push(trouble(
                    &folder.join(name),
                    strange("expected the name hugepages-KIBkB"),
                )),
            }
        }
        Ok(sizes)
    }

    /// Nodes with memory; where the kernel does not tell which have any, all of them. None on a
    /// kernel without NUMA.
    fn nodes(&mut self) -> Option<BTreeSet<u32>> {
        match self.with_memory() {
            Ok(nodes) => return Some(nodes),
            Err(error) if absent(&error) => {}
            Err(error) => self.troubles.push(trouble(&self.host.sys(HAS_MEMORY), error)),
        }
        let folder = self.host.sys(NODES);
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if absent(&error) => return None,
            Err(error) => {
                self.troubles.push(trouble(&folder, error));
                return Some(BTreeSet::new());
            }
        };
        let node = |name: &[u8]| u32::try_from(number(name.strip_prefix(b"node")?)?).ok();
        let names = entries.flatten().map(|entry| entry.file_name());
        Some(names.filter_map(|name| node(name.as_encoded_bytes())).collect())
    }

    fn with_memory(&mut self) -> io::Result<BTreeSet<u32>> {
        let text = self.files.read(&self.host.sys(HAS_MEMORY))?;
        list(text.trim_ascii()).ok_or_else(|| strange("expected nodes such as 0-1,3"))
    }

    /// Pools of a node. Sizes that it lacks are told: no pool is missed in silence.
    fn node(&mut self, node: u32, known: &BTreeSet<u64>, pools: &mut Vec<NodePool>) {
        let at = self.host.sys(NODES).join(format!("node{node}")).join("hugepages");
        let sizes = match self.sizes(&at) {
            Ok(sizes) => sizes,
            Err(error) if absent(&error) && (known.is_empty() || self.lacks_memory(node)) => return,
            Err(error) => return self.troubles.push(trouble(&at, error)),
        };
        for &size in &sizes {
            pools.push(self.pool(&at, size, node, Some(node)));
        }
        if let Some(&missing) = known.difference(&sizes).next()
            && !self.lacks_memory(node)
        {
            let path = folder(&at, missing);
            let what = format!("expected this size, as it is in {SIZES}");
            self.troubles.push(trouble(&path, io::Error::new(io::ErrorKind::NotFound, what)));
        }
    }

    fn pool(&mut self, at: &Path, size: u64, numa_node: u32, node: Option<u32>) -> NodePool {
        let folder = folder(at, size);
        NodePool {
            page_bytes: size,
            numa_node,
            pool_bytes: self.bytes(&folder, "nr_hugepages", size, node),
            free_bytes: self.bytes(&folder, "free_hugepages", size, node),
            surplus_bytes: self.bytes(&folder, "surplus_hugepages", size, node),
        }
    }

    /// A count of pages, in bytes. A node may go away meanwhile.
    fn bytes(&mut self, folder: &Path, name: &str, size: u64, node: Option<u32>) -> Option<u64> {
        let path = folder.join(name);
        let bytes = self.files.number(&path).and_then(|pages| {
            pages.checked_mul(size).ok_or_else(|| {
                strange(format!("expected at most {} pages of this size", u64::MAX / size))
            })
        });
        match bytes {
            Ok(bytes) => Some(bytes),
            Err(error) if absent(&error) && node.is_some_and(|node| self.lacks_memory(node)) => {
                None
            }
            Err(error) => {
                self.troubles.push(trouble(&path, error));
                None
            }
        }
    }

    /// Whether a node that is not as it should be has no memory by now; where the kernel does not
    /// tell, whether it has no hugepages at all.
    fn lacks_memory(&mut self, node: u32) -> bool {
        self.with_memory().map_or_else(
            |_| !self.host.sys(NODES).join(format!("node{node}")).join("hugepages").exists(),
            |nodes| !nodes.contains(&node),
        )
    }
}

fn folder(at: &Path, page_bytes: u64) -> PathBuf {
    at.join(format!("hugepages-{}kB", page_bytes / 1024))
}

/// A list of the kernel's: `0-1,3`, or nothing.
fn list(text: &[u8]) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    if text.is_empty() {
        return Some(all);
    }
    let node = |text| u32::try_from(number(text)?).ok().filter(|node| *node < NODES_LIMIT);
    for part in text.split(|byte| *byte == b',') {
        let (first, last) = match part.iter().position(|byte| *byte == b'-') {
            Some(dash) => (node(&part[..dash])?, node(&part[dash + 1..])?),
            None => (node(part)?, node(part)?),
        };
        if first > last {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_as_the_kernel_writes_them() {
        let nodes = |text: &str| list(text.as_bytes()).map(Vec::from_iter);
        assert_eq!(nodes(""), Some(vec![]));
        assert_eq!(nodes("0"), Some(vec![0]));
        assert_eq!(nodes("0-1,3,8-9"), Some(vec![0, 1, 3, 8, 9]));
        for wrong in ["-", "a", "1-", "2-1", "0,", "0-4294967295", "18446744073709551616"] {
            assert_eq!(nodes(wrong), None, "{wrong}");
        }
    }
}
