//! Captured hosts, copies of them to do harm to, and a walk over hugepages in sysfs that mrscope has
//! no part in.
// Each test file uses its part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mrscope::host::{Host, HostMemory, MemInfo, MemoryReader, VmEvents};

pub fn fixture(name: &str) -> PathBuf {
    Path::new("tests/fixtures/hosts").join(name)
}

pub fn read(root: &Path) -> HostMemory {
    MemoryReader::new(Host::at(root)).read()
}

/// Troubles as they are told, with paths below the root.
pub fn told(memory: &HostMemory, root: &Path) -> Vec<String> {
    let prefix = format!("{}/", root.display());
    memory.troubles.iter().map(|trouble| trouble.to_string().replace(&prefix, "")).collect()
}

/// What is left of a reading, to see that one wrong thing took nothing else with it.
pub fn figures(memory: &HostMemory) -> usize {
    let MemInfo {
        total_bytes,
        available_bytes,
        hugetlb_bytes,
        default_page_size_bytes,
        anon_hugepages_bytes,
        shmem_hugepages_bytes,
        file_hugepages_bytes,
        mlocked_bytes,
        unevictable_bytes,
        page_tables_bytes,
        secondary_page_tables_bytes,
    } = memory.info;
    let VmEvents {
        pins_acquired,
        pins_released,
        oom_kills,
        hugepage_allocations,
        hugepage_allocation_failures,
        thp_faults,
        thp_fallbacks,
        thp_collapses,
        thp_splits,
    } = memory.events;
    let mut all = vec![
        total_bytes,
        available_bytes,
        hugetlb_bytes,
        default_page_size_bytes,
        anon_hugepages_bytes,
        shmem_hugepages_bytes,
        file_hugepages_bytes,
        mlocked_bytes,
        unevictable_bytes,
        page_tables_bytes,
        secondary_page_tables_bytes,
        pins_acquired,
        pins_released,
        oom_kills,
        hugepage_allocations,
        hugepage_allocation_failures,
        thp_faults,
        thp_fallbacks,
        thp_collapses,
        thp_splits,
    ];
    for size in &memory.sizes {
        all.extend([size.reserved_bytes, size.overcommit_limit_bytes]);
    }
    for pool in &memory.pools {
        all.extend([pool.pool_bytes, pool.free_bytes, pool.surplus_bytes]);
    }
    for it in &memory.cgroups {
        all.extend([it.usage_bytes, it.limit_bytes, it.reserved_bytes]);
        all.extend([it.reserved_limit_bytes, it.failures]);
    }
    all.into_iter().flatten().count() + memory.settings.len()
}

/// A copy of a captured host, gone when dropped.
pub struct Copied(pub PathBuf);

impl Copied {
    pub fn of(name: &str, test: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("mrscope-memory-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        copy(&fixture(name), &root);
        Self(root)
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    pub fn replace(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.at(path)).unwrap();
        assert!(text.contains(from), "{path} has no {from:?}");
        self.write(path, &text.replace(from, to));
    }

    /// Puts a folder where a file was: it opens, and can't be read.
    pub fn break_file(&self, path: &str) {
        fs::remove_file(self.at(path)).unwrap();
        fs::create_dir(self.at(path)).unwrap();
    }

    pub fn read(&self) -> HostMemory {
        read(&self.0)
    }

    pub fn told(&self) -> Vec<String> {
        told(&self.read(), &self.0)
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Bytes of a file's pages by node and size, of nodes that list memory in their own folders.
pub type Pools = BTreeMap<(u32, u64), u64>;

pub fn pools_oracle(root: &Path, file: &str) -> Pools {
    let mut pools = BTreeMap::new();
    for node in 0..64 {
        let folder = root.join(format!("sys/devices/system/node/node{node}/hugepages"));
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let kib: u64 = name.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
            let pages = fs::read_to_string(entry.path().join(file)).unwrap();
            let pages: u64 = pages.trim().parse().unwrap();
            pools.insert((node, kib << 10), pages * (kib << 10));
        }
    }
    pools
}

pub fn sizes_oracle(root: &Path, file: &str) -> BTreeMap<u64, u64> {
    let folder = root.join("sys/kernel/mm/hugepages");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        let kib: u64 = name.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
        let pages = fs::read_to_string(entry.path().join(file)).unwrap();
        (kib << 10, pages.trim().parse::<u64>().unwrap() * (kib << 10))
    };
    entries.map(size).collect()
}
