//! Memory of the host, against /sys and /proc.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::groups::Cgroup;
use crate::boot::NODES;
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::{Workload, number};

const NODE_FOLDER: &str = "/sys/devices/system/node";
const SIZE_FOLDER: &str = "/sys/kernel/mm/hugepages";
const MIB: f64 = 1024.0 * 1024.0;
const SIZE_2M: f64 = 2.0 * MIB;
const SIZE_1G: f64 = 1024.0 * MIB;
const OVERCOMMIT_2M: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

/// Metrics with the files of each node, and of the whole host.
const BY_NODE: [(&str, &str); 3] =
    [("pool", "nr_hugepages"), ("free", "free_hugepages"), ("surplus", "surplus_hugepages")];
const BY_SIZE: [(&str, &str); 2] =
    [("reserved", "resv_hugepages"), ("overcommit_limit", "nr_overcommit_hugepages")];

type Series = BTreeMap<String, f64>;

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

fn read_number(path: &str) -> Result<f64, String> {
    let text = read(path)?;
    text.trim().parse().map_err(|_| format!("{path}: {text:?}"))
}

fn names(folder: &str) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{folder}: {error}"))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// Page sizes of a folder, in bytes, with the names of their folders.
fn sizes(folder: &str) -> Result<Vec<(f64, String)>, String> {
    let named = |name: String| {
        let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<f64>().ok()?;
        Some((size * 1024.0, name))
    };
    Ok(names(folder)?.into_iter().filter_map(named).collect())
}

/// Nodes by their numbers.
fn nodes() -> Result<Vec<u32>, String> {
    Ok(names(NODE_FOLDER)?.iter().filter_map(|n| n.strip_prefix("node")?.parse().ok()).collect())
}

fn on_node(what: &str, node: u32, size: f64) -> String {
    format!("mrscope_hugepages_{what}_bytes{{numa_node=\"{node}\",page_size=\"{size}\"}}")
}

fn of_size(what: &str, size: f64) -> String {
    format!("mrscope_hugepages_{what}_bytes{{page_size=\"{size}\"}}")
}

/// All that should be on the page, by sysfs.
fn by_sysfs() -> Result<Series, String> {
    let mut series = Series::new();
    for node in nodes()? {
        let folder = format!("{NODE_FOLDER}/node{node}/hugepages");
        for (size, name) in sizes(&folder)? {
            for (what, file) in BY_NODE {
                let pages = read_number(&format!("{folder}/{name}/{file}"))?;
                series.insert(on_node(what, node, size), pages * size);
            }
        }
    }
    for (size, name) in sizes(SIZE_FOLDER)? {
        for (what, file) in BY_SIZE {
            let pages = read_number(&format!("{SIZE_FOLDER}/{name}/{file}"))?;
            series.insert(of_size(what, size), pages * size);
        }
    }
    Ok(series)
}

/// All that is on the page.
fn by_page(page: &Page) -> Series {
    let metrics = BY_NODE.iter().chain(&BY_SIZE);
    let prefixes: Vec<_> =
        metrics.map(|(what, _)| format!("mrscope_hugepages_{what}_bytes{{")).collect();
    page.starting("mrscope_hugepages_")
        .filter(|(series, _)| prefixes.iter().any(|prefix| series.starts_with(prefix.as_str())))
        .map(|(series, bytes)| (series.to_owned(), bytes))
        .collect()
}

/// Nothing moves the pools in the meantime: nobody else has hugepages in this guest.
fn as_sysfs_says(exporter: &Exporter) -> Result<Series, String> {
    let (page, told) = (exporter.page()?, by_sysfs()?);
    in_state(&page, "hugepages", "ok")?;
    let shown = by_page(&page);
    if shown != told {
        let differ = |a: &Series, b: &Series| {
            a.iter()
                .filter(|(k, v)| b.get(*k) != Some(v))
                .map(|(k, v)| format!("{k} {v}"))
                .collect()
        };
        let (seen, expected): (Vec<_>, Vec<_>) = (differ(&shown, &told), differ(&told, &shown));
        return Err(format!("the page has {seen:?}, sysfs {expected:?}"));
    }
    Ok(shown)
}

