//! What MRs hold: with on-demand paging nothing, and with a leak more from round to round.

use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::{Workload, kernel_mrs, number, vm_pin};

pub const CASES: &[OnceCase] = &[
    (
        "an_mr_with_on_demand_paging_is_counted_and_pins_nothing",
        an_mr_with_on_demand_paging_is_counted_and_pins_nothing,
    ),
    (
        "an_mr_of_all_memory_is_refused_before_any_pin",
        an_mr_of_all_memory_is_refused_before_any_pin,
    ),
    (
        "a_leak_of_one_mr_a_round_is_one_more_each_round",
        a_leak_of_one_mr_a_round_is_one_more_each_round,
    ),
];

fn of_kind(metric: &str, kind: &str) -> String {
    format!("mrscope_mr_{metric}{{device=\"rxe0\",kind=\"{kind}\"}}")
}

/// Failures of that errno and cause; kernels without types of modules don't know the device.
pub fn failures_of(page: &Page, errno: &str, cause: &str) -> f64 {
    let (errno, cause) = (format!("errno=\"{errno}\""), format!("cause=\"{cause}\""));
    page.starting("mrscope_mr_registration_failures_total")
        .filter(|(series, _)| series.contains(&errno) && series.contains(&cause))
        .map(|(_, count)| count)
        .sum()
}

fn an_mr_with_on_demand_paging_is_counted_and_pins_nothing() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    workload.ask("reg count=2 size=1M")?;
    let pinned = vm_pin(pid)?;
    equal("pinned before", exporter.page()?.or_zero(PINNED_MR), pinned)?;
    let reply = workload.ask("reg count=3 size=1000000 offset=123 access=odp")?;
    let bytes = number(&reply, "bytes")?;
    equal("bytes that were asked for", bytes, 3_000_000.0)?;
    equal("VmPin", vm_pin(pid)?, pinned)?;
    let page = exporter.page()?;
    equal("active", page.or_zero(&of_kind("active", "odp")), 3.0)?;
    equal("active bytes", page.or_zero(&of_kind("active_bytes", "odp")), bytes)?;
    equal("registered bytes", page.or_zero(&of_kind("registered_bytes_total", "odp")), bytes)?;
    let count = of_kind("registration_duration_seconds_count", "odp");
    equal("registrations", page.or_zero(&count), 3.0)?;
    equal("those that pin", page.or_zero(ACTIVE), 2.0)?;
    equal("pinned", page.or_zero(PINNED_MR), pinned)?;
    equal(
        "pinned by the process",
        page.or_zero(&of_named("pinned_bytes", "workload", pid)),
        pinned,
    )?;
    equal("of the process", page.or_zero(&of_process("active", pid)), 5.0)?;
    let (mrs, lengths) = kernel_mrs()?;
    equal("the kernel's count", mrs, 5.0)?;
    equal("bytes of the process", page.or_zero(&of_process("active_bytes", pid)), lengths)?;

    // The newest go first.
    workload.ask("dereg count=3")?;
    let page = exporter.page()?;
    equal("active after", page.or_zero(&of_kind("active", "odp")), 0.0)?;
    equal("active bytes after", page.or_zero(&of_kind("active_bytes", "odp")), 0.0)?;
    let count = of_kind("deregistration_duration_seconds_count", "odp");
    equal("deregistrations", page.or_zero(&count), 3.0)?;
    equal("those that pin, after", page.or_zero(ACTIVE), 2.0)?;
    equal("of the process, after", page.or_zero(&of_process("active", pid)), 2.0)?;
    workload.ask("reg count=4 size=64K access=odp")?;
    equal("before its death", exporter.page()?.or_zero(&of_kind("active", "odp")), 4.0)?;
    workload.kill()?;
    wait_for("the kernel to have none of its MRs", || Ok(kernel_mrs()?.0 == 0.0))?;
    let page = exporter.page()?;
    for series in [&of_kind("active", "odp"), &of_kind("active_bytes", "odp"), ACTIVE, PINNED_MR] {
        equal(series, page.or_zero(series), 0.0)?;
    }
    exporter.stop().map(|_| ())
}

/// Implicit on-demand paging: mlx5 has it, soft RoCE has not on any kernel.
fn an_mr_of_all_memory_is_refused_before_any_pin() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    let reply = workload.ask("fail how=implicit count=2")?;
    let errno = reply["errno_name"].as_str().ok_or("no errno")?;
    let page = exporter.page()?;
    equal("refused", failures_of(&page, errno, "refused"), 2.0)?;
    for kind in ["host", "odp"] {
        equal(kind, page.or_zero(&of_kind("active", kind)), 0.0)?;
    }
    let pins = "mrscope_map_entries{map=\"pins\"}";
    equal("live pins", page.or_zero(pins), 0.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// As a cache of MRs leaks: each round registers some and gives all but one of them back.
fn a_leak_of_one_mr_a_round_is_one_more_each_round() -> Outcome {
    const ROUNDS: u32 = 20;
    let exporter = Exporter::start(&[])?;
    let mut other = Workload::start()?;
    other.ask("reg count=7 size=8192")?;
    let mut leaking = Workload::start()?;
    let pid = leaking.pid;
    for round in 1..=ROUNDS {
        leaking.ask("reg count=3 size=12345 offset=17")?;
        leaking.ask("dereg count=2")?;
        let page = exporter.page()?;
        let rounds = f64::from(round);
        equal("of the process", page.or_zero(&of_process("active", pid)), rounds)?;
        let bytes = page.or_zero(&of_process("active_bytes", pid));
        equal("bytes of the process", bytes, rounds * 12345.0)?;
        equal("of the other", page.or_zero(&of_process("active", other.pid)), 7.0)?;
        equal("of the device", page.or_zero(ACTIVE), kernel_mrs()?.0)?;
        equal("pinned", page.or_zero(PINNED_MR), vm_pin(pid)? + vm_pin(other.pid)?)?;
    }
    leaking.end()?;
    equal("after", exporter.page()?.or_zero(ACTIVE), 7.0)?;
    other.end()?;
    exporter.stop().map(|_| ())
}
