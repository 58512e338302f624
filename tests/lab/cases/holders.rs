//! Who holds what, when holders die, fork, were there first, or are too many.

use std::process::{Command, Stdio};

use crate::cases::*;
use crate::exporter::{Exporter, signal, wait_for};
use crate::workload::{Workload, kernel_mrs, number, vm_pin, whole_pages};

pub fn kill_9_of_a_holder_leaves_zero(lab: &Lab<'_>) -> Outcome {
    let before = lab.exporter.page()?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    workload.ask("reg count=1000 size=5000 offset=7")?;
    let held = lab.exporter.page()?;
    equal("held", held.or_zero(ACTIVE) - before.or_zero(ACTIVE), 1000.0)?;
    workload.kill()?;
    // Its parent knows of the end before the last file is closed.
    wait_for("the kernel to have none of its MRs", || Ok(kernel_mrs()?.0 == 0.0))?;
    let after = lab.exporter.page()?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR, PINNED_QUEUE] {
        equal(series, after.or_zero(series), before.or_zero(series))?;
    }
    equal(
        "deregistrations",
        after.or_zero(DEREGISTRATIONS) - before.or_zero(DEREGISTRATIONS),
        1000.0,
    )?;
    if let Some(value) = after.value(&of_process("active", pid)) {
        equal("the dead process", value, 0.0)?;
    }
    wait_for("its gauges to go", || {
        Ok(lab.exporter.page()?.value(&of_process("active", pid)).is_none())
    })?;
    let registered = of_process("registration_duration_seconds_count", pid);
    equal("its counters linger", lab.exporter.page()?.or_zero(&registered), 1000.0)
}

pub fn mrs_outlive_a_parent_whose_child_keeps_the_fd(lab: &Lab<'_>) -> Outcome {
    let before = lab.exporter.page()?;
    let mut parent = Workload::start()?;
    let pid = parent.pid;
    parent.ask("reg count=10 size=1M")?;
    let child = number(&parent.ask("fork")?, "child_pid")? as u32;
    parent.kill()?;
    wait_for("the parent to be gone", || Ok(vm_pin(pid).is_err()))?;
    for _ in 0..2 {
        let page = lab.exporter.page()?;
        equal("the kernel's count", kernel_mrs()?.0, 10.0)?;
        equal("mr_active", page.or_zero(ACTIVE) - before.or_zero(ACTIVE), 10.0)?;
        equal("of the dead parent", page.or_zero(&of_process("active", pid)), 10.0)?;
        equal(
            "pinned",
            page.or_zero(PINNED_MR) - before.or_zero(PINNED_MR),
            10.0 * 1024.0 * 1024.0,
        )?;
    }
    signal(child, "KILL")?;
    wait_for("the kernel to have none of its MRs", || Ok(kernel_mrs()?.0 == 0.0))?;
    let after = lab.exporter.page()?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR] {
        equal(series, after.or_zero(series), before.or_zero(series))?;
    }
    Ok(())
}

pub fn pins_outside_a_registration_are_queue_buffers(lab: &Lab<'_>) -> Outcome {
    load_module()?;
    let before = lab.exporter.page()?;
    let (mut pinner, reply) = Workload::spawn(&["target/lab/queue_pin", "rxe0", "65537", "3"])?;
    let held = lab.exporter.page()?;
    let moved = |series: &str| held.or_zero(series) - before.or_zero(series);
    equal("queue buffers", moved(PINNED_QUEUE), 3.0 * whole_pages(65537.0))?;
    equal("queue buffers against VmPin", moved(PINNED_QUEUE), vm_pin(pinner.pid)?)?;
    equal("the pinner's own count", number(&reply, "count")?, 3.0)?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR, REGISTRATIONS] {
        equal(series, moved(series), 0.0)?;
    }
    pinner.ask("unpin")?;
    equal("after", lab.exporter.page()?.or_zero(PINNED_QUEUE), before.or_zero(PINNED_QUEUE))?;
    pinner.end()
}

/// A process that only ever pinned queues leaves nothing: its row in the kernel is freed.
pub fn a_process_with_queues_alone_is_forgotten_after_its_end(mode: Mode) -> Outcome {
    load_module()?;
    let exporter = Exporter::start(mode.flags())?;
    let (pinner, _) = Workload::spawn(&["target/lab/queue_pin", "rxe0", "4096", "2"])?;
    let rows = "mrscope_map_entries{map=\"processes\"}";
    equal("rows while it lives", exporter.page()?.or_zero(rows), 1.0)?;
    pinner.end()?;
    wait_for("its row to be freed", || Ok(exporter.page()?.value(rows) == Some(0.0)))?;
    exporter.stop().map(|_| ())
}