/// From one to the other that moved by so much, and nothing else did.
fn only_moved(before: &Series, after: &Series, expected: &[(String, f64)]) -> Outcome {
    for (series, bytes) in after {
        let moved = bytes - before.get(series).copied().unwrap_or(0.0);
        let by = expected.iter().find(|(name, _)| name == series).map_or(0.0, |(_, by)| *by);
        equal(&format!("{series} moved"), moved, by)?;
    }
    equal("series", after.len() as f64, before.len() as f64)
}

/// The one node that has a page of 1 GiB, which every guest is booted with.
fn node_of_the_largest(pools: &Series) -> Result<u32, String> {
    let on: Vec<u32> = (0..NODES)
        .filter(|node| pools.get(&on_node("pool", *node, SIZE_1G)).is_some_and(|b| *b > 0.0))
        .collect();
    match on[..] {
        [node] => Ok(node),
        _ => Err(format!("pages of 1 GiB are on the nodes {on:?}: the case proves nothing")),
    }
}

/// A file of the kernel's with another number in it for as long as this lives.
struct Written {
    path: String,
    before: String,
}

impl Written {
    fn to(path: &str, number: u32) -> Result<Self, String> {
        let written = Self { path: path.to_owned(), before: read(path)? };
        let outcome = fs::write(path, number.to_string());
        outcome.map_err(|error| format!("{path}: {error}")).map(|()| written)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // Whatever came of the case, the next one finds what it expects.
        let _ = fs::write(&self.path, &self.before);
    }
}

pub fn hugepages_are_what_sysfs_says_of_each_size_and_node() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let pools = as_sysfs_says(&exporter)?;
    equal("nodes", nodes()?.len() as f64, f64::from(NODES))?;
    node_of_the_largest(&pools)?;
    for node in 0..NODES {
        let pool = pools.get(&on_node("pool", node, SIZE_2M)).copied().unwrap_or(0.0);
        equal(&format!("pages of 2 MiB on node {node}"), pool, 96.0 * SIZE_2M)?;
    }
    // A pool that changes under its reader.
    let grown = format!("{NODE_FOLDER}/node1/hugepages/hugepages-2048kB/nr_hugepages");
    let grown = Written::to(&grown, 100)?;
    let by = 4.0 * SIZE_2M;
    let moved = [(on_node("pool", 1, SIZE_2M), by), (on_node("free", 1, SIZE_2M), by)];
    only_moved(&pools, &as_sysfs_says(&exporter)?, &moved)?;
    drop(grown);
    only_moved(&pools, &as_sysfs_says(&exporter)?, &[])?;
    exporter.stop().map(|_| ())
}

pub fn pages_that_a_process_takes_of_a_node_are_free_no_more() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let before = as_sysfs_says(&exporter)?;
    let node_1g = node_of_the_largest(&before)?;
    let mut workload = Workload::start()?;
    let takes = [
        ("size=16M pages=2m", 1, SIZE_2M, 16.0 * MIB),
        ("size=6M pages=2m", 0, SIZE_2M, 6.0 * MIB),
        ("size=1G pages=1g", node_1g, SIZE_1G, SIZE_1G),
    ];
    for (what, node, size, bytes) in takes {
        let error = |error| format!("{what} on node {node}: {error}");
        workload.ask(&format!("map {what} node={node}"))?;
        let held = as_sysfs_says(&exporter).map_err(error)?;
        only_moved(&before, &held, &[(on_node("free", node, size), -bytes)]).map_err(error)?;
        workload.ask("unmap")?;
        let after = as_sysfs_says(&exporter).map_err(error)?;
        only_moved(&before, &after, &[]).map_err(error)?;
    }
    workload.end()?;
    exporter.stop().map(|_| ())
}

