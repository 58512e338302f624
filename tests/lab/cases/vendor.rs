//! Memory that is pinned as vendors' drivers pin it: by functions that another module brings.

use std::path::Path;
use std::process::Command;

use super::{exact, failure, holders};
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::kprobes;
use crate::workload::{Workload, number, vm_pin};

const PEER_ACTIVE: &str = "mrscope_mr_active{device=\"rxe0\",kind=\"peer\"}";
const PEER_ACTIVE_BYTES: &str = "mrscope_mr_active_bytes{device=\"rxe0\",kind=\"peer\"}";
const PEER_REGISTRATIONS: &str =
    "mrscope_mr_registration_duration_seconds_count{device=\"rxe0\",kind=\"peer\"}";
const PEER_REGISTERED_BYTES: &str =
    "mrscope_mr_registered_bytes_total{device=\"rxe0\",kind=\"peer\"}";
const PEER_DEREGISTRATIONS: &str =
    "mrscope_mr_deregistration_duration_seconds_count{device=\"rxe0\",kind=\"peer\"}";

/// The module stands for the vendor's for its lifetime.
pub(super) struct Vendor;

impl Vendor {
    pub(super) fn load() -> Result<Self, String> {
        let beside = std::env::var("LAB_MODULE").map_err(|_| "LAB_MODULE is not set")?;
        let module = Path::new(&beside).with_file_name("mrscope_vendor.ko");
        match Command::new("insmod").arg(&module).status() {
            Ok(status) if status.success() => Ok(Self),
            other => Err(format!("insmod {}: {other:?}", module.display())),
        }
    }
}

impl Drop for Vendor {
    fn drop(&mut self) {
        // The MRs of a program that has ended may go a moment later, and each holds the module.
        let _ = wait_for("the vendor's module to go", || {
            let removed = Command::new("rmmod").arg("mrscope_vendor").status();
            Ok(removed.is_ok_and(|status| status.success()))
        });
    }
}

/// Pages pinned and unpinned since the boot, by the kernel's own count.
fn pages_pinned() -> Result<(f64, f64), String> {
    // Counts of single CPUs are added to the whole by this.
    std::fs::write("/proc/sys/vm/stat_refresh", "1").map_err(|e| format!("stat_refresh: {e}"))?;
    let text = std::fs::read_to_string("/proc/vmstat").map_err(|e| e.to_string())?;
    let count = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        found.ok_or_else(|| format!("no {name} in /proc/vmstat"))
    };
    Ok((count("nr_foll_pin_acquired ")?, count("nr_foll_pin_released ")?))
}

fn attached(exporter: &Exporter, attach: &str, program: &str) -> Result<bool, String> {
    let series = format!("mrscope_program_attached{{attach=\"{attach}\",program=\"{program}\"}}");
    Ok(exporter.page()?.value(&series) == Some(1.0))
}

/// The module has no BTF: on kernels with trampolines both ways of watching stand side by side.
fn is_watched(exporter: &Exporter, mode: Mode) -> Outcome {
    for (attach, program) in
        [("kprobe", "umem_get_peer"), ("kprobe", "umem_peer_get"), (mode.label(), "umem_release")]
    {
        if !attached(exporter, attach, program)? {
            return Err(format!("{program} is not attached by {attach}"));
        }
    }
    Ok(())
}

/// The kernel's own pin functions are called by nobody, and the vendor's so many times.
fn only_the_vendor_s_was_called(pid: u32, times: f64) -> Outcome {
    for (program, hits) in kprobes::hits(pid)? {
        let expected = match program.as_str() {
            "umem_get_peer_enter" | "umem_get_peer_exit" => times,
            pin if pin.starts_with("umem_") && !pin.contains("release") => 0.0,
            _ => continue,
        };
        equal(&format!("hits of {program}"), hits, expected)?;
    }
    Ok(())
}

pub fn what_a_vendor_s_driver_pins_is_counted_as_the_kernel_s(mode: Mode) -> Outcome {
    let vendor = Vendor::load()?;
    let exporter = Exporter::start(mode.flags())?;
    is_watched(&exporter, mode)?;
    let lab =
        Lab { kernel: "any", pin_program: "umem_get_peer", attach: "kprobe", exporter: &exporter };
    let (pinned, unpinned) = pages_pinned()?;
    exact::registrations_move_figures_exactly_and_back(&lab)?;
    let (pinned_after, unpinned_after) = pages_pinned()?;
    equal("pages given back", unpinned_after - unpinned, pinned_after - pinned)?;
    only_the_vendor_s_was_called(exporter.pid(), exporter.page()?.or_zero(REGISTRATIONS))?;
    failure::a_failing_pin_is_a_failure_and_no_mr(&lab)?;
    failure::memlock_stops_another_uid(&lab)?;
    holders::kill_9_of_a_holder_leaves_zero(&lab)?;

    // The probes hold no module, and are there when it is again.
    drop(vendor);
    let vendor = Vendor::load()?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=3 size=8192")?;
    let page = exporter.page()?;
    equal("of the module that came again", page.or_zero(ACTIVE), 3.0)?;
    equal("pinned", page.or_zero(PINNED_MR), vm_pin(workload.pid)?)?;
    workload.end()?;
    let page = exporter.page()?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR, PINNED_QUEUE] {
        equal(series, page.or_zero(series), 0.0)?;
    }
    exporter.stop()?;
    drop(vendor);
    Ok(())
}

