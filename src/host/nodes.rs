//! NUMA nodes that have memory, what of it is free, and how far they are from each other.

use std::collections::BTreeMap;

use super::cpus::list;
use super::{Host, HostError};

const FOLDER: &str = "devices/system/node";

/// A node with memory. What the kernel does not tell is not there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub number: u32,
    /// Without what it could take back from its caches.
    pub free_bytes: Option<u64>,
    /// To each node that is online, itself too: 10 stands for no distance.
    pub distances: BTreeMap<u32, u32>,
}

/// Nodes by number; none on a kernel without NUMA.
///
/// # Errors
/// The kernel's list of them can't be read, or is none.
pub fn memory_nodes(host: &Host) -> Result<Vec<Node>, HostError> {
    if !host.sys(FOLDER).exists() {
        return Ok(Vec::new());
    }
    let online = list(host, &format!("{FOLDER}/online"))?;
    let with_memory = list(host, &format!("{FOLDER}/has_memory"))?;
    let node = |number| Node {
        number,
        free_bytes: free(host, number),
        distances: distances(host, number, &online).unwrap_or_default(),
    };
    Ok(with_memory.into_iter().map(node).collect())
}

/// `Node 0 MemFree:  123 kB`.
fn free(host: &Host, node: u32) -> Option<u64> {
    let text = host.sys_text(format!("{FOLDER}/node{node}/meminfo")).ok()?;
    let start = format!("Node {node} MemFree:");
    let line = text.lines().find_map(|line| line.strip_prefix(start.as_str()))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// One number for each node that is online, in their order.
fn distances(host: &Host, node: u32, online: &[u32]) -> Option<BTreeMap<u32, u32>> {
    let text = host.sys_text(format!("{FOLDER}/node{node}/distance")).ok()?;
    let numbers: Vec<u32> =
        text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    (numbers.len() == online.len()).then(|| online.iter().copied().zip(numbers).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn nodes_with_memory_tell_what_is_free_and_how_far_it_is() {
        let root = std::env::temp_dir().join(format!("mrscope-nodes-{}", std::process::id()));
        let file = |path: &str, text: &str| {
            let path = root.join("sys").join(FOLDER).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let host = Host::at(&root);
        assert_eq!(memory_nodes(&host).unwrap(), []);
        file("online", "0-1,3\n");
        file("has_memory", "0,3\n");
        file("node0/meminfo", "Node 0 MemTotal:  9 kB\nNode 0 MemFree:     8 kB\n");
        file("node0/distance", "10 20 31\n");
        file("node3/meminfo", "Node 3 MemFree: x kB\n");
        file("node3/distance", "31 20\n");
        let distances = BTreeMap::from([(0, 10), (1, 20), (3, 31)]);
        let expected = [
            Node { number: 0, free_bytes: Some(8192), distances },
            Node { number: 3, ..Node::default() },
        ];
        assert_eq!(memory_nodes(&host).unwrap(), expected);
        file("has_memory", "0-\n");
        assert!(memory_nodes(&host).unwrap_err().to_string().contains("has_memory"));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn this_machine_has_memory_somewhere() {
        let nodes = memory_nodes(&Host::live()).unwrap();
        assert!(nodes.iter().all(|node| node.free_bytes.is_some()), "{nodes:?}");
        assert!(nodes.iter().all(|node| node.distances.contains_key(&node.number)), "{nodes:?}");
    }
}
