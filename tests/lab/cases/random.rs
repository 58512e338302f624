//! Random operations of several processes: at each stop all figures are what the driver's account,
//! the kernel's list and /proc say. MRSCOPE_SEED repeats a run.

use std::collections::BTreeMap;

use serde_json::Value;

use super::churn::nothing_stays;
use super::nldev::rdma_says;
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::rdma;
use crate::workload::{Workload, number, vm_pin};
use mrscope::model::Creator;

pub const CASES: &[OnceCase] = &[
    (
        "random_operations_of_several_processes_add_up",
        random_operations_of_several_processes_add_up,
    ),
    (
        "random_operations_add_up_but_for_what_a_full_map_lost",
        random_operations_add_up_but_for_what_a_full_map_lost,
    ),
    ("random_orphans_are_told_and_no_difference_is", random_orphans_are_told_and_no_difference_is),
];

/// At each stop, and when all is released.
type Check = fn(&Exporter, &Value) -> Outcome;

/// Ends with everything released; the driver's last account.
fn run(exporter: &Exporter, words: &[&str], check: Check) -> Result<Value, String> {
    let words = [&["target/lab/random"], words].concat();
    let (mut driver, first) = Workload::spawn(&words)?;
    let seed = number(&first, "seed")?;
    println!("    MRSCOPE_SEED={seed}");
    let with_seed = |error| format!("MRSCOPE_SEED={seed}: {error}");
    loop {
        let stop = driver.ask("go").map_err(with_seed)?;
        let at = number(&stop, "operations")?;
        let said = |error| with_seed(format!("after {at} operations: {error}"));
        check(exporter, &stop).map_err(said)?;
        if stop["op"] == "released" {
            let count = |key: &str| format!("{key} {}", stop[key]);
            let keys = ["registered", "reregistered", "bad_address", "memlock_limit", "refused"];
            let more =
                ["lost", "most_orphans", "born", "opened", "closed", "forked", "given", "killed"];
            let large = ["killed_large", "large_unknown", "large_registered"];
            let all: Vec<_> = [&keys[..], &more, &large].concat().into_iter().map(count).collect();
            println!("    {}", all.join(", "));
            equal("live", number(&stop, "live")?, 0.0).map_err(said)?;
            nothing_stays(&exporter.page()?).map_err(said)?;
            driver.end()?;
            return Ok(stop);
        }
    }
}

fn processes(stop: &Value) -> Result<&Vec<Value>, String> {
    stop["processes"].as_array().ok_or_else(|| format!("no processes in {stop}"))
}

fn pid_of(process: &Value) -> Result<u32, String> {
    number(process, "pid").map(|pid| pid as u32)
}

fn sum(page: &Page, metric: &str) -> f64 {
    page.starting(&format!("mrscope_{metric}{{")).map(|(_, value)| value).sum()
}

/// Devices: what had a row in the map of pins, which is all unless it is full.
fn held_by_devices(page: &Page, stop: &Value) -> Outcome {
    let counted = |key: &str| -> Result<f64, String> {
        processes(stop)?.iter().map(|process| number(process, key)).sum()
    };
    equal("mr_active", page.or_zero(ACTIVE), counted("counted")?)?;
    equal("mr_active_bytes", page.or_zero(ACTIVE_BYTES), counted("counted_bytes")?)?;
    equal("pinned by MRs", page.or_zero(PINNED_MR), counted("counted_pinned")?)?;
    equal("pinned by queues", page.or_zero(PINNED_QUEUE), 0.0)?;
    equal("of all processes", sum(page, "process_mr_active"), counted("counted")?)?;
    equal("their bytes", sum(page, "process_mr_active_bytes"), counted("counted_bytes")?)?;
    let rows = page.or_zero("mrscope_map_entries{map=\"pins\"}");
    equal("rows of pins", rows, counted("counted")?)
}