pub fn what_is_mapped_untouched_is_reserved_and_beyond_the_pool_surplus() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let before = as_sysfs_says(&exporter)?;
    let mut workload = Workload::start()?;
    workload.ask("map size=8M pages=2m touch=0")?;
    let held = as_sysfs_says(&exporter)?;
    only_moved(&before, &held, &[(of_size("reserved", SIZE_2M), 8.0 * MIB)])?;
    workload.ask("unmap")?;
    only_moved(&before, &as_sysfs_says(&exporter)?, &[])?;

    let allowed = Written::to(OVERCOMMIT_2M, 8)?;
    beyond_the_pool(&exporter, &mut workload, &before)?;
    drop(allowed);
    only_moved(&before, &as_sysfs_says(&exporter)?, &[])?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// Four pages more than there are.
fn beyond_the_pool(exporter: &Exporter, workload: &mut Workload, before: &Series) -> Outcome {
    let allowed = as_sysfs_says(exporter)?;
    only_moved(before, &allowed, &[(of_size("overcommit_limit", SIZE_2M), 8.0 * SIZE_2M)])?;
    workload.ask("map size=392M pages=2m touch=0")?;
    let held = as_sysfs_says(exporter)?;
    let of_nodes = |what: &str| -> f64 {
        (0..NODES).filter_map(|node| held.get(&on_node(what, node, SIZE_2M))).sum()
    };
    equal("surplus", of_nodes("surplus"), 4.0 * SIZE_2M)?;
    equal("pool", of_nodes("pool"), 196.0 * SIZE_2M)?;
    equal("free", of_nodes("free"), 196.0 * SIZE_2M)?;
    equal("reserved", held[&of_size("reserved", SIZE_2M)], 196.0 * SIZE_2M)?;
    workload.ask("unmap").map(|_| ())
}

/// A limit of a cgroup for its lifetime, in a guest whose root hands hugetlb down.
struct Limited(Cgroup);

impl Limited {
    fn make(name: &'static str) -> Result<Self, String> {
        let control = "/sys/fs/cgroup/cgroup.subtree_control";
        fs::write(control, "+hugetlb").map_err(|error| format!("{control}: {error}"))?;
        Cgroup::make(name).map(Self)
    }

    fn file(&self, name: &str) -> String {
        format!("/sys/fs/cgroup/{}/hugetlb.2MB.{name}", self.0.0)
    }

    fn limit(&self, name: &str, bytes: f64) -> Outcome {
        let file = self.file(name);
        fs::write(&file, bytes.to_string()).map_err(|error| format!("{file}: {error}"))
    }

    fn series(&self, metric: &str) -> String {
        let name = self.0.0;
        format!("mrscope_hugepages_cgroup_{metric}{{cgroup=\"/{name}\",page_size=\"2097152\"}}")
    }

    /// What the page has of it is what its files say.
    fn is_told(&self, page: &Page, what: &str, metric: &str, expected: f64) -> Outcome {
        let series = self.series(metric);
        let shown = page.value(&series).ok_or_else(|| format!("{what}: {series} is absent"))?;
        equal(&format!("{what}: {series}"), shown, expected)
    }

    fn failures(&self) -> Result<f64, String> {
        let events = read(&self.file("events"))?;
        let count = events.lines().find_map(|line| line.strip_prefix("max ")?.parse().ok());
        count.ok_or_else(|| format!("no failures in {events:?}"))
    }
}

