//! Limits that a call of this process may have met: of locked memory, and of hugepages.

use std::path::{Path, PathBuf};

use mrscope::probe::Pages;

const CAP_IPC_LOCK: u32 = 14;

/// Limits of this process, read when they are asked for.
#[derive(Debug)]
pub struct Limits {
    root: PathBuf,
}

impl Limits {
    /// Below a root, which on a live machine is `/`.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The limit on locked memory that so much more pinned memory would exceed.
    pub fn memlock_below(&self, bytes: u64) -> Option<u64> {
        let status = self.read("proc/self/status")?;
        let limit = memlock_limit(&self.read("proc/self/limits")?)?;
        let pinned = status_number(&status, "VmPin:").unwrap_or(0) * 1024;
        let exempt = has_capability(&status, CAP_IPC_LOCK)
            && self.read("proc/self/uid_map").is_none_or(|map| is_initial(&map));
        (!exempt && pinned.saturating_add(bytes) > limit).then_some(limit)
    }

    /// The cgroup, and its limit, that leaves no room for `bytes` of such pages. With `reserved`
    /// it is the limit on reservations, by which a mapping is refused.
    pub fn hugepages_below(
        &self,
        pages: Pages,
        bytes: u64,
        reserved: bool,
    ) -> Option<(PathBuf, u64)> {
        let size = match pages {
            Pages::Huge2M => "2MB",
            Pages::Huge1G => "1GB",
            Pages::Base | Pages::Transparent => return None,
        };
        let what = if reserved { ".rsvd" } else { "" };
        let text = self.read("proc/self/cgroup")?;
        for line in text.lines() {
            let (mount, files) = match line.splitn(3, ':').collect::<Vec<_>>()[..] {
                ["0", "", _] => ("sys/fs/cgroup", ["max", "current"]),
                [_, controllers, _] if controllers.split(',').any(|one| one == "hugetlb") => {
                    ("sys/fs/cgroup/hugetlb", ["limit_in_bytes", "usage_in_bytes"])
                }
                _ => continue,
            };
            let path = line.splitn(3, ':').nth(2).unwrap_or_default().trim_start_matches('/');
            let top = self.root.join(mount);
            let own = top.join(path);
            for group in own.ancestors().take_while(|group| group.starts_with(&top)) {
                let number = |file: &str| {
                    let path = group.join(format!("hugetlb.{size}{what}.{file}"));
                    std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
                };
                // No limit is `max`, which is no number.
                if let (Some(limit), Some(used)) = (number(files[0]), number(files[1]))
                    && limit.saturating_sub(used) < bytes
                {
                    return Some((group.strip_prefix(&top).unwrap_or(group).to_owned(), limit));
                }
            }
        }
        None
    }

    /// Free pages of that size, on a node or on all.
    pub fn free_hugepages(&self, pages: Pages, node: Option<u32>) -> Option<u64> {
        let size = match pages {
            Pages::Huge2M => "hugepages-2048kB",
            Pages::Huge1G => "hugepages-1048576kB",
            Pages::Base | Pages::Transparent => return None,
        };
        let folder = match node {
            None => "sys/kernel/mm/hugepages".to_owned(),
            Some(node) => format!("sys/devices/system/node/node{node}/hugepages"),
        };
        self.read(&format!("{folder}/{size}/free_hugepages"))?.trim().parse().ok()
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }
}

fn status_number(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

fn has_capability(status: &str, number: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> number & 1 == 1)
}

