use super::*;

const SIZE: u64 = 64 << 20;

fn node(number: u32, distances: [(u32, u32); 2]) -> Node {
    Node { number, free_bytes: Some(1 << 30), distances: distances.into() }
}

fn pool(page_bytes: u64, numa_node: u32, pages: u64) -> NodePool {
    let free_bytes = Some(pages * page_bytes);
    NodePool { page_bytes, numa_node, pool_bytes: free_bytes, free_bytes, ..NodePool::default() }
}

/// A host that has all of it on both nodes, and a device on node 1.
fn full() -> Facts {
    let size = |page_bytes| PageSize { page_bytes, ..PageSize::default() };
    Facts {
        base_page_bytes: 4096,
        available_bytes: Some(4 << 30),
        thp: Some("madvise".into()),
        sizes: vec![size(2 << 20), size(1 << 30)],
        pools: (0..2).flat_map(|node| [pool(2 << 20, node, 32), pool(1 << 30, node, 1)]).collect(),
        nodes: vec![node(0, [(0, 10), (1, 20)]), node(1, [(0, 20), (1, 10)])],
        device_node: Some(1),
    }
}

/// Names of rows, with what is near.
fn rows(facts: &Facts) -> Vec<String> {
    let named = |row: &Row| {
        let pages = pages_name(row.pages, facts.base_page_bytes);
        let node = row.node.map(|node| node.to_string()).unwrap_or_default();
        let place = match row.place {
            Some(Place::Near) => "n",
            Some(Place::Far) => "f",
            None => "",
        };
        format!("{pages}{}{node}{place}", if row.touched { "+" } else { "-" })
    };
    choose(facts, SIZE).rows.iter().map(named).collect()
}

fn left_out(facts: &Facts) -> Vec<String> {
    choose(facts, SIZE).left_out.iter().map(|it| format!("{}: {}", it.what, it.why)).collect()
}

const NO_UNTOUCHED: [&str; 2] = [
    "2M untouched: pages of a pool are filled before they are registered: touching one that can't \
     be had ends a process",
    "1G untouched: pages of a pool are filled before they are registered: touching one that can't \
     be had ends a process",
];

#[test]
fn a_host_that_has_all_has_all_rows_the_near_node_first() {
    let facts = full();
    assert_eq!(
        rows(&facts),
        [
            "4K+1n", "4K-1n", "4K+0f", "4K-0f", "THP+1n", "THP-1n", "THP+0f", "THP-0f", "2M+1n",
            "2M+0f", "1G+1n", "1G+0f"
        ]
    );
    assert_eq!(left_out(&facts), NO_UNTOUCHED);
}

#[test]
fn where_the_device_tells_no_node_none_is_near() {
    let facts = Facts { device_node: None, ..full() };
    assert_eq!(rows(&facts)[..4], ["4K+0", "4K-0", "4K+1", "4K-1"]);
    // Nor is a node without memory.
    let facts = Facts { device_node: Some(7), ..full() };
    assert_eq!(rows(&facts)[..4], ["4K+0", "4K-0", "4K+1", "4K-1"]);
}

#[test]
fn of_many_nodes_the_farthest_is_taken() {
    let mut facts = full();
    facts.nodes = vec![
        Node { distances: [(0, 10), (1, 12), (2, 32), (3, 32)].into(), ..node(0, [(0, 10); 2]) },
        node(1, [(0, 12), (1, 10)]),
        node(2, [(0, 32), (2, 10)]),
        node(3, [(0, 32), (3, 10)]),
    ];
    facts.device_node = Some(0);
    assert_eq!(rows(&facts)[..4], ["4K+0n", "4K-0n", "4K+2f", "4K-2f"]);
    let nodes = "nodes 1, 3: no other is farther from node 0 than node 2";
    assert_eq!(left_out(&facts)[0], nodes);
}

#[test]
fn a_host_with_one_node_or_none_has_no_far_one() {
    let mut facts = full();
    facts.nodes.truncate(1);
    facts.device_node = None;
    assert_eq!(rows(&facts), ["4K+0", "4K-0", "THP+0", "THP-0", "2M+0", "1G+0"]);
    assert_eq!(left_out(&facts)[0], "far node: this host has memory on one NUMA node");
    facts.nodes.clear();
    assert_eq!(rows(&facts), ["4K+", "4K-", "THP+", "THP-", "2M+", "1G+"]);
    assert_eq!(left_out(&facts)[0], "far node: this kernel knows no NUMA nodes");
}

#[test]
fn without_free_pages_of_a_pool_its_rows_are_left_out() {
    let mut facts = full();
    facts.pools = vec![pool(2 << 20, 0, 31), pool(2 << 20, 1, 32), pool(1 << 30, 0, 0)];
    let names = rows(&facts);
    assert_eq!(names[names.len() - 1], "2M+1n");
    assert_eq!(
        left_out(&facts),
        [
            "2M on node 0: 31 of 32 such pages are free there; \
             /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages makes more",
            NO_UNTOUCHED[0],
            "1G on node 1: 0 of 1 such pages are free there; \
             /sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages makes more",
            "1G on node 0: 0 of 1 such pages are free there; \
             /sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages makes more",
        ]
    );
}

#[test]
fn pages_that_are_promised_to_somebody_are_not_taken() {
    let mut facts = full();
    facts.sizes[0].reserved_bytes = Some(32 * (2 << 20));
    assert!(rows(&facts).contains(&"2M+0f".to_owned()));
    facts.sizes[0].reserved_bytes = Some(33 * (2 << 20));
    assert!(!rows(&facts).iter().any(|row| row.starts_with("2M")));
    assert!(left_out(&facts)[0].starts_with("2M on node 1: 31 of 32 such pages are free there; "));
}

#[test]
fn a_host_without_such_pages_at_all_says_so() {
    let facts = Facts { thp: Some("never".into()), sizes: Vec::new(), ..full() };
    assert_eq!(rows(&facts), ["4K+1n", "4K-1n", "4K+0f", "4K-0f"]);
    assert_eq!(
        left_out(&facts),
        [
            "THP: transparent hugepages are off: echo madvise \
             >/sys/kernel/mm/transparent_hugepage/enabled",
            "2M: this machine has no hugepages of that size",
            "1G: this machine has no hugepages of that size",
        ]
    );
    let facts = Facts { thp: None, ..full() };
    assert_eq!(left_out(&facts)[0], "THP: this kernel has no transparent hugepages");
}

#[test]
fn memory_that_others_need_is_left_to_them() {
    let facts = Facts { available_bytes: Some(2 * SIZE - 1), ..full() };
    assert_eq!(rows(&facts), ["2M+1n", "2M+0f", "1G+1n", "1G+0f"]);
    let first = &left_out(&facts)[0];
    assert!(first.starts_with("4K on node 1: 128.0 MiB of memory are available, "), "{first}");
    let mut facts = Facts { available_bytes: Some(2 * SIZE), ..full() };
    facts.nodes[0].free_bytes = Some(SIZE - 4096);
    assert_eq!(rows(&facts)[..3], ["4K+1n", "4K-1n", "THP+1n"]);
    let free = "4K on node 0: 64.0 MiB of 64 MiB are free there, caches not counted";
    assert_eq!(left_out(&facts)[0], free);
}

#[test]
fn base_pages_are_called_by_their_size() {
    let names = Pages::ALL.map(|pages| pages_name(pages, 16384));
    assert_eq!(names, ["16K", "THP", "2M", "1G"]);
}
