//! The write probe as mrscope runs it: every port, on its own interval, with nothing left behind.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use super::devices::run;
use super::lifecycle::{WithoutRdma, satisfies_promtool};
use super::privilege::{BPF, PERFMON, Paranoid, start_with};
use super::write_probe::{Device, free_pages, nothing_is_held, pool_file, read, within_call};
use super::write_probe_faults::Set;
use crate::boot::NODES;
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::kprobes;
use crate::page::Page;
use crate::probe::{MR_BYTES, PROGRAM, Probe};
use crate::probing::{
    EVERY_SECOND, ONCE, arguments, measured, no_child, of_port, results, runs, says_once, send,
    start, start_by, stopped_with_mr, wait_for_runs,
};
use crate::watch::Watch;
use crate::workload::{Workload, status_bytes};

pub const CASES: &[OnceCase] = &[
    (
        "probing_measures_every_port_once_a_round_and_gives_all_back",
        probing_measures_every_port_once_a_round_and_gives_all_back,
    ),
    (
        "probing_takes_base_pages_where_the_pool_is_empty_and_says_so",
        probing_takes_base_pages_where_the_pool_is_empty_and_says_so,
    ),
    (
        "probing_registers_for_the_host_and_for_no_process",
        probing_registers_for_the_host_and_for_no_process,
    ),
    (
        "probing_tells_of_runs_that_the_kernel_s_programs_did_not_see",
        probing_tells_of_runs_that_the_kernel_s_programs_did_not_see,
    ),
    ("probing_tells_of_no_run_that_was_seen", probing_tells_of_no_run_that_was_seen),
    ("probing_finds_nothing_unseen_where_mr_is_off", probing_finds_nothing_unseen_where_mr_is_off),
    (
        "probing_blames_nobody_for_runs_from_before_mr_was_allowed",
        probing_blames_nobody_for_runs_from_before_mr_was_allowed,
    ),
    (
        "probing_never_touches_a_device_that_is_excluded",
        probing_never_touches_a_device_that_is_excluded,
    ),
    (
        "probing_forgets_a_device_that_goes_and_measures_it_when_it_is_back",
        probing_forgets_a_device_that_goes_and_measures_it_when_it_is_back,
    ),
];

const OTHERS: &str = "(all other processes)";
const HUGE: f64 = 2.0 * 1024.0 * 1024.0;