pub fn a_cgroup_s_limit_on_hugepages_is_told_with_what_it_refused() -> Outcome {
    const SIGBUS: f64 = 7.0;
    let limited = Limited::make("lab_huge")?;
    limited.limit("max", 4.0 * MIB)?;
    let exporter = Exporter::start(&[])?;
    let is_told = |what: &str, usage: f64| -> Result<f64, String> {
        let (page, failed) = (exporter.page()?, limited.failures()?);
        equal(what, read_number(&limited.file("current"))?, usage)?;
        limited.is_told(&page, what, "usage_bytes", usage)?;
        limited.is_told(&page, what, "limit_bytes", 4.0 * MIB)?;
        limited.is_told(&page, what, "failures_total", failed)?;
        let reserved = read_number(&limited.file("rsvd.current"))?;
        limited.is_told(&page, what, "reserved_bytes", reserved)?;
        Ok(failed)
    };
    let mut workload = Workload::start_in("lab_huge")?;
    let none = is_told("nothing held", 0.0)?;
    workload.ask("map size=4M pages=2m")?;
    equal("refused", is_told("all held", 4.0 * MIB)?, none)?;
    // Mapping it is allowed, only touching it is not.
    let reply = workload.ask("trial size=2M pages=2m")?;
    equal("its signal", number(&reply, "signal")?, SIGBUS)?;
    let refused = is_told("after a touch too much", 4.0 * MIB)?;
    if refused <= none {
        return Err(format!("{reply}, and the kernel refused nothing: the case proves nothing"));
    }

    limited.limit("rsvd.max", 6.0 * MIB)?;
    let page = exporter.page()?;
    limited.is_told(&page, "reserving limited", "reserved_limit_bytes", 6.0 * MIB)?;
    let reply = workload.ask("trial size=4M pages=2m touch=0")?;
    if reply["errno_name"] != "ENOMEM" {
        return Err(format!("{reply}: the case proves nothing"));
    }
    workload.ask("map size=2M pages=2m touch=0")?;
    is_told("with one more reserved", 4.0 * MIB)?;
    let reserved = limited.series("reserved_bytes");
    equal("reserved", exporter.page()?.or_zero(&reserved), 6.0 * MIB)?;
    workload.end()?;
    wait_for("its cgroup to hold none", || Ok(read_number(&limited.file("current"))? == 0.0))?;
    is_told("all given back", 0.0)?;

    let prefix = format!("cgroup=\"/{}\"", limited.0.0);
    drop(limited);
    if Path::new("/sys/fs/cgroup/lab_huge").exists() {
        return Err("the cgroup can't be removed: the case proves nothing".to_owned());
    }
    let page = exporter.page()?;
    let left: Vec<_> =
        page.starting("mrscope_").filter(|(name, _)| name.contains(&prefix)).collect();
    if !left.is_empty() {
        return Err(format!("of a cgroup that is gone there is {left:?}"));
    }
    exporter.stop().map(|_| ())
}

/// A cgroup that gets its limit while mrscope runs.
pub fn a_limit_that_comes_later_is_found() -> Outcome {
    let exporter = Exporter::start(&[])?;
    exporter.page()?;
    let limited = Limited::make("lab_later")?;
    limited.limit("max", 2.0 * MIB)?;
    let limit = limited.series("limit_bytes");
    wait_for("the limit to be found", || Ok(exporter.page()?.value(&limit) == Some(2.0 * MIB)))?;
    limited.limit("max", 8.0 * MIB)?;
    equal("changed", exporter.page()?.or_zero(&limit), 8.0 * MIB)?;
    exporter.stop().map(|_| ())
}

/// Lines of meminfo in bytes, of vmstat as they are.
fn lines(path: &str, unit: f64) -> Result<Series, String> {
    let text = read(path)?;
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.trim_end_matches(':').to_owned();
        Some((name, words.next()?.parse::<f64>().ok()? * unit))
    };
    Ok(text.lines().filter_map(line).collect())
}

const AS_IN_MEMINFO: [(&str, &str); 10] = [
    ("total", "MemTotal"),
    ("available", "MemAvailable"),
    ("hugetlb", "Hugetlb"),
    ("anon_hugepages", "AnonHugePages"),
    ("shmem_hugepages", "ShmemHugePages"),
    ("file_hugepages", "FileHugePages"),
    ("mlocked", "Mlocked"),
    ("unevictable", "Unevictable"),
    ("page_tables", "PageTables"),
    ("secondary_page_tables", "SecPageTables"),
];

