//! Hosts that give less than mrscope wants: it starts, serves, and says what is missing.

use std::fs;
use std::path::Path;

use super::lifecycle::WithoutRdma;
use crate::cases::*;
use crate::exporter::Exporter;
use crate::page::Page;
use crate::workload::{Workload, vm_pin};

pub fn a_full_map_of_pins_is_said_counted_and_recovered_from() -> Outcome {
    const FILE: &str = "/tmp/mrscope-lab.yaml";
    fs::write(FILE, "ebpf:\n  max_pins: 100\n").map_err(|error| format!("{FILE}: {error}"))?;
    let exporter = Exporter::start(&["--config.file", FILE])?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=150 size=4096")?;
    let page = exporter.page()?;
    let lost = "mrscope_lost_updates_total{reason=\"full\",source=\"pins\"}";
    in_state(&page, "mr", "failed")?;
    equal("success", page.or_zero("mrscope_scrape_collector_success{collector=\"mr\"}"), 0.0)?;
    equal("lost", page.or_zero(lost), 50.0)?;
    equal("held", page.or_zero(ACTIVE), 100.0)?;
    equal("held by the process", page.or_zero(&of_process("active", workload.pid)), 100.0)?;
    equal("registered", page.or_zero(REGISTRATIONS), 150.0)?;
    let most = "mrscope_map_max_entries{map=\"pins\"}";
    equal("room", page.or_zero(most), 100.0)?;
    exporter.says(&["level=warn", "pins", "full", "raise ebpf.max_pins"])?;

    workload.ask("dereg count=all")?;
    let page = exporter.page()?;
    in_state(&page, "mr", "ok")?;
    equal("lost in all", page.or_zero(lost), 50.0)?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR] {
        equal(series, page.or_zero(series), 0.0)?;
    }
    workload.ask("reg count=10 size=4096")?;
    equal("later ones", exporter.page()?.or_zero(ACTIVE), 10.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

pub fn without_rdma_modules_the_processes_are_still_shown() -> Outcome {
    let without = WithoutRdma::begin()?;
    let exporter = Exporter::start(&[])?;
    let page = exporter.page()?;
    for (collector, state) in
        [("mr", "no_data"), ("process", "ok"), ("devices", "no_data"), ("exporter", "ok")]
    {
        in_state(&page, collector, state)?;
    }
    exporter.says(&["level=info", "mr", "RDMA modules are not loaded"])?;
    exporter.says(&["level=info", "devices", "no RDMA device"])?;
    exporter.stop()?;
    drop(without);
    Ok(())
}

/// No figure of registrations: where nothing is watched, a zero would be a claim.
pub fn claims_no_registrations(page: &Page) -> Outcome {
    let claims: Vec<_> = page
        .starting("mrscope_")
        .map(|(series, _)| series)
        .filter(|series| series.contains("mr_") || series.contains("umem_"))
        .filter(|series| !series.starts_with("mrscope_program_attached"))
        .collect();
    if claims.is_empty() { Ok(()) } else { Err(format!("claimed without a look: {claims:?}")) }
}

/// What a workload pins is shown, though its registrations are not: by the rung that is left.
pub fn shows_what_is_pinned(exporter: &Exporter, workload: &Workload, attach: &str) -> Outcome {
    let page = exporter.page()?;
    in_state(&page, "process", "ok")?;
    in_state(&page, "devices", "ok")?;
    in_state(&page, "exporter", "ok")?;
    let tasks = format!("mrscope_program_attached{{attach=\"{attach}\",program=\"tasks\"}}");
    let watches = f64::from(attach == "iterator");
    match page.value(&tasks) {
        Some(value) => equal(&tasks, value, watches)?,
        None => return Err(format!("{tasks} is absent")),
    }
    let pid = workload.pid;
    let pinned = of_named("pinned_bytes", "workload", pid);
    equal("pinned", page.value(&pinned).ok_or("no row of the workload")?, vm_pin(pid)?)
}

/// Starts mrscope in a mount namespace of its own after a preparation.
pub fn start_after(preparation: &str) -> Result<Exporter, String> {
    let script = format!("{preparation} && exec \"$@\"");
    Exporter::start_by(&["unshare", "-m", "sh", "-c", &script, "sh"], &[])
}

pub fn without_btf_proc_is_read_and_mr_says_why() -> Outcome {
    let mut workload = Workload::start()?;
    let exporter = start_after("mount -t tmpfs none /sys/kernel/btf")?;
    workload.ask("reg count=5 size=8192")?;
    let page = exporter.page()?;
    in_state(&page, "mr", "unsupported")?;
    exporter.says(&["level=warn", "mr: unsupported", "has no /sys/kernel/btf/vmlinux"])?;
    exporter.says(&["level=warn", "tasks", "has no /sys/kernel/btf/vmlinux", "/proc is read"])?;
    claims_no_registrations(&page)?;
    shows_what_is_pinned(&exporter, &workload, "none")?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

pub fn without_root_proc_is_read_and_mr_is_denied() -> Outcome {
    let mut workload = Workload::start()?;
    workload.ask("reg count=5 size=8192")?;
    // Nobody may not reach the folder that it was built in.
    fs::copy("target/release/mrscope", "/run/mrscope").map_err(|error| error.to_string())?;
    let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let copied = ["sh", "-c", "shift && exec /run/mrscope \"$@\"", "sh"];
    let exporter = Exporter::start_by(&[&nobody[..], &copied[..]].concat(), &[])?;
    let page = exporter.page()?;
    in_state(&page, "mr", "denied")?;
    equal("success", page.or_zero("mrscope_scrape_collector_success{collector=\"mr\"}"), 0.0)?;
    exporter.says(&["level=warn", "mr", "denied", "CAP_BPF"])?;
    exporter.says(&["level=warn", "tasks", "/proc is read instead"])?;
    claims_no_registrations(&page)?;
    shows_what_is_pinned(&exporter, &workload, "none")?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// The perf PMU's kprobes need no tracefs.
pub fn with_tracefs_read_only_it_says_what_it_does() -> Outcome {
    if !Path::new("/sys/kernel/tracing/kprobe_events").exists() {
        return Err("there is no tracefs: the case proves nothing".to_owned());
    }
    let exporter = start_after("mount -o remount,bind,ro /sys/kernel/tracing")?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=5 size=12345")?;
    let page = exporter.page()?;
    in_state(&page, "mr", "ok")?;
    exporter.says(&["level=warn", "tracefs can't be written"])?;
    let attached = "mrscope_program_attached{attach=\"kprobe\",program=\"verbs_reg_mr\"}";
    equal(attached, page.or_zero(attached), 1.0)?;
    let events = fs::read_to_string("/sys/kernel/tracing/kprobe_events");
    let events = events.map_err(|error| error.to_string())?;
    if events.contains(&format!("mrscope_{}_", exporter.pid())) {
        return Err(format!("it made events in tracefs: {events}"));
    }
    equal("held", page.or_zero(ACTIVE), 5.0)?;
    equal("pinned", page.or_zero(PINNED_MR), vm_pin(workload.pid)?)?;
    workload.ask("dereg count=all")?;
    equal("after", exporter.page()?.or_zero(ACTIVE), 0.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}
