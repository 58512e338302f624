//! The readers of the host's memory, on captured hosts, on copies of them with one thing wrong, and
//! on this machine. The oracles are the procfs crate, and a walk over sysfs of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

mod captured;

use captured::{Copied, Pools, copy, figures, fixture, pools_oracle, read, sizes_oracle, told};
use mrscope::host::{Host, HostMemory, MemInfo, MemoryReader, VmEvents};
use procfs::{FromRead, Meminfo, VmStat};

const HOSTS: [&str; 7] = [
    "base_64k",
    "eight_nodes",
    "limited_cgroups",
    "memoryless_node",
    "no_hugetlb",
    "one_gib_default",
    "two_devices",
];

type Fault = fn(&Copied);

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// /proc/meminfo by the procfs crate.
fn meminfo_oracle(root: &Path) -> MemInfo {
    let it = Meminfo::from_read(fs::File::open(root.join("proc/meminfo")).unwrap()).unwrap();
    MemInfo {
        total_bytes: Some(it.mem_total),
        available_bytes: it.mem_available,
        hugetlb_bytes: it.hugetlb,
        default_page_size_bytes: it.hugepagesize,
        anon_hugepages_bytes: it.anon_hugepages,
        shmem_hugepages_bytes: it.shmem_hugepages,
        file_hugepages_bytes: it.file_huge_pages,
        mlocked_bytes: it.mlocked,
        unevictable_bytes: it.unevictable,
        page_tables_bytes: it.page_tables,
        secondary_page_tables_bytes: it.secondary_page_tables,
    }
}

/// /proc/vmstat by the procfs crate.
fn vmstat_oracle(root: &Path) -> VmEvents {
    let it = VmStat::from_read(fs::File::open(root.join("proc/vmstat")).unwrap()).unwrap().0;
    let count = |name: &str| it.get(name).map(|count| u64::try_from(*count).unwrap());
    VmEvents {
        pins_acquired: count("nr_foll_pin_acquired"),
        pins_released: count("nr_foll_pin_released"),
        oom_kills: count("oom_kill"),
        hugepage_allocations: count("htlb_buddy_alloc_success"),
        hugepage_allocation_failures: count("htlb_buddy_alloc_fail"),
        thp_faults: count("thp_fault_alloc"),
        thp_fallbacks: count("thp_fault_fallback"),
        thp_collapses: count("thp_collapse_alloc"),
        thp_splits: count("thp_split_page"),
    }
}