pub fn memory_of_the_host_is_what_proc_says() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    // So that what is compared is not zero: what is locked, and pages that are transparent.
    workload.ask("reg count=1 size=4M pages=thp")?;
    workload.ask("dereg count=all")?;
    workload.ask("map size=8M")?;
    workload.ask("lock call=mlock size=8M")?;
    let before = lines("/proc/meminfo", 1024.0)?;
    let page = exporter.page()?;
    let after = lines("/proc/meminfo", 1024.0)?;
    let mut stood = Vec::new();
    for (what, name) in AS_IN_MEMINFO {
        let series = format!("mrscope_memory_{what}_bytes");
        let shown = page.value(&series);
        if shown.is_some() != before.contains_key(name) {
            return Err(format!(
                "{series} is {shown:?}, /proc/meminfo's {name} {:?}",
                before.get(name)
            ));
        }
        // What moved while the page was made can't be compared.
        if let (Some(shown), Some(told)) = (shown, before.get(name))
            && after.get(name) == Some(told)
        {
            equal(&series, shown, *told)?;
            stood.push(name);
        }
    }
    for name in ["MemTotal", "Hugetlb"] {
        if !stood.contains(&name) {
            return Err(format!("{name} moved: only {stood:?} were compared"));
        }
    }
    modes_are_told(&page)?;
    pins_are_told(&exporter, &mut workload)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// Counters of vmstat: what it says before the page is made and after it holds them.
const AS_IN_VMSTAT: [(&str, &str); 9] = [
    ("memory_pins_total{op=\"acquired\"}", "nr_foll_pin_acquired"),
    ("memory_pins_total{op=\"released\"}", "nr_foll_pin_released"),
    ("memory_oom_kills_total", "oom_kill"),
    ("hugepages_allocations_total{result=\"success\"}", "htlb_buddy_alloc_success"),
    ("hugepages_allocations_total{result=\"failure\"}", "htlb_buddy_alloc_fail"),
    ("transparent_hugepages_events_total{event=\"fault\"}", "thp_fault_alloc"),
    ("transparent_hugepages_events_total{event=\"fallback\"}", "thp_fault_fallback"),
    ("transparent_hugepages_events_total{event=\"collapse\"}", "thp_collapse_alloc"),
    ("transparent_hugepages_events_total{event=\"split\"}", "thp_split_page"),
];

fn sandwiched(exporter: &Exporter) -> Result<Page, String> {
    let before = lines("/proc/vmstat", 1.0)?;
    let page = exporter.page()?;
    let after = lines("/proc/vmstat", 1.0)?;
    for (metric, name) in AS_IN_VMSTAT {
        let shown = page.value(&format!("mrscope_{metric}"));
        let (low, high) = (before.get(name), after.get(name));
        let between = match (shown, low, high) {
            (Some(shown), Some(low), Some(high)) => (*low..=*high).contains(&shown),
            _ => shown.is_none() && low.is_none(),
        };
        if !between {
            return Err(format!("{metric} is {shown:?}, {name} was {low:?}, and then {high:?}"));
        }
    }
    Ok(page)
}

/// Every mode that the kernel names, and 1 for the one in force.
fn modes_are_told(page: &Page) -> Outcome {
    let mut told = Series::new();
    for setting in ["enabled", "defrag", "shmem_enabled"] {
        for word in
            read(&format!("/sys/kernel/mm/transparent_hugepage/{setting}"))?.split_whitespace()
        {
            let mode = word.trim_matches(['[', ']']);
            let labels = format!("mode=\"{mode}\",setting=\"{setting}\"");
            let series = format!("mrscope_transparent_hugepages_mode{{{labels}}}");
            told.insert(series, f64::from(word.starts_with('[')));
        }
    }
    let shown = page.starting("mrscope_transparent_hugepages_mode");
    let shown: Series = shown.map(|(series, on)| (series.to_owned(), on)).collect();
    if shown == told { Ok(()) } else { Err(format!("the page has {shown:?}, sysfs {told:?}")) }
}

/// The kernel adds up what its CPUs counted once a second.
fn pins_are_told(exporter: &Exporter, workload: &mut Workload) -> Outcome {
    let pages = 4.0 * MIB / rustix::param::page_size() as f64;
    for (op, command) in [("acquired", "reg count=1 size=4M"), ("released", "dereg count=all")] {
        let series = format!("mrscope_memory_pins_total{{op=\"{op}\"}}");
        let pins = || {
            let page = sandwiched(exporter)?;
            page.value(&series).ok_or_else(|| format!("{series} is absent"))
        };
        let before = pins()?;
        workload.ask(command)?;
        wait_for("the pins to be counted", || Ok(pins()? >= before + pages))?;
    }
    Ok(())
}
