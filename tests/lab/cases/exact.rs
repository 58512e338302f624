//! N registrations of B bytes move every figure by exactly N and B, and back.

use crate::cases::*;
use crate::workload::{Workload, kernel_mrs, number, vm_pin};

/// Counts, sizes, offsets into the page, and pages of what is registered.
const SHAPES: &[&str] = &[
    "count=1 size=1M",
    "count=64 size=65537 offset=123",
    "count=1000 size=4096",
    "count=1000 size=5000 offset=4095",
    "count=1 size=2M pages=2m",
    "count=64 size=1000000 offset=4097 pages=2m",
    "count=3 size=3M offset=1 pages=thp",
    "count=64 size=8192 threads=8",
];

pub fn registrations_move_figures_exactly_and_back(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    for shape in SHAPES {
        one_shape(lab, &mut workload, shape).map_err(|error| format!("{shape}: {error}"))?;
    }
    workload.end()
}

fn one_shape(lab: &Lab<'_>, workload: &mut Workload, shape: &str) -> Outcome {
    let pid = workload.pid;
    let (before, pinned_before) = (lab.exporter.page()?, vm_pin(pid)?);
    let (mrs_before, length_before) = kernel_mrs()?;
    let reply = workload.ask(&format!("reg {shape}"))?;
    let (held, pinned_held) = (lab.exporter.page()?, vm_pin(pid)?);
    let (mrs_held, length_held) = kernel_mrs()?;

    let moved = |series: &str| held.or_zero(series) - before.or_zero(series);
    let count = number(&reply, "registered")?;
    let bytes = number(&reply, "bytes")?;
    equal("the kernel's own count", mrs_held - mrs_before, count)?;
    equal("the kernel's own lengths", length_held - length_before, bytes)?;
    equal("mr_active", moved(ACTIVE), count)?;
    equal("mr_active_bytes", moved(ACTIVE_BYTES), bytes)?;
    equal("process active", moved(&of_process("active", pid)), count)?;
    equal("process bytes", moved(&of_process("active_bytes", pid)), bytes)?;
    equal("pinned against VmPin", moved(PINNED_MR), pinned_held - pinned_before)?;
    equal("pinned against the pages spanned", moved(PINNED_MR), number(&reply, "pages_bytes")?)?;
    equal("queue buffers", moved(PINNED_QUEUE), 0.0)?;
    equal("registrations", moved(REGISTRATIONS), count)?;
    let process_count = of_process("registration_duration_seconds_count", pid);
    equal("process registrations", moved(&process_count), count)?;
    let sizes = "mrscope_mr_registration_size_bytes_sum{device=\"rxe0\",kind=\"host\"}";
    equal("sizes", moved(sizes), bytes)?;
    within("seconds", moved(REGISTRATION_SECONDS), number(&reply, "reg_ns_sum")? * 1e-9)?;
    within("seconds of pinning", moved(PIN_SECONDS), moved(REGISTRATION_SECONDS))?;
    let process_seconds = of_process("registration_duration_seconds_sum", pid);
    within("process seconds", moved(&process_seconds), number(&reply, "reg_ns_sum")? * 1e-9)?;

    let reply = workload.ask("dereg count=all")?;
    let after = lab.exporter.page()?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR] {
        equal(series, after.or_zero(series), before.or_zero(series))?;
    }
    equal("process after", after.or_zero(&of_process("active_bytes", pid)), 0.0)?;
    let moved = |series: &str| after.or_zero(series) - before.or_zero(series);
    equal("deregistrations", moved(DEREGISTRATIONS), count)?;
    within("dereg seconds", moved(DEREGISTRATION_SECONDS), number(&reply, "dereg_ns_sum")? * 1e-9)
}

/// Positive, and no more than what the caller measured around its calls.
fn within(what: &str, seconds: f64, at_most: f64) -> Outcome {
    if seconds > 0.0 && seconds <= at_most {
        Ok(())
    } else {
        Err(format!("{what}: mrscope says {seconds} s, the caller {at_most} s"))
    }
}

pub fn a_registering_thread_that_is_gone_changes_nothing(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    workload.ask("thread count=5 size=10000")?;
    let page = lab.exporter.page()?;
    equal("held", page.or_zero(&of_process("active", pid)), 5.0)?;
    equal("bytes", page.or_zero(&of_process("active_bytes", pid)), 50_000.0)?;
    workload.ask("dereg count=all")?;
    equal("after", lab.exporter.page()?.or_zero(&of_process("active", pid)), 0.0)?;
    workload.end()
}
