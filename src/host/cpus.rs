//! Which CPUs are online, and the NUMA node of each.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};

use super::{Host, HostError};

/// The kernel has no numbers beyond NR_CPUS, which is at most 8192.
const MOST: u32 = 1 << 16;

/// CPUs that are online, with their nodes. Without NUMA in the kernel all are of node 0.
///
/// # Errors
/// A file can't be read, or is no list of CPUs.
pub fn online_cpus(host: &Host) -> Result<BTreeMap<u32, u32>, HostError> {
    let online = list(host, "devices/system/cpu/online")?;
    let Some(nodes) = nodes(host)? else {
        return Ok(online.into_iter().map(|cpu| (cpu, 0)).collect());
    };
    let mut cpus = BTreeMap::new();
    for node in nodes {
        for cpu in list(host, &format!("devices/system/node/node{node}/cpulist"))? {
            cpus.insert(cpu, node);
        }
    }
    // On no node's list is a CPU that went offline since.
    cpus.retain(|cpu, _| online.contains(cpu));
    Ok(cpus)
}

/// Numbers of the nodes; None where the kernel knows of none.
fn nodes(host: &Host) -> Result<Option<Vec<u32>>, HostError> {
    let path = host.sys("devices/system/node");
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(HostError::Read { path, source }),
    };
    let nodes: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .collect();
    Ok((!nodes.is_empty()).then_some(nodes))
}

pub(super) fn list(host: &Host, path: &str) -> Result<Vec<u32>, HostError> {
    let text = host.sys_text(path)?;
    parse(text.trim()).ok_or_else(|| {
        let what = format!("{text:?} is no list of CPUs, expected one such as 0-3,5");
        HostError::Read { path: host.sys(path), source: Error::new(ErrorKind::InvalidData, what) }
    })
}

/// `0-3,5`; nothing is an empty list.
fn parse(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    if text.is_empty() {
        return Some(cpus);
    }
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A /sys with these files below devices/system.
    struct Tree(PathBuf);

    impl Tree {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("mrscope-cpus-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join("sys/devices/system").join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }

        fn read(&self) -> Result<Vec<(u32, u32)>, String> {
            let cpus = online_cpus(&Host::at(&self.0)).map_err(|error| error.to_string())?;
            Ok(cpus.into_iter().collect())
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_list_has_single_cpus_and_ranges() {
        assert_eq!(parse("0-3,5,7-8"), Some(vec![0, 1, 2, 3, 5, 7, 8]));
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse(""), Some(Vec::new()));
        for bad in ["a", "0-", "-3", "3-1", "0,,1", "0-4294967295", "1 2", "0x1", "-"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn each_online_cpu_has_its_node() {
        let tree = Tree::with(
            "two",
            &[
                ("cpu/online", "0-2,5\n"),
                ("node/node0/cpulist", "0,2\n"),
                // Node 1 has memory alone; what else lies there is no node.
                ("node/node1/cpulist", "\n"),
                ("node/node12/cpulist", "1,3-5\n"),
                ("node/has_cpu", "0,12\n"),
            ],
        );
        assert_eq!(tree.read(), Ok(vec![(0, 0), (1, 12), (2, 0), (5, 12)]));
    }

    #[test]
    fn without_numa_all_are_of_node_0() {
        let tree = Tree::with("flat", &[("cpu/online", "0,2\n")]);
        assert_eq!(tree.read(), Ok(vec![(0, 0), (2, 0)]));
        let tree = Tree::with("none", &[("cpu/online", "1\n"), ("node/online", "\n")]);
        assert_eq!(tree.read(), Ok(vec![(1, 0)]));
    }

    #[test]
    fn a_file_that_is_no_list_is_named_with_what_was_expected() {
        let tree = Tree::with("bad", &[("cpu/online", "0-\n")]);
        let error = tree.read().unwrap_err();
        assert!(error.contains("/cpu/online: \"0-\\n\" is no list"), "{error}");
        assert!(error.contains("expected one such as 0-3,5"), "{error}");
        let tree = Tree::with("bad2", &[("cpu/online", "0\n"), ("node/node3/cpulist", "x")]);
        assert!(tree.read().unwrap_err().contains("node3/cpulist: \"x\" is no list"));
    }

    #[test]
    fn this_machine_s_are_those_of_proc_stat() {
        let cpus: Vec<u32> = online_cpus(&Host::live()).unwrap().into_keys().collect();
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let listed = stat.lines().filter_map(|line| line.strip_prefix("cpu")?.split(' ').next());
        let listed: Vec<u32> = listed.filter_map(|number| number.parse().ok()).collect();
        assert_eq!(cpus, listed);
    }
}
