//! On which pages and nodes MRs lie, as their pages are walked when they are pinned.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::vendor::Vendor;
use crate::boot::NODES;
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::{Workload, number, vm_pin};

pub const CASES: &[OnceCase] = &[
    (
        "an_mr_lies_on_the_pages_and_the_node_that_it_was_given",
        an_mr_lies_on_the_pages_and_the_node_that_it_was_given,
    ),
    (
        "an_mr_that_begins_within_a_page_lies_on_all_that_it_touches",
        an_mr_that_begins_within_a_page_lies_on_all_that_it_touches,
    ),
    (
        "of_a_gigabyte_of_scattered_pages_the_rest_is_unknown",
        of_a_gigabyte_of_scattered_pages_the_rest_is_unknown,
    ),
    ("of_the_killed_no_place_is_left", of_the_killed_no_place_is_left),
    (
        "an_mr_that_is_moved_by_rereg_lies_where_it_went",
        an_mr_that_is_moved_by_rereg_lies_where_it_went,
    ),
    ("pages_that_nobody_wants_to_know_take_no_map", pages_that_nobody_wants_to_know_take_no_map),
];

const BASE: u64 = 4096;
const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;
const GIGANTIC: u64 = 1024 * MIB;
/// Steps of a walk, of which each finds one page at least.
const STEPS: u64 = 4096;

const WALKED: &str = "mrscope_mr_placement_bytes{method=\"walked\"}";
const SAMPLED: &str = "mrscope_mr_placement_bytes{method=\"sampled\"}";
const LOST: &str = "mrscope_lost_updates_total{reason=\"no_memory\",source=\"placements\"}";

/// Bytes by size of page and node; None where the page says that it is unknown.
type Bytes = BTreeMap<(Option<u64>, Option<u32>), f64>;

fn exporter_with(pages: bool, more: &str) -> Result<Exporter, String> {
    const FILE: &str = "/tmp/mrscope-lab-placement.yaml";
    let text = format!("placement: {{interval: 1s, pages: {pages}}}\n{more}");
    fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"))?;
    Exporter::start(&["--config.file", FILE])
}

/// What the page says of a process.
fn of_page(page: &Page, pid: u32) -> Result<Bytes, String> {
    let mut placed = Bytes::new();
    let pid = format!("pid=\"{pid}\"");
    let all = page.starting("mrscope_process_mr_placed_bytes{");
    for (series, bytes) in all.filter(|(series, bytes)| series.contains(&pid) && *bytes > 0.0) {
        let label = |name: &str| {
            let (_, rest) = series.split_once(&format!("{name}=\"")).ok_or(format!("no {name}"))?;
            rest.split('"').next().ok_or("no end").map(str::to_owned).map_err(str::to_owned)
        };
        let place = (label("page_size")?.parse().ok(), label("numa_node")?.parse().ok());
        placed.insert(place, bytes);
    }
    Ok(placed)
}

/// The same, once it is of all that the kernel says is pinned.
fn placed(exporter: &Exporter, pid: u32) -> Result<Bytes, String> {
    let pinned = vm_pin(pid)?;
    let mut last = Bytes::new();
    let all = wait_for(&format!("places of {pinned} bytes"), || {
        last = of_page(&exporter.page()?, pid)?;
        Ok(last.values().sum::<f64>() == pinned)
    });
    all.map_err(|error| format!("{error}; the last was {last:?}"))?;
    Ok(last)
}

fn expect(what: &str, seen: &Bytes, expected: &Bytes) -> Outcome {
    if seen == expected { Ok(()) } else { Err(format!("{what}: {seen:?}, expected {expected:?}")) }
}

/// What the kernel says of the memory of a process, by node: its own list of mappings.
fn by_node(pid: u32) -> Result<BTreeMap<u32, f64>, String> {
    let path = format!("/proc/{pid}/numa_maps");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let mut nodes = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains(" anon=")) {
        let of = |key: &str| {
            line.split(' ').find_map(|word| word.strip_prefix(key)?.parse::<f64>().ok())
        };
        let kilobytes = of("kernelpagesize_kB=").ok_or_else(|| format!("no size: {line}"))?;
        for node in 0..NODES {
            let pages = of(&format!("N{node}=")).unwrap_or(0.0);
            *nodes.entry(node).or_insert(0.0) += pages * kilobytes * 1024.0;
        }
    }
    Ok(nodes)
}

/// What of it is transparent huge pages.
fn transparent(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024.0).ok_or_else(|| format!("{path}: no AnonHugePages"))
}

/// The node that has the guest's page of 1 GiB.
fn node_of_gigantic() -> Result<u32, String> {
    let has = |node: &u32| {
        let pool = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-1048576kB");
        fs::read_to_string(format!("{pool}/nr_hugepages")).is_ok_and(|pages| pages.trim() == "1")
    };
    (0..NODES).find(has).ok_or_else(|| "no node has a page of 1 GiB".to_owned())
}