fn base() -> f64 {
    rustix::param::page_size() as f64
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// VmPin of all processes together.
fn pinned_by_all() -> Result<f64, String> {
    let processes = fs::read_dir("/proc").map_err(|error| error.to_string())?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // Threads of the kernel have no memory, and some processes end meanwhile.
    Ok(pids.filter_map(|pid| status_bytes(&pid.to_string(), "VmPin").ok()).sum())
}

fn registered(page: &Page, device: &str, what: &str) -> f64 {
    let labels = format!("{{device=\"{device}\",kind=\"host\"}}");
    page.or_zero(&format!("mrscope_mr_registration_duration_seconds_{what}{labels}"))
}

/// Soft RoCE over any interface that it sits on, for its lifetime.
struct Interfaces;

impl Interfaces {
    const DEVICES: [&'static str; 3] = ["rxe0", "rxe_veth", "rxe_lo"];

    fn make() -> Result<Self, String> {
        let made = Self;
        for line in [
            "ip link add veth0 type veth peer name veth1",
            "ip link set veth1 up",
            "ip link set veth0 up",
            "ip addr add 10.9.2.1/24 dev veth0",
            "ip addr add 10.9.3.1/32 dev lo",
            "rdma link add rxe_veth type rxe netdev veth0",
            "rdma link add rxe_lo type rxe netdev lo",
        ] {
            run(line)?;
        }
        // Files and GIDs of new devices come in the background.
        for device in Self::DEVICES {
            let line = format!("--device {device} --max-ms 60000 --count 1");
            wait_for(device, || Probe::run(&line)?.report().map(|_| true))?;
        }
        Ok(made)
    }
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        for line in [
            "rdma link delete rxe_veth",
            "rdma link delete rxe_lo",
            "ip link delete veth0",
            "ip addr del 10.9.3.1/32 dev lo",
        ] {
            let _ = run(line);
        }
    }
}

pub fn probing_measures_every_port_once_a_round_and_gives_all_back() -> Outcome {
    let _interfaces = Interfaces::make()?;
    let (free, pinned, begun) = (free_pages()?, pinned_by_all()?, now());
    let exporter = start(&[ONCE])?;
    for device in Interfaces::DEVICES {
        wait_for_runs(&exporter, device, "ok", 1.0)?;
    }
    no_child(&exporter)?;
    nothing_is_held(&free)?;
    equal("VmPin of all", pinned_by_all()?, pinned)?;
    let page = exporter.page()?;
    in_state(&page, "write_probe", "ok")?;
    for device in Interfaces::DEVICES {
        one_round(&page, device, begun).map_err(|error| format!("{device}: {error}"))?;
    }
    satisfies_promtool(&page)?;
    exporter.stop().map(|_| ())
}

fn one_round(page: &Page, device: &str, begun: f64) -> Outcome {
    let results = results(page, device);
    if results != [("ok".to_owned(), 1.0)] {
        return Err(format!("runs: {results:?}"));
    }
    let figure = |metric: &str| {
        let value = measured(page, metric, device, HUGE);
        value.ok_or_else(|| format!("no {metric} on pages of 2 MiB"))
    };
    let (p50, p99) = (figure("latency_p50_seconds")?, figure("latency_p99_seconds")?);
    let bandwidth = figure("bandwidth_bytes_per_second")?;
    if !(bandwidth > 0.0 && p50 > 0.0 && p50 <= p99) {
        return Err(format!("{bandwidth} B/s, median {p50} s, 99th percentile {p99} s"));
    }
    // The kernel's part of the one registration that this device has had.
    equal("registrations", registered(page, device, "count"), 1.0)?;
    let call = figure("mr_registration_seconds")?;
    within_call(registered(page, device, "sum"), call * 1e9)?;
    equal("success", page.value(&of_port("success", device)).unwrap_or(-1.0), 1.0)?;
    equal("unseen", page.value(&of_port("unseen_total", device)).unwrap_or(-1.0), 0.0)?;
    let last = page.or_zero(&of_port("last_run_timestamp_seconds", device));
    if !(begun..=now()).contains(&last) {
        return Err(format!("the last run was at {last}, expected {begun} and later"));
    }
    let rate = read(&format!("/sys/class/infiniband/{device}/ports/1/rate"))?;
    let gigabits = rate.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    let rate = gigabits.ok_or(rate)? * 125e6;
    equal("port rate", page.or_zero(&of_port("port_rate_bytes_per_second", device)), rate)
}

/// Looked at from outside while it has its MR.
pub fn probing_takes_base_pages_where_the_pool_is_empty_and_says_so() -> Outcome {
    let free = free_pages()?;
    let exporter = start(&[EVERY_SECOND])?;
    lies_in_hugepages(&exporter, MR_BYTES)?;
    wait_for_runs(&exporter, "rxe0", "ok", 1.0)?;
    let page = exporter.page()?;
    in_state(&page, "write_probe", "ok")?;
    if measured(&page, "bandwidth_bytes_per_second", "rxe0", base()).is_some() {
        return Err("it was on base pages before".to_owned());
    }
    {
        let emptied = |node| Set::to(&pool_file(node, "hugepages-2048kB", "nr_hugepages"), "0");
        let _none: Vec<Set> = (0..NODES).map(emptied).collect::<Result<_, _>>()?;
        wait_for("base pages", || {
            let page = exporter.page()?;
            in_state(&page, "write_probe", "no_data")?;
            Ok(measured(&page, "bandwidth_bytes_per_second", "rxe0", base()).is_some())
        })?;
        lies_in_hugepages(&exporter, 0.0)?;
        equal("success", exporter.page()?.or_zero(&of_port("success", "rxe0")), 1.0)?;
        says_once(&exporter, &["rxe0", "base pages"])?;
    }
    wait_for("the pool's pages", || Ok(in_state(&exporter.page()?, "write_probe", "ok").is_ok()))?;
    let all = results(&exporter.page()?, "rxe0");
    if all.len() != 1 {
        return Err(format!("runs that did not end well: {all:?}"));
    }
    exporter.stop()?;
    nothing_is_held(&free)
}

fn lies_in_hugepages(exporter: &Exporter, bytes: f64) -> Outcome {
    let child = stopped_with_mr(exporter)?;
    let held = status_bytes(&child.to_string(), "HugetlbPages");
    send(child, Signal::CONT)?;
    equal("HugetlbPages", held?, bytes)
}

/// Of the host it is all; of processes, of nobody that is named.
pub fn probing_registers_for_the_host_and_for_no_process() -> Outcome {
    const RUNS: f64 = 2.0;
    let devices = [
        Device::make("rxe1", "dummy1", "10.9.1.1/24")?,
        Device::make("rxe2", "dummy2", "10.9.2.1/24")?,
        Device::make("rxe3", "dummy3", "10.9.3.1/24")?,
    ];
    let exporter = start(&[EVERY_SECOND, "exclude: [rxe0]"])?;
    // Rows of those that have ended are freed as fast as can be.
    let watch = Watch::begin(exporter.port);
    for device in &devices {
        wait_for_runs(&exporter, device.name, "ok", RUNS)?;
    }
    let child = stopped_with_mr(&exporter)?;
    let pages = watch.end()?;
    let page = exporter.page()?;
    let (mut ok, mut all) = (0.0, 0.0);
    for Device { name, .. } in &devices {
        let results = results(&page, name);
        if results.len() != 1 {
            return Err(format!("runs of {name} that did not end well: {results:?}"));
        }
        ok += runs(&page, name, "ok");
        all += registered(&page, name, "count");
        equal("unseen", page.value(&of_port("unseen_total", name)).unwrap_or(-1.0), 0.0)?;
    }
    equal("registrations of the devices", all, ok + 1.0)?;
    let hits = kprobes::hits(exporter.pid())?;
    equal("calls of them", hits.get("verbs_reg_mr_enter").copied().unwrap_or_default(), all)?;
    let others = |metric: &str| {
        page.or_zero(&format!("mrscope_process_{metric}{{comm=\"{OTHERS}\",pid=\"\"}}"))
    };
    equal("of all others", others("mr_registration_duration_seconds_count"), all)?;
    equal("MRs of all others", others("mr_active"), 1.0)?;
    equal("bytes of all others", others("mr_active_bytes"), MR_BYTES)?;
    equal("pinned by all others", others("pinned_bytes"), MR_BYTES)?;
    let named: Vec<_> = page.starting("mrscope_process_").filter(is_of_probe).collect();
    if !named.is_empty() {
        return Err(format!("the probe has series of its own: {named:?}"));
    }
    send(child, Signal::CONT)?;
    println!("  {pages} pages, {all} registrations");
    exporter.stop().map(|_| ())
}

fn is_of_probe((series, _): &(&str, f64)) -> bool {
    series.contains("comm=\"mrscope-write")
}

/// Of all kprobes of the kernel.
const SWITCH: &str = "/sys/kernel/debug/kprobes/enabled";

/// Nothing tells mrscope that its probes are disarmed: they are attached and never hit.
/// A map with room for one process, which a workload takes: what the probe registers then is
/// counted for nobody.
pub fn probing_tells_of_runs_that_the_kernel_s_programs_did_not_see() -> Outcome {
    const ONE_ROW: &str = "interval: 1s\nebpf:\n  max_processes: 1";
    let exporter = start_by(&[], &[ONE_ROW], &["--no-collector.mlock"])?;
    let unseen = || exporter.page().map(|page| page.or_zero(&of_port("unseen_total", "rxe0")));
    let more = |count: f64| -> Outcome {
        let before = runs(&exporter.page()?, "rxe0", "ok");
        wait_for_runs(&exporter, "rxe0", "ok", before + count)
    };
    // Of the first runs each may have found the row of the one before it in its place.
    more(1.0)?;
    let mut workload = Workload::start()?;
    let active = format!("mrscope_process_mr_active{{comm=\"workload\",pid=\"{}\"}}", workload.pid);
    wait_for("the workload's row", || {
        workload.ask("reg count=1 size=4096")?;
        Ok(exporter.page()?.or_zero(&active) > 0.0)
    })?;
    let before = unseen()?;
    wait_for("two that are not seen", || Ok(unseen()? >= before + 2.0))?;
    in_state(&exporter.page()?, "write_probe", "ok")?;
    exporter.says(&["level=warn", "write probe", "rxe0", "did not see"])?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// One after the other, each has a row of its own.
pub fn probing_tells_of_no_run_that_was_seen() -> Outcome {
    let exporter = start(&[EVERY_SECOND])?;
    wait_for_runs(&exporter, "rxe0", "ok", 3.0)?;
    let page = exporter.page()?;
    equal("unseen", page.value(&of_port("unseen_total", "rxe0")).unwrap_or(-1.0), 0.0)?;
    exporter.stop().map(|_| ())
}

pub fn probing_finds_nothing_unseen_where_mr_is_off() -> Outcome {
    let _disarmed = Set::to(SWITCH, "0")?;
    let exporter = start_by(&[], &[EVERY_SECOND], &["--no-collector.mr"])?;
    wait_for_runs(&exporter, "rxe0", "ok", 2.0)?;
    let page = exporter.page()?;
    in_state(&page, "mr", "off")?;
    equal("unseen", page.value(&of_port("unseen_total", "rxe0")).unwrap_or(-1.0), 0.0)?;
    exporter.stop().map(|_| ())
}

/// Whoever was not allowed to watch, and is then, missed nothing in between.
pub fn probing_blames_nobody_for_runs_from_before_mr_was_allowed() -> Outcome {
    let strict = Paranoid::set("3")?;
    let program = "/run/mrscope-write-probe";
    fs::copy(PROGRAM, program).map_err(|error| format!("{program}: {error}"))?;
    let rights = [BPF, PERFMON, "dac_override"];
    let exporter = start_with("65534", &rights, "unlimited", &arguments(&[EVERY_SECOND])?)?;
    wait_for_runs(&exporter, "rxe0", "ok", 2.0)?;
    in_state(&exporter.page()?, "mr", "denied")?;
    // No run is to hold a module.
    run("ip link set dummy0 down")?;
    let waited = wait_for_runs(&exporter, "rxe0", "skipped_port_down", 1.0);
    let allowed = Paranoid::set("2")?;
    let reloaded = waited.and_then(|()| WithoutRdma::begin().map(drop));
    run("ip link set dummy0 up")?;
    reloaded?;
    wait_for("mr to be ok", || Ok(in_state(&exporter.page()?, "mr", "ok").is_ok()))?;
    let before = runs(&exporter.page()?, "rxe0", "ok");
    wait_for_runs(&exporter, "rxe0", "ok", before + 2.0)?;
    let page = exporter.page()?;
    equal("unseen", page.value(&of_port("unseen_total", "rxe0")).unwrap_or(-1.0), 0.0)?;
    exporter.stop()?;
    drop(allowed);
    drop(strict);
    Ok(())
}

pub fn probing_never_touches_a_device_that_is_excluded() -> Outcome {
    let device = Device::make("rxe1", "dummy1", "10.9.1.1/24")?;
    let exporter = start(&[EVERY_SECOND, "exclude: [none, r*1]"])?;
    wait_for_runs(&exporter, device.name, "skipped_excluded", 3.0)?;
    wait_for_runs(&exporter, "rxe0", "ok", 2.0)?;
    let page = exporter.page()?;
    let results = results(&page, device.name);
    if results.len() != 1 {
        return Err(format!("runs of {}: {results:?}", device.name));
    }
    equal("registrations", registered(&page, device.name, "count"), 0.0)?;
    let figures = page.starting("mrscope_write_probe_").filter(|(series, _)| {
        series.contains("device=\"rxe1\"")
            && !series.contains("_total{")
            && !series.contains("_rate_")
    });
    let figures: Vec<_> = figures.collect();
    if figures.is_empty() { exporter.stop().map(|_| ()) } else { Err(format!("{figures:?}")) }
}

pub fn probing_forgets_a_device_that_goes_and_measures_it_when_it_is_back() -> Outcome {
    let device = Device::make("rxe1", "dummy1", "10.9.1.1/24")?;
    let exporter = start(&[EVERY_SECOND])?;
    wait_for_runs(&exporter, device.name, "ok", 1.0)?;
    run("ip link set dummy1 down")?;
    // No run is under way when it is deleted.
    wait_for_runs(&exporter, device.name, "skipped_port_down", 1.0)?;
    let page = exporter.page()?;
    equal("success while it is down", page.or_zero(&of_port("success", "rxe1")), 1.0)?;
    let done = runs(&page, "rxe1", "ok");
    run("rdma link delete rxe1")?;
    wait_for("its gauges to go", || {
        let page = exporter.page()?;
        let gauges = page.starting("mrscope_write_probe_").filter(|(series, _)| {
            series.contains("device=\"rxe1\"") && !series.contains("_total{")
        });
        Ok(gauges.count() == 0)
    })?;
    let page = exporter.page()?;
    equal("runs so far", runs(&page, "rxe1", "ok"), done)?;
    in_state(&page, "write_probe", "ok")?;

    run("ip link set dummy1 up")?;
    run("rdma link add rxe1 type rxe netdev dummy1")?;
    wait_for_runs(&exporter, "rxe1", "ok", done + 1.0)?;
    let page = exporter.page()?;
    equal("success", page.or_zero(&of_port("success", "rxe1")), 1.0)?;
    if measured(&page, "bandwidth_bytes_per_second", "rxe1", HUGE).is_none() {
        return Err("no figure of the device that is back".to_owned());
    }
    exporter.stop().map(|_| ())
}