/// Processes, those that have ended among them while an MR of theirs lives.
fn held_by_processes(page: &Page, stop: &Value) -> Outcome {
    let mut pinned = 0.0;
    for process in processes(stop)? {
        let pid = pid_of(process)?;
        let of = |metric: &str| page.or_zero(&of_named(metric, "random", pid));
        let what = |figure: &str| format!("{figure} of {pid}");
        equal(&what("mr_active"), of("mr_active"), number(process, "counted")?)?;
        let bytes = number(process, "counted_bytes")?;
        equal(&what("mr_active_bytes"), of("mr_active_bytes"), bytes)?;
        if process["alive"] != Value::Bool(true) {
            continue;
        }
        let registrations = of("mr_registration_duration_seconds_count");
        equal(&what("registrations"), registrations, number(process, "registrations")?)?;
        for cause in ["bad_address", "memlock_limit", "refused"] {
            let labels = format!("cause=\"{cause}\",comm=\"random\",pid=\"{pid}\"");
            let series = format!("mrscope_process_mr_registration_failures_total{{{labels}}}");
            equal(&what(cause), page.or_zero(&series), number(process, cause)?)?;
        }
        let charged = vm_pin(pid)?;
        equal(&what("VmPin by the driver's account"), charged, number(process, "pinned")?)?;
        equal(&what("VmPin"), of("pinned_bytes"), charged)?;
        pinned += charged;
    }
    equal("what all processes pin", sum(page, "process_pinned_bytes"), pinned)
}

/// Count and bytes by who made them, as the kernel lists them and as the driver knows.
fn listed_by_the_kernel(stop: &Value) -> Outcome {
    let mut listed: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for mr in rdma::rows(&rdma_says("mr")?, rdma::mr)? {
        let maker = match mr.creator {
            Creator::Thread(tid) => tid,
            _ => 0,
        };
        let (count, bytes) = listed.entry(maker).or_default();
        *count += 1.0;
        *bytes += mr.length.ok_or("an MR without a length")? as f64;
    }
    let mut known: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for process in processes(stop)?.iter().filter(|process| process["mrs"] != 0) {
        let alive = process["alive"] == Value::Bool(true);
        let (count, bytes) = known.entry(if alive { pid_of(process)? } else { 0 }).or_default();
        *count += number(process, "mrs")?;
        *bytes += number(process, "bytes")?;
    }
    if listed == known {
        Ok(())
    } else {
        Err(format!("the kernel lists {listed:?}, the driver has {known:?}; 0: of the dead"))
    }
}

/// A process that is killed in a registration does not tell whether it went well: then it is
/// counted as one or as interrupted, and never as both or as neither.
fn counted(page: &Page, stop: &Value) -> Outcome {
    let know = |key: &str| number(stop, key);
    let failed = |cause: &str| -> f64 {
        let prefix = format!("mrscope_mr_registration_failures_total{{cause=\"{cause}\"");
        page.starting(&prefix).map(|(_, count)| count).sum()
    };
    let known = know("registered")? + know("reregistered")? + know("large_registered")?;
    let unknown = page.or_zero(REGISTRATIONS) - known;
    let interrupted = failed("interrupted");
    equal("killed in a registration", unknown + interrupted, know("large_unknown")?)?;
    if unknown < 0.0 {
        return Err(format!("{unknown} registrations more than the {known} that were made"));
    }
    let mut failures = interrupted;
    for cause in ["bad_address", "memlock_limit", "refused"] {
        equal(cause, failed(cause), know(cause)?)?;
        failures += know(cause)?;
    }
    equal("all failures", sum(page, "mr_registration_failures_total"), failures)?;
    let large = know("large_registered")? + unknown;
    let ended = know("registered")? + large - know("live")?;
    equal("deregistrations", page.or_zero(DEREGISTRATIONS), ended)?;
    let bytes = know("registered_bytes")? + large * know("large_bytes")?;
    let series = "mrscope_mr_registered_bytes_total{device=\"rxe0\",kind=\"host\"}";
    equal("registered bytes", page.or_zero(series), bytes)
}