fn load_module() -> Outcome {
    if std::path::Path::new("/dev/mrscope_lab").exists() {
        return Ok(());
    }
    let module = std::env::var("LAB_MODULE").map_err(|_| "LAB_MODULE is not set")?;
    match Command::new("insmod").arg(&module).status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("insmod {module}: {other:?}")),
    }
}

/// Soft RoCE takes its queues from the kernel's memory: VmPin says so, and the page must too.
pub fn pingpong_has_its_one_mr(lab: &Lab<'_>) -> Outcome {
    let before = lab.exporter.page()?;
    let mut server = Command::new("ibv_rc_pingpong")
        .args(["-d", "rxe0", "-g", "1", "-p", "18515"])
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("ibv_rc_pingpong: {error}"))?;
    let held = wait_for("the server's MR", || Ok(kernel_mrs()?.0 == 1.0))
        .and_then(|()| lab.exporter.page())
        .and_then(|held| Ok((held, vm_pin(server.id())?)));
    let killed = server.kill().and_then(|()| server.wait());
    killed.map_err(|error| error.to_string())?;
    let (held, pinned) = held?;
    let moved = |series: &str| held.or_zero(series) - before.or_zero(series);
    equal("mr_active", moved(ACTIVE), 1.0)?;
    equal("registrations", moved(REGISTRATIONS), 1.0)?;
    equal("all that is pinned", moved(PINNED_MR) + moved(PINNED_QUEUE), pinned)?;
    wait_for("the kernel to have none of its MRs", || Ok(kernel_mrs()?.0 == 0.0))?;
    equal("after", lab.exporter.page()?.or_zero(ACTIVE), before.or_zero(ACTIVE))
}

pub fn mrs_from_before_the_start_count_and_never_below_zero(mode: Mode) -> Outcome {
    let mut old = Workload::start()?;
    old.ask("reg count=100 size=8192")?;
    let exporter = Exporter::start(mode.flags())?;
    let pid = old.pid;
    let held = |page: &Page, mrs: f64| -> Outcome {
        equal("MRs", page.or_zero(ACTIVE), mrs)?;
        equal("their bytes", page.or_zero(ACTIVE_BYTES), mrs * 8192.0)?;
        equal("of the process", page.or_zero(&of_process("active", pid)), mrs)
    };
    held(&exporter.page()?, 100.0)?;
    old.ask("reg count=10 size=8192")?;
    held(&exporter.page()?, 110.0)?;
    // The newest go first.
    old.ask("dereg count=10")?;
    held(&exporter.page()?, 100.0)?;
    old.ask("dereg count=99")?;
    held(&exporter.page()?, 1.0)?;
    old.ask("dereg count=1")?;
    let page = exporter.page()?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR, PINNED_QUEUE] {
        equal(series, page.or_zero(series), 0.0)?;
    }
    // A debt hidden by a clamp at zero would show now.
    old.ask("reg count=3 size=8192")?;
    let page = exporter.page()?;
    equal("no debt", page.or_zero(ACTIVE), 3.0)?;
    equal("no debt in bytes", page.or_zero(&of_process("active_bytes", old.pid)), 3.0 * 8192.0)?;
    old.end()?;
    exporter.stop().map(|_| ())
}

/// More registering processes than `process.max`: what has no series is in the sum of all others.
pub fn processes_beyond_the_limit_are_counted_together(_: &Lab<'_>) -> Outcome {
    let exporter = Exporter::start(&["--process.max", "2"])?;
    let mut workloads = Vec::new();
    // The largest first: none that comes later holds over twice as much as an owner.
    for size in ["32768", "16384", "8192", "4096"] {
        let mut workload = Workload::start()?;
        workload.ask(&format!("reg count=4 size={size}"))?;
        workloads.push(workload);
        exporter.page()?;
    }
    let page = exporter.page()?;
    let bytes: Vec<_> = page.starting("mrscope_process_mr_active_bytes").collect();
    equal("series", bytes.len() as f64, 3.0)?;
    equal("their sum", bytes.iter().map(|(_, bytes)| bytes).sum(), 4.0 * 61_440.0)?;
    let counts = page.starting("mrscope_process_mr_registration_duration_seconds_count");
    equal("registrations", counts.map(|(_, count)| count).sum(), 16.0)?;
    workloads.into_iter().try_for_each(Workload::end)?;
    exporter.stop().map(|_| ())
}