#[test]
fn lines_of_captured_hosts_are_what_procfs_reads() {
    for name in HOSTS {
        let root = fixture(name);
        let memory = read(&root);
        assert_eq!(memory.info, meminfo_oracle(&root), "{name}");
        assert_eq!(memory.events, vmstat_oracle(&root), "{name}");
        assert_eq!(told(&memory, &root), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn every_pool_of_captured_hosts_is_there_in_bytes() {
    for name in HOSTS {
        let root = fixture(name);
        let memory = read(&root);
        let pools = |figure: fn(&mrscope::host::NodePool) -> Option<u64>| -> Pools {
            memory
                .pools
                .iter()
                .map(|pool| ((pool.numa_node, pool.page_bytes), figure(pool).unwrap()))
                .collect()
        };
        assert_eq!(pools(|pool| pool.pool_bytes), pools_oracle(&root, "nr_hugepages"), "{name}");
        assert_eq!(pools(|pool| pool.free_bytes), pools_oracle(&root, "free_hugepages"), "{name}");
        let surplus = pools_oracle(&root, "surplus_hugepages");
        assert_eq!(pools(|pool| pool.surplus_bytes), surplus, "{name}");
        let sizes = |figure: fn(&mrscope::host::PageSize) -> Option<u64>| -> BTreeMap<u64, u64> {
            memory.sizes.iter().map(|size| (size.page_bytes, figure(size).unwrap())).collect()
        };
        let reserved = sizes_oracle(&root, "resv_hugepages");
        assert_eq!(sizes(|size| size.reserved_bytes), reserved, "{name}");
        let overcommit = sizes_oracle(&root, "nr_overcommit_hugepages");
        assert_eq!(sizes(|size| size.overcommit_limit_bytes), overcommit, "{name}");
    }
}

/// What the oracles above could get wrong as mrscope does.
#[test]
fn some_figures_of_captured_hosts_by_hand() {
    let memory = read(&fixture("base_64k"));
    let sizes: Vec<_> = memory.sizes.iter().map(|size| size.page_bytes).collect();
    assert_eq!(sizes, [2 * MIB, 512 * MIB, 16 * GIB]);
    assert_eq!(memory.pools.len(), 6);
    let free = |node, size| {
        let of =
            |pool: &&mrscope::host::NodePool| (pool.numa_node, pool.page_bytes) == (node, size);
        memory.pools.iter().find(of).unwrap().free_bytes
    };
    assert_eq!(free(1, 16 * GIB), Some(32 * GIB));
    assert_eq!(free(1, 512 * MIB), Some(GIB));
    assert_eq!(memory.sizes[0].reserved_bytes, Some(10 * MIB));
    assert_eq!(memory.info.default_page_size_bytes, Some(512 * MIB));
    let one_gib = read(&fixture("one_gib_default"));
    assert_eq!(one_gib.info.default_page_size_bytes, Some(GIB));
    assert_eq!(one_gib.sizes[0].overcommit_limit_bytes, Some(GIB));
    assert_eq!(read(&fixture("eight_nodes")).pools.len(), 16);
}

#[test]
fn a_kernel_without_hugepages_shows_none_and_is_in_no_trouble() {
    let memory = read(&fixture("no_hugetlb"));
    assert!(memory.sizes.is_empty() && memory.pools.is_empty() && memory.settings.is_empty());
    assert_eq!(memory.cgroups_omitted, None);
    assert_eq!(memory.info.hugetlb_bytes, None);
    assert_eq!(memory.info.anon_hugepages_bytes, None);
    assert_eq!(memory.info.secondary_page_tables_bytes, None);
    assert_eq!(memory.events.thp_faults, None);
    assert_eq!(memory.info.total_bytes, Some(8_192_000 << 10));
    assert_eq!(memory.events.pins_acquired, Some(12));
}

#[test]
fn a_node_without_memory_has_no_pool() {
    let nodes = |memory: &HostMemory| -> Vec<_> {
        memory.pools.iter().map(|pool| pool.numa_node).collect()
    };
    assert_eq!(nodes(&read(&fixture("memoryless_node"))), [0, 0]);
    // Newer kernels give every node the folders.
    let host = Copied::of("memoryless_node", "memoryless");
    let node = "sys/devices/system/node";
    copy(&host.at(&format!("{node}/node0")), &host.at(&format!("{node}/node1")));
    assert_eq!(nodes(&host.read()), [0, 0]);
    assert_eq!(host.told(), Vec::<String>::new());
}

#[test]
fn a_kernel_without_numa_has_all_on_node_0() {
    let host = Copied::of("eight_nodes", "flat");
    fs::remove_dir_all(host.at("sys/devices")).unwrap();
    let memory = host.read();
    assert_eq!(host.told(), Vec::<String>::new());
    let all = sizes_oracle(&host.0, "nr_hugepages");
    let pools = memory.pools.iter().map(|pool| (pool.page_bytes, pool.pool_bytes.unwrap()));
    assert_eq!(pools.collect::<BTreeMap<_, _>>(), all);
    assert!(memory.pools.iter().all(|pool| pool.numa_node == 0));
}

#[test]
fn a_kernel_that_does_not_say_who_has_memory_shows_every_node() {
    let host = Copied::of("eight_nodes", "untold");
    fs::remove_file(host.at("sys/devices/system/node/has_memory")).unwrap();
    assert_eq!(host.read().pools.len(), 16);
    assert_eq!(host.told(), Vec::<String>::new());
    host.write("sys/devices/system/node/has_memory", "0-x\n");
    assert_eq!(host.read().pools.len(), 16);
    let said = "sys/devices/system/node/has_memory: expected nodes such as 0-1,3";
    assert_eq!(host.told(), [said]);
}

#[test]
fn modes_of_transparent_hugepages_are_those_the_files_name() {
    let memory = read(&fixture("one_gib_default"));
    let chosen: Vec<_> = memory
        .settings
        .iter()
        .map(|setting| {
            let chosen = setting.modes.iter().find(|(_, chosen)| *chosen).unwrap();
            (setting.name, chosen.0.as_str(), setting.modes.len())
        })
        .collect();
    let expected =
        [("enabled", "madvise", 3), ("defrag", "madvise", 5), ("shmem_enabled", "never", 6)];
    assert_eq!(chosen, expected);
}

#[test]
fn one_wrong_thing_hides_no_other_and_is_named() {
    const NODE: &str = "sys/devices/system/node/node5/hugepages/hugepages-2048kB";
    const ALL: &str = "sys/kernel/mm/hugepages/hugepages-2048kB";
    let is_folder = "Is a directory (os error 21)";
    let no_file = "No such file or directory (os error 2)";
    let whole = figures(&read(&fixture("eight_nodes")));
    assert_eq!(whole, 20 + 2 * 2 + 8 * 2 * 3 + 3);
    let faults: [(&str, Fault, usize, String); 12] = [
        (
            "missing",
            |host| host.replace("proc/meminfo", "Mlocked:", "Other:"),
            1,
            "proc/meminfo: expected a line \"Mlocked: KIB kB\", KIB below 2^54".into(),
        ),
        (
            "word",
            |host| host.replace("proc/meminfo", "AnonHugePages:   8388608", "AnonHugePages: many"),
            1,
            "proc/meminfo: line 38: expected \"AnonHugePages: KIB kB\", KIB below 2^54".into(),
        ),
        (
            "huge",
            |host| {
                host.replace(
                    "proc/meminfo",
                    "MemTotal:       2113929216",
                    "MemTotal: 99999999999999999",
                );
            },
            1,
            "proc/meminfo: line 1: expected \"MemTotal: KIB kB\", KIB below 2^54".into(),
        ),
        (
            "event",
            |host| host.replace("proc/vmstat", "oom_kill 2", "oom_kill -2"),
            1,
            "proc/vmstat: line 6: expected \"oom_kill COUNT\", COUNT below 2^64".into(),
        ),
        (
            "meminfo",
            |host| host.break_file("proc/meminfo"),
            11,
            format!("proc/meminfo: {is_folder}"),
        ),
        (
            "pool",
            |host| host.break_file(&format!("{NODE}/free_hugepages")),
            1,
            format!("{NODE}/free_hugepages: {is_folder}"),
        ),
        (
            "pages",
            |host| host.write(&format!("{NODE}/nr_hugepages"), "8796093022208\n"),
            1,
            format!("{NODE}/nr_hugepages: expected at most 8796093022207 pages of this size"),
        ),
        (
            "text",
            |host| host.write(&format!("{ALL}/resv_hugepages"), "few\n"),
            1,
            format!("{ALL}/resv_hugepages: expected a number"),
        ),
        (
            "folder",
            |host| fs::remove_dir_all(host.at(NODE)).unwrap(),
            3,
            format!("{NODE}: expected this size, as it is in kernel/mm/hugepages"),
        ),
        (
            "node",
            |host| fs::remove_dir_all(host.at("sys/devices/system/node/node5")).unwrap(),
            6,
            format!("sys/devices/system/node/node5/hugepages: {no_file}"),
        ),
        (
            "mode",
            |host| host.write("sys/kernel/mm/transparent_hugepage/defrag", "always never\n"),
            1,
            "sys/kernel/mm/transparent_hugepage/defrag: expected modes, one of them in brackets"
                .into(),
        ),
        (
            "name",
            |host| host.write("sys/kernel/mm/hugepages/hugepages-2MB/nr_hugepages", "1\n"),
            0,
            "sys/kernel/mm/hugepages/hugepages-2MB: expected the name hugepages-KIBkB".into(),
        ),
    ];
    for (name, fault, lost, expected) in faults {
        let host = Copied::of("eight_nodes", name);
        fault(&host);
        assert_eq!(host.told(), [expected], "{name}");
        assert_eq!(figures(&host.read()), whole - lost, "{name}");
    }
}

#[test]
fn a_node_that_goes_with_its_memory_is_no_trouble() {
    let host = Copied::of("eight_nodes", "unplugged");
    let mut reader = MemoryReader::new(Host::at(&host.0));
    assert_eq!(reader.read().pools.len(), 16);
    fs::remove_dir_all(host.at("sys/devices/system/node/node5")).unwrap();
    host.write("sys/devices/system/node/has_memory", "0-4,6-7\n");
    let memory = reader.read();
    assert_eq!(memory.pools.len(), 14);
    assert_eq!(told(&memory, &host.0), Vec::<String>::new());
}

#[test]
fn files_that_may_be_missing_are_missed_by_nobody() {
    let host = Copied::of("eight_nodes", "lean");
    fs::remove_file(host.at("proc/vmstat")).unwrap();
    fs::remove_file(host.at("sys/kernel/mm/transparent_hugepage/shmem_enabled")).unwrap();
    let memory = host.read();
    assert_eq!(told(&memory, &host.0), Vec::<String>::new());
    assert_eq!(memory.events, VmEvents::default());
    assert_eq!(memory.settings.len(), 2);
}

/// Compares what did not move meanwhile.
fn same_where_still<T: PartialEq + std::fmt::Debug>(before: &T, ours: &T, after: &T) -> bool {
    if before == after {
        assert_eq!(ours, before);
    }
    before == after
}

#[test]
fn this_machine_s_memory_is_what_procfs_and_sysfs_say() {
    let root = Path::new("/");
    let files = ["nr_hugepages", "free_hugepages", "surplus_hugepages"];
    let pools = || files.map(|file| pools_oracle(root, file));
    let (info, pools_before) = (meminfo_oracle(root), pools());
    let memory = read(root);
    let (info_after, pools_after) = (meminfo_oracle(root), pools());
    assert_eq!(told(&memory, root), Vec::<String>::new());
    assert_eq!(memory.info.total_bytes, info.total_bytes);
    let fields: [fn(&MemInfo) -> Option<u64>; 6] = [
        |info| info.hugetlb_bytes,
        |info| info.default_page_size_bytes,
        |info| info.anon_hugepages_bytes,
        |info| info.mlocked_bytes,
        |info| info.page_tables_bytes,
        |info| info.secondary_page_tables_bytes,
    ];
    let still = fields
        .iter()
        .filter(|field| same_where_still(&field(&info), &field(&memory.info), &field(&info_after)));
    assert!(still.count() > 0);
    let figures: [fn(&mrscope::host::NodePool) -> Option<u64>; 3] =
        [|pool| pool.pool_bytes, |pool| pool.free_bytes, |pool| pool.surplus_bytes];
    for ((before, after), figure) in pools_before.iter().zip(&pools_after).zip(figures) {
        let ours: Pools = memory
            .pools
            .iter()
            .map(|pool| ((pool.numa_node, pool.page_bytes), figure(pool).unwrap()))
            .collect();
        same_where_still(before, &ours, after);
    }
}