fn all_is_as_known(page: &Page, stop: &Value) -> Outcome {
    listed_by_the_kernel(stop)?;
    held_by_devices(page, stop)?;
    held_by_processes(page, stop)?;
    counted(page, stop)
}

fn random_operations_of_several_processes_add_up() -> Outcome {
    let exporter = Exporter::start(&["--process.max", "1000"])?;
    run(&exporter, &["10000", "1000"], |exporter, stop| {
        let page = exporter.page()?;
        all_is_as_known(&page, stop)?;
        equal("live", number(stop, "live")?, page.or_zero(ACTIVE))?;
        equal("pinned", number(stop, "live_pinned")?, page.or_zero(PINNED_MR))?;
        if page.lost().is_empty() { Ok(()) } else { Err(format!("lost: {:?}", page.lost())) }
    })?;
    exporter.stop().map(|_| ())
}

/// One operation at a time, so that the driver knows what found a row.
fn random_operations_add_up_but_for_what_a_full_map_lost() -> Outcome {
    const FILE: &str = "/tmp/mrscope-random.yaml";
    const ROWS: &str = "25";
    std::fs::write(FILE, format!("ebpf:\n  max_pins: {ROWS}\n")).map_err(|e| e.to_string())?;
    let exporter = Exporter::start(&["--config.file", FILE, "--process.max", "1000"])?;
    run(&exporter, &["4000", "500", ROWS], |exporter, stop| {
        let page = exporter.page()?;
        all_is_as_known(&page, stop)?;
        let full = "mrscope_lost_updates_total{reason=\"full\",source=\"pins\"}";
        equal("lost", page.or_zero(full), number(stop, "lost")?)?;
        let others: Vec<_> = page.lost().into_iter().filter(|(series, _)| series != full).collect();
        if others.is_empty() { Ok(()) } else { Err(format!("lost: {others:?}")) }
    })?;
    if exporter.page()?.lost().is_empty() {
        return Err("the map was never full: the case proves nothing".to_owned());
    }
    exporter.stop().map(|_| ())
}

/// MRs whose maker has ended are in nobody's VmPin; the ledger differs from no other count.
fn random_orphans_are_told_and_no_difference_is() -> Outcome {
    const FILE: &str = "/tmp/mrscope-orphans.yaml";
    std::fs::write(FILE, "resources:\n  interval: 1s\n").map_err(|e| e.to_string())?;
    let exporter = Exporter::start(&["--config.file", FILE, "--process.max", "1000"])?;
    let last = run(&exporter, &["2000", "200"], |exporter, stop| {
        let mut orphans = (0.0, 0.0);
        for process in processes(stop)?.iter().filter(|p| p["alive"] == Value::Bool(false)) {
            orphans.0 += number(process, "mrs")?;
            orphans.1 += number(process, "bytes")?;
        }
        let expected = [
            ("mrscope_mr_orphaned{device=\"rxe0\"}", orphans.0),
            ("mrscope_mr_orphaned_bytes{device=\"rxe0\"}", orphans.1),
            ("mrscope_ledger_difference_bytes{against=\"nldev\",device=\"rxe0\"}", 0.0),
            ("mrscope_pinned_difference_bytes", 0.0),
        ];
        let mut last = String::new();
        let found = wait_for("orphans and differences", || {
            let page = exporter.page()?;
            let off = expected.iter().find(|(series, known)| page.value(series) != Some(*known));
            last = off.map_or_else(String::new, |(series, known)| {
                format!("{series} is {:?}, expected {known}", page.value(series))
            });
            Ok(off.is_none())
        });
        found.map_err(|error| format!("{error}{last}"))
    })?;
    if number(&last, "most_orphans")? == 0.0 {
        return Err("there was never an orphan: the case proves nothing".to_owned());
    }
    exporter.stop().map(|_| ())
}
