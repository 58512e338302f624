//! How much memory is really pinned, however often it is registered.

use super::devices::{add_device, run};
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::{Workload, number, vm_pin};

pub const CASES: &[OnceCase] = &[
    (
        "a_buffer_on_four_devices_is_accounted_four_times_and_distinct_once",
        a_buffer_on_four_devices_is_accounted_four_times_and_distinct_once,
    ),
    (
        "ranges_that_overlap_are_distinct_once_and_those_that_touch_add_up",
        ranges_that_overlap_are_distinct_once_and_those_that_touch_add_up,
    ),
    (
        "memory_that_two_processes_share_is_distinct_in_each",
        memory_that_two_processes_share_is_distinct_in_each,
    ),
];

const HOST: &str = "mrscope_pinned_distinct_bytes";
const MIB: f64 = 1024.0 * 1024.0;
const SHARED_FILE: &str = "/dev/shm/mrscope-lab-overlay";

/// A mrscope that reads all live pins every second.
fn exporter() -> Result<Exporter, String> {
    const FILE: &str = "/tmp/mrscope-lab-distinct.yaml";
    let text = "placement:\n  interval: 1s\nwrite_probe:\n  enabled: false\n";
    std::fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"))?;
    Exporter::start(&["--config.file", FILE])
}

fn series(pid: u32) -> String {
    format!("mrscope_process_pinned_distinct_bytes{{comm=\"workload\",pid=\"{pid}\"}}")
}

/// A page whose distinct bytes are those of the host; the others' and the processes' are the host's.
fn wait_for_host(exporter: &Exporter, bytes: f64) -> Result<Page, String> {
    let mut page = None;
    wait_for(&format!("{bytes} distinct bytes"), || {
        let now = exporter.page()?;
        let there = now.value(HOST) == Some(bytes);
        page = Some(now);
        Ok(there)
    })?;
    let page = page.ok_or("no page")?;
    let all: f64 =
        page.starting("mrscope_process_pinned_distinct_bytes{").map(|(_, bytes)| bytes).sum();
    equal("all series", all, bytes)?;
    in_state(&page, "placement", "ok")?;
    Ok(page)
}

fn a_buffer_on_four_devices_is_accounted_four_times_and_distinct_once() -> Outcome {
    let exporter = exporter()?;
    for n in 1..4 {
        add_device(&format!("rxe{n}"), &format!("dummy{n}"))?;
    }
    let mut workload = Workload::start()?;
    wait_for_host(&exporter, 0.0)?;
    let reply = workload.ask("overlay size=64M")?;
    equal("devices", number(&reply, "devices")?, 4.0)?;
    let page = wait_for_host(&exporter, 64.0 * MIB)?;
    equal("its own", page.or_zero(&series(workload.pid)), 64.0 * MIB)?;
    let accounted = of_process("active_bytes", workload.pid);
    equal("accounted", page.or_zero(&accounted), 256.0 * MIB)?;
    equal("VmPin", vm_pin(workload.pid)?, 256.0 * MIB)?;
    // What it ends with is gone from its series at once, and from the host's sum with a reading.
    let pid = workload.pid;
    workload.kill()?;
    let page = wait_for_host(&exporter, 0.0)?;
    equal("the series of who ended", page.or_zero(&series(pid)), 0.0)?;
    for n in 1..4 {
        run(&format!("rdma link delete rxe{n}"))?;
        run(&format!("ip link delete dummy{n}"))?;
    }
    exporter.stop().map(|_| ())
}

fn ranges_that_overlap_are_distinct_once_and_those_that_touch_add_up() -> Outcome {
    let exporter = exporter()?;
    // Three of 1 MiB: each half a MiB behind the one before, one after the other, with room between,
    // and such that two share a page.
    for (offset, size, distinct) in [
        (524_288, 1 << 20, 2.0 * MIB),
        (1 << 20, 1 << 20, 3.0 * MIB),
        (2 << 20, 1 << 20, 3.0 * MIB),
        (6144, 4096, 4.0 * 4096.0),
    ] {
        let mut workload = Workload::start()?;
        let reply = workload.ask(&format!("overlay count=3 size={size} offset={offset}"))?;
        equal("registered", number(&reply, "registered")?, 3.0)?;
        let page = wait_for_host(&exporter, distinct)?;
        equal("its own", page.or_zero(&series(workload.pid)), distinct)?;
        let pinned = number(&reply, "vmpin_after")? - number(&reply, "vmpin_before")?;
        println!("  {size} bytes each {offset}: VmPin {pinned}, distinct {distinct}");
        if pinned < distinct {
            return Err(format!("VmPin has {pinned}"));
        }
        workload.kill()?;
        wait_for_host(&exporter, 0.0)?;
    }
    exporter.stop().map(|_| ())
}

fn memory_that_two_processes_share_is_distinct_in_each() -> Outcome {
    let exporter = exporter()?;
    let (mut one, mut other) = (Workload::start()?, Workload::start()?);
    one.ask("overlay size=8M share=1")?;
    other.ask("overlay size=8M share=1")?;
    let page = wait_for_host(&exporter, 16.0 * MIB)?;
    for pid in [one.pid, other.pid] {
        equal("of each", page.or_zero(&series(pid)), 8.0 * MIB)?;
    }
    one.kill()?;
    other.kill()?;
    std::fs::remove_file(SHARED_FILE).map_err(|error| format!("{SHARED_FILE}: {error}"))?;
    exporter.stop().map(|_| ())
}