pub fn memory_of_a_gpu_is_peer_memory_and_charged(mode: Mode) -> Outcome {
    let vendor = Vendor::load()?;
    let exporter = Exporter::start(mode.flags())?;
    is_watched(&exporter, mode)?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    let (before, free) = (exporter.page()?, pages_pinned()?);
    let reply = workload.ask("reg count=3 size=1000000 offset=123 pages=peer")?;
    let held = exporter.page()?;
    let bytes = number(&reply, "bytes")?;
    equal("what the workload registered", bytes, 3_000_000.0)?;
    equal("pages of the host", pages_pinned()?.0, free.0)?;
    equal("active", held.or_zero(PEER_ACTIVE), 3.0)?;
    equal("active bytes", held.or_zero(PEER_ACTIVE_BYTES), bytes)?;
    equal("registrations", held.or_zero(PEER_REGISTRATIONS), 3.0)?;
    equal("registered bytes", held.or_zero(PEER_REGISTERED_BYTES), bytes)?;
    equal("pinned against VmPin", held.or_zero(PINNED_MR), vm_pin(pid)?)?;
    equal("pinned against the pages", held.or_zero(PINNED_MR), number(&reply, "pages_bytes")?)?;
    equal("of the process", held.or_zero(&of_process("active", pid)), 3.0)?;
    equal("its bytes", held.or_zero(&of_process("active_bytes", pid)), bytes)?;
    for series in [ACTIVE, ACTIVE_BYTES, REGISTRATIONS, PINNED_QUEUE] {
        equal(series, held.or_zero(series), before.or_zero(series))?;
    }
    let failed: Vec<_> = held
        .starting("mrscope_mr_registration_failures_total")
        .filter(|(_, count)| *count > 0.0)
        .collect();
    if !failed.is_empty() {
        return Err(format!("what was peer memory in the end failed: {failed:?}"));
    }
    // Both kinds at once: each release lowers its own.
    workload.ask("reg count=2 size=8192")?;
    equal("host", exporter.page()?.or_zero(ACTIVE), 2.0)?;
    workload.ask("dereg count=3")?;
    let page = exporter.page()?;
    equal("host after", page.or_zero(ACTIVE), 0.0)?;
    equal("peer after", page.or_zero(PEER_ACTIVE), 2.0)?;
    equal("peer bytes after", page.or_zero(PEER_ACTIVE_BYTES), 2_000_000.0)?;
    workload.ask("dereg count=all")?;
    let page = exporter.page()?;
    for series in [PEER_ACTIVE, PEER_ACTIVE_BYTES, PINNED_MR] {
        equal(series, page.or_zero(series), 0.0)?;
    }
    equal("deregistrations", page.or_zero(PEER_DEREGISTRATIONS), 3.0)?;

    workload.ask("reg count=4 size=1M pages=peer")?;
    equal("before its death", exporter.page()?.or_zero(PEER_ACTIVE), 4.0)?;
    workload.kill()?;
    wait_for("zero", || Ok(exporter.page()?.or_zero(PEER_ACTIVE) == 0.0))?;
    equal("pinned", exporter.page()?.or_zero(PINNED_MR), 0.0)?;

    peer_memory_is_held_against_memlock(&exporter)?;
    exporter.stop()?;
    drop(vendor);
    Ok(())
}

fn peer_memory_is_held_against_memlock(exporter: &Exporter) -> Outcome {
    let mut workload = Workload::start()?;
    workload.ask("rlimit memlock=1M")?;
    workload.ask("setuid uid=1000")?;
    workload.ask("reg count=1 size=1M pages=peer")?;
    let refused = workload.ask("reg count=1 size=4096 pages=peer");
    if !refused.as_ref().is_err_and(|reply| reply.contains("ENOMEM")) {
        return Err(format!("over the limit: {refused:?}"));
    }
    let page = exporter.page()?;
    equal("memlock_limit", failure::failures(&page, "ENOMEM", "memlock_limit"), 1.0)?;
    equal("what stays", page.or_zero(PEER_ACTIVE), 1.0)?;
    workload.end()?;
    equal("after", exporter.page()?.or_zero(PEER_ACTIVE), 0.0)
}

/// A module that no hook names, loaded while mrscope runs.
pub fn a_function_that_another_module_brings_later_is_watched(mode: Mode) -> Outcome {
    let exporter = Exporter::start(mode.flags())?;
    if attached(&exporter, "kprobe", "umem_get_peer")? {
        return Err("the function is watched before it is there: the case proves nothing".into());
    }
    let vendor = Vendor::load()?;
    wait_for("the vendor's function to be watched", || {
        Ok(attached(&exporter, "kprobe", "umem_get_peer")?
            && attached(&exporter, "kprobe", "umem_peer_get")?)
    })?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=5 size=12345")?;
    let page = exporter.page()?;
    equal("active", page.or_zero(ACTIVE), 5.0)?;
    equal("bytes", page.or_zero(ACTIVE_BYTES), 5.0 * 12345.0)?;
    equal("pinned", page.or_zero(PINNED_MR), vm_pin(workload.pid)?)?;
    workload.ask("reg count=1 size=1M pages=peer")?;
    equal("peer", exporter.page()?.or_zero(PEER_ACTIVE), 1.0)?;
    workload.ask("dereg count=all")?;
    let page = exporter.page()?;
    for series in [ACTIVE, ACTIVE_BYTES, PEER_ACTIVE, PINNED_MR, PINNED_QUEUE] {
        equal(series, page.or_zero(series), 0.0)?;
    }
    workload.end()?;
    exporter.stop()?;
    drop(vendor);
    Ok(())
}