fn nothing_lost(page: &Page) -> Outcome {
    if page.value(LOST) != Some(0.0) {
        return Err(format!("{LOST} is {:?}", page.value(LOST)));
    }
    if page.lost().is_empty() { Ok(()) } else { Err(format!("lost: {:?}", page.lost())) }
}

fn an_mr_lies_on_the_pages_and_the_node_that_it_was_given() -> Outcome {
    let exporter = exporter_with(true, "")?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    let mut expected = Bytes::new();
    for (pages, page_bytes) in [("4k", BASE), ("thp", HUGE), ("2m", HUGE)] {
        for (node, megabytes) in [(0, 8), (1, 12)] {
            let before = (by_node(pid)?, transparent(pid)?);
            workload.ask(&format!("reg size={megabytes}M pages={pages} node={node}"))?;
            let bytes = (megabytes * MIB) as f64;
            let after = (by_node(pid)?, transparent(pid)?);
            let rise = after.0[&node] - before.0[&node];
            // Its heap may grow by a few pages at the same time.
            if !(bytes..bytes + 65_536.0).contains(&rise) {
                return Err(format!("{pages}: {rise} bytes more on node {node}, not {bytes}"));
            }
            let huge = if pages == "thp" { bytes } else { 0.0 };
            equal(&format!("transparent huge pages of {pages}"), after.1 - before.1, huge)?;
            *expected.entry((Some(page_bytes), Some(node))).or_default() += bytes;
            expect(&format!("{pages} on {node}"), &placed(&exporter, pid)?, &expected)?;
        }
    }
    let before = (by_node(pid)?, transparent(pid)?);
    workload.ask("reg size=8M pages=mixed node=0")?;
    let after = (by_node(pid)?, transparent(pid)?);
    equal("transparent huge pages of the upper half", after.1 - before.1, (4 * MIB) as f64)?;
    equal("its node", after.0[&1] - before.0[&1], (4 * MIB) as f64)?;
    for place in [(Some(BASE), Some(0)), (Some(HUGE), Some(1))] {
        *expected.entry(place).or_default() += (4 * MIB) as f64;
    }
    expect("of both kinds", &placed(&exporter, pid)?, &expected)?;
    // 5.10 tells no types of modules, by which an umem's pages are found: there they are sampled.
    let walks = Path::new("/sys/kernel/btf/ib_core").exists();
    let how = if walks { WALKED } else { SAMPLED };
    equal("how it is known", exporter.page()?.or_zero(how), vm_pin(pid)?)?;
    let node = node_of_gigantic()?;
    workload.ask("reg size=96M offset=32M pages=1g")?;
    expected.insert((Some(GIGANTIC), Some(node)), (96 * MIB) as f64);
    expect("1g", &placed(&exporter, pid)?, &expected)?;

    workload.ask("dereg count=1")?;
    expected.remove(&(Some(GIGANTIC), Some(node)));
    expect("without 1g", &placed(&exporter, pid)?, &expected)?;
    workload.ask("dereg count=all")?;
    expect("at the end", &placed(&exporter, pid)?, &Bytes::new())?;
    if walks {
        nothing_lost(&exporter.page()?)?;
    }
    workload.end()?;
    exporter.stop().map(|_| ())
}