/// Of the initial user namespace: capabilities of others do not lift the limit.
fn is_initial(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Soft, in bytes; None: unlimited.
fn memlock_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    const LIMITED: &str =
        "Max locked memory         1048576              8388608              bytes\n";
    const ALL_USERS: &str = "         0          0 4294967295\n";

    #[test]
    fn the_limit_holds_for_what_is_pinned_and_more_unless_exempt() {
        let tree = Tree::new("memlock");
        let limits = Limits::at(&tree.0);
        tree.file("proc/self/limits", LIMITED);
        tree.file("proc/self/uid_map", ALL_USERS);
        tree.file("proc/self/status", "VmPin:\t     512 kB\nCapEff:\t0000000000000000\n");
        assert_eq!(limits.memlock_below(512 << 10), None);
        assert_eq!(limits.memlock_below((512 << 10) + 1), Some(1 << 20));
        tree.file("proc/self/status", "VmPin:\t     512 kB\nCapEff:\t0000000000004000\n");
        assert_eq!(limits.memlock_below(1 << 30), None);
        // Root of a user namespace is not exempt.
        tree.file("proc/self/uid_map", "         0     100000      65536\n");
        assert_eq!(limits.memlock_below(1 << 30), Some(1 << 20));
        tree.file("proc/self/limits", "Max locked memory   unlimited  unlimited  bytes\n");
        assert_eq!(limits.memlock_below(1 << 30), None);
    }

    #[test]
    fn a_cgroup_or_one_above_it_leaves_no_room() {
        let tree = Tree::new("cgroup");
        let limits = Limits::at(&tree.0);
        tree.file("proc/self/cgroup", "0::/a/b\n");
        let page = 2 << 20;
        assert_eq!(limits.hugepages_below(Pages::Huge2M, page, false), None);
        tree.file("sys/fs/cgroup/a/b/hugetlb.2MB.max", "max\n");
        tree.file("sys/fs/cgroup/a/b/hugetlb.2MB.current", "0\n");
        assert_eq!(limits.hugepages_below(Pages::Huge2M, page, false), None);
        tree.file("sys/fs/cgroup/a/hugetlb.2MB.max", "4194304\n");
        tree.file("sys/fs/cgroup/a/hugetlb.2MB.current", "2097152\n");
        assert_eq!(limits.hugepages_below(Pages::Huge2M, page, false), None);
        tree.file("sys/fs/cgroup/a/hugetlb.2MB.current", "4194304\n");
        let found = limits.hugepages_below(Pages::Huge2M, page, false);
        assert_eq!(found, Some((PathBuf::from("a"), 4_194_304)));
        assert_eq!(limits.hugepages_below(Pages::Huge1G, page, false), None);
        assert_eq!(limits.hugepages_below(Pages::Huge2M, page, true), None);
        tree.file("sys/fs/cgroup/a/b/hugetlb.2MB.rsvd.max", "0\n");
        tree.file("sys/fs/cgroup/a/b/hugetlb.2MB.rsvd.current", "0\n");
        let found = limits.hugepages_below(Pages::Huge2M, page, true);
        assert_eq!(found, Some((PathBuf::from("a/b"), 0)));
    }

    #[test]
    fn a_cgroup_of_version_1_is_that_of_its_controller() {
        let tree = Tree::new("cgroup-v1");
        let limits = Limits::at(&tree.0);
        tree.file("proc/self/cgroup", "9:hugetlb:/job\n8:cpu,cpuacct:/other\n0::/\n");
        tree.file("sys/fs/cgroup/hugetlb/job/hugetlb.1GB.limit_in_bytes", "0\n");
        tree.file("sys/fs/cgroup/hugetlb/job/hugetlb.1GB.usage_in_bytes", "0\n");
        let found = limits.hugepages_below(Pages::Huge1G, 1 << 30, false);
        assert_eq!(found, Some((PathBuf::from("job"), 0)));
    }

    #[test]
    fn free_pages_are_those_of_a_node_or_of_all() {
        let tree = Tree::new("free");
        let limits = Limits::at(&tree.0);
        tree.file("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7\n");
        tree.file("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "3\n");
        assert_eq!(limits.free_hugepages(Pages::Huge2M, None), Some(7));
        assert_eq!(limits.free_hugepages(Pages::Huge2M, Some(1)), Some(3));
        assert_eq!(limits.free_hugepages(Pages::Huge2M, Some(0)), None);
        assert_eq!(limits.free_hugepages(Pages::Base, None), None);
    }
}
