//! Many registrations at once: every one is counted, or said to be missed.

use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::{Workload, number};

pub fn nothing_stays(page: &Page) -> Outcome {
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR, PINNED_QUEUE] {
        equal(series, page.or_zero(series), 0.0)?;
    }
    for map in ["pins", "calls"] {
        let entries = page.or_zero(&format!("mrscope_map_entries{{map=\"{map}\"}}"));
        equal(&format!("rows of {map}"), entries, 0.0)?;
    }
    Ok(())
}

pub fn a_hundred_thousand_registrations_are_all_counted(lab: &Lab<'_>) -> Outcome {
    let before = lab.exporter.page()?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    let reply = workload.ask("churn threads=8 rounds=12500 size=8192 mappers=2")?;
    equal("the caller's registrations", number(&reply, "registered")?, 100_000.0)?;
    let after = lab.exporter.page()?;
    let moved = |series: &str| after.or_zero(series) - before.or_zero(series);
    equal("registrations", moved(REGISTRATIONS), 100_000.0)?;
    equal("deregistrations", moved(DEREGISTRATIONS), 100_000.0)?;
    let process_count = of_process("registration_duration_seconds_count", pid);
    equal("of the process", after.or_zero(&process_count), 100_000.0)?;
    // Each of eight threads has a buffer of its own, which is new once.
    let repeats = of_process("repeat_registrations_total", pid);
    equal("repeats", after.or_zero(&repeats), 99_992.0)?;
    let registered = "mrscope_mr_registered_bytes_total{device=\"rxe0\",kind=\"host\"}";
    equal("bytes", moved(registered), number(&reply, "bytes")?)?;
    let seconds = number(&reply, "reg_ns_sum")? * 1e-9;
    if !(moved(REGISTRATION_SECONDS) > 0.0 && moved(REGISTRATION_SECONDS) <= seconds) {
        return Err(format!("{} s, the callers {seconds} s", moved(REGISTRATION_SECONDS)));
    }
    let lost: Vec<_> = after
        .lost()
        .into_iter()
        .filter(|(series, count)| before.or_zero(series) != *count)
        .collect();
    if !lost.is_empty() {
        return Err(format!("lost: {lost:?}"));
    }
    nothing_stays(&after)?;
    workload.end()
}

/// Two CPUs make a process's row at once, again and again: one of them finds it made.
pub fn rows_that_two_cpus_make_at_once_lose_nothing(lab: &Lab<'_>) -> Outcome {
    let before = lab.exporter.page()?;
    for _ in 0..20 {
        let mut workload = Workload::start()?;
        workload.ask("churn threads=16 rounds=4 size=8192")?;
        let pid = workload.pid;
        let page = lab.exporter.page()?;
        let count = of_process("registration_duration_seconds_count", pid);
        equal("of the process", page.or_zero(&count), 64.0)?;
        equal("held", page.or_zero(&of_process("active", pid)), 0.0)?;
        workload.end()?;
    }
    let after = lab.exporter.page()?;
    equal("registrations", after.or_zero(REGISTRATIONS) - before.or_zero(REGISTRATIONS), 1280.0)?;
    for map in ["processes", "totals", "pins"] {
        let lost = format!("mrscope_lost_updates_total{{reason=\"full\",source=\"{map}\"}}");
        equal(&lost, after.or_zero(&lost), before.or_zero(&lost))?;
    }
    Ok(())
}

/// With one return probe at a time many returns are missed: fewer registrations are counted, and
/// the misses say how many. Trampolines miss none, so there the difference is zero too.
pub fn missed_returns_are_counted_and_explain_the_difference(mode: Mode) -> Outcome {
    let flags: Vec<&str> = mode.flags().iter().copied().chain(["--ebpf.maxactive", "1"]).collect();
    let exporter = Exporter::start(&flags)?;
    let mut workload = Workload::start()?;
    let reply = workload.ask("churn threads=64 rounds=200 size=65536 mappers=2")?;
    let done = number(&reply, "registered")?;
    let page = exporter.page()?;
    let missed = |program: &str| {
        let labels = format!("reason=\"probe_missed\",source=\"{program}\"");
        page.or_zero(&format!("mrscope_lost_updates_total{{{labels}}}"))
    };
    let counted = page.or_zero(REGISTRATIONS);
    let lost = missed("verbs_reg_mr_enter") + missed("verbs_reg_mr_exit");
    if mode == Mode::Auto && lost == 0.0 {
        return Err("no return was missed: the case proves nothing".to_owned());
    }
    let unexplained = (done - counted - lost).abs();
    if unexplained > done / 1000.0 {
        return Err(format!("{done} done, {counted} counted, {lost} missed"));
    }
    workload.end()?;
    wait_for("what was missed to be given up", || nothing_stays(&exporter.page()?).map(|()| true))?;
    // What comes later is counted as if nothing had been.
    let mut workload = Workload::start()?;
    workload.ask("reg count=5 size=8192")?;
    equal("later", exporter.page()?.or_zero(ACTIVE), 5.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}