fn an_mr_that_begins_within_a_page_lies_on_all_that_it_touches() -> Outcome {
    let exporter = exporter_with(true, "")?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    // From the last byte of a page, over one, to the first of the next.
    workload.ask("reg size=4098 offset=4095 node=0")?;
    let mut expected = Bytes::from([((Some(BASE), Some(0)), 3.0 * BASE as f64)]);
    expect("three pages", &placed(&exporter, pid)?, &expected)?;
    // In the middle of a huge page.
    workload.ask("reg size=1M offset=525312 pages=thp node=1")?;
    let mut thp = (MIB + BASE) as f64;
    expected.insert((Some(HUGE), Some(1)), thp);
    expect("within a huge page", &placed(&exporter, pid)?, &expected)?;
    // From the middle of one to that of the one after the next.
    workload.ask("reg size=4M offset=1M pages=thp node=1")?;
    thp += (4 * MIB) as f64;
    expected.insert((Some(HUGE), Some(1)), thp);
    expect("over huge pages", &placed(&exporter, pid)?, &expected)?;
    workload.ask("reg size=3M offset=1M pages=2m node=0")?;
    expected.insert((Some(HUGE), Some(0)), (3 * MIB) as f64);
    expect("pages of the pool", &placed(&exporter, pid)?, &expected)?;
    nothing_lost(&exporter.page()?)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// The look is within the caller's time, which has room for it only once where all pages are
/// scattered: what a call takes beside it, out of mrscope's sight, is less.
fn the_look_is_in_no_duration(page: &Page, own: f64) -> Outcome {
    let (kernel, looking) = (page.or_zero(REGISTRATION_SECONDS), page.or_zero(LOOKING_SECONDS));
    println!("  {kernel:.6} s to register and {looking:.6} s to look, of {own:.6} s");
    if kernel > 0.0 && looking > 0.0 && kernel + looking <= own {
        Ok(())
    } else {
        Err(format!(
            "{kernel} s to register and {looking} s to look, the caller's own were {own} s"
        ))
    }
}

fn of_a_gigabyte_of_scattered_pages_the_rest_is_unknown() -> Outcome {
    let exporter = exporter_with(true, "")?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    let reply = workload.ask("pairs rounds=20 warmup=0 size=16M touch=2")?;
    the_look_is_in_no_duration(&exporter.page()?, number(&reply, "reg_ns_sum")? * 1e-9)?;
    workload.ask("reg size=1G touch=2 node=0")?;
    let placed = placed(&exporter, pid)?;
    let of = |place| placed.get(&place).copied().unwrap_or(0.0);
    let (known, unknown) = (of((Some(BASE), Some(0))), of((None, None)));
    println!("  of 1 GiB in scattered pages {known} bytes are known");
    equal("both together", known + unknown, GIGANTIC as f64)?;
    if known < (STEPS * BASE) as f64 || unknown == 0.0 {
        return Err(format!("{known} known, {unknown} unknown"));
    }
    nothing_lost(&exporter.page()?)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// Rows that stayed would fill the map, as each killed holds more than half of it.
fn of_the_killed_no_place_is_left() -> Outcome {
    let exporter = exporter_with(true, "ebpf: {max_pins: 64}\n")?;
    let mut stays = Workload::start()?;
    stays.ask("reg size=64K node=1")?;
    let expected = Bytes::from([((Some(BASE), Some(1)), 65_536.0)]);
    for _ in 0..3 {
        let mut killed = Workload::start()?;
        let pid = killed.pid;
        killed.ask("reg count=40 size=8192 node=0")?;
        let of_killed = Bytes::from([((Some(BASE), Some(0)), 40.0 * 8192.0)]);
        expect("who is killed", &placed(&exporter, pid)?, &of_killed)?;
        killed.kill()?;
        wait_for("its places to go", || Ok(of_page(&exporter.page()?, pid)?.is_empty()))?;
        expect("who stays", &placed(&exporter, stays.pid)?, &expected)?;
    }
    stays.ask("cycle count=40 rounds=5 size=4096")?;
    expect("after a cycle", &placed(&exporter, stays.pid)?, &expected)?;
    nothing_lost(&exporter.page()?)?;
    stays.end()?;
    exporter.stop().map(|_| ())
}

fn pages_that_nobody_wants_to_know_take_no_map() -> Outcome {
    let exporter = exporter_with(false, "")?;
    let mut workload = Workload::start()?;
    workload.ask("reg size=1M")?;
    let page = exporter.page()?;
    in_state(&page, "mr", "ok")?;
    equal("MRs", page.or_zero(ACTIVE), 1.0)?;
    if page.value(LOST).is_some() {
        return Err("there is a map of placements".to_owned());
    }
    equal("lost", page.lost().len() as f64, 0.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

fn an_mr_that_is_moved_by_rereg_lies_where_it_went() -> Outcome {
    let vendor = Vendor::load()?;
    let exporter = exporter_with(true, "")?;
    let mut workload = Workload::start()?;
    workload.ask("reg size=3M node=1")?;
    let base = |megabytes: u64, node| ((Some(BASE), Some(node)), (megabytes * MIB) as f64);
    expect("at first", &placed(&exporter, workload.pid)?, &Bytes::from([base(3, 1)]))?;
    workload.ask("reg size=1M node=0")?;
    workload.ask("rereg flags=translation via=kernel pages=2m size=4M")?;
    let moved = placed(&exporter, workload.pid)?;
    let huge = moved.iter().filter(|((page_bytes, _), _)| *page_bytes == Some(HUGE));
    equal("where it went", huge.map(|(_, bytes)| bytes).sum(), (4 * MIB) as f64)?;
    equal("what stayed", moved.get(&base(3, 1).0).copied().unwrap_or(0.0), base(3, 1).1)?;
    // What fails leaves it where it is.
    workload.ask_freely("rereg flags=translation via=kernel size=64K how=unmapped")?;
    expect("after a failure", &placed(&exporter, workload.pid)?, &moved)?;
    nothing_lost(&exporter.page()?)?;
    workload.end()?;
    exporter.stop()?;
    drop(vendor);
    Ok(())
}
