//! A registration that fails is a failure with its errno and cause, and never an MR.

use super::write_probe::pool_file;
use super::write_probe_faults::Set;
use crate::boot::NODES;
use crate::cases::*;
use crate::page::Page;
use crate::workload::Workload;

pub fn failures(page: &Page, errno: &str, cause: &str) -> f64 {
    let labels = format!("cause=\"{cause}\",device=\"rxe0\",errno=\"{errno}\"");
    page.or_zero(&format!("mrscope_mr_registration_failures_total{{{labels}}}"))
}

pub fn of_process_by_cause(page: &Page, pid: u32, cause: &str) -> f64 {
    let labels = format!("cause=\"{cause}\",comm=\"workload\",pid=\"{pid}\"");
    page.or_zero(&format!("mrscope_process_mr_registration_failures_total{{{labels}}}"))
}

/// `command` fails `count` times with that errno and cause, and nothing else moves.
pub(super) fn fails_as(
    lab: &Lab<'_>,
    workload: &mut Workload,
    command: &str,
    (count, errno, cause): (f64, &str, &str),
) -> Outcome {
    let before = lab.exporter.page()?;
    let reply = workload.ask(command)?;
    if reply["errno_name"] != errno {
        return Err(format!("{command}: the caller got {reply}, expected {errno}"));
    }
    let after = lab.exporter.page()?;
    let all = |page: &Page| -> f64 {
        page.starting("mrscope_mr_registration_failures_total").map(|(_, count)| count).sum()
    };
    equal(
        &format!("{command}: {errno}, {cause}"),
        failures(&after, errno, cause) - failures(&before, errno, cause),
        count,
    )?;
    equal(&format!("{command}: all failures"), all(&after) - all(&before), count)?;
    let pid = workload.pid;
    let by_process =
        of_process_by_cause(&after, pid, cause) - of_process_by_cause(&before, pid, cause);
    equal(&format!("{command}: the process's failures"), by_process, count)?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR, PINNED_QUEUE, REGISTRATIONS] {
        equal(&format!("{command}: {series}"), after.or_zero(series), before.or_zero(series))?;
    }
    equal(&format!("{command}: live pins"), pins(&after), pins(&before))
}

fn pins(page: &Page) -> f64 {
    page.or_zero("mrscope_map_entries{map=\"pins\"}")
}

pub fn a_failing_pin_is_a_failure_and_no_mr(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    for how in ["protnone", "unmapped"] {
        let command = format!("fail how={how} size=64K count=3");
        fails_as(lab, &mut workload, &command, (3.0, "EFAULT", "bad_address"))?;
    }
    workload.end()
}

/// With an empty pool, mappings that reserved nothing. What is in a process with many mappings is
/// found as well.
pub fn a_pool_without_a_page_is_told_from_a_bad_address(lab: &Lab<'_>) -> Outcome {
    let empty = |node| Set::to(&pool_file(node, "hugepages-2048kB", "nr_hugepages"), "0");
    let _pools = (0..NODES).map(empty).collect::<Result<Vec<_>, _>>()?;
    let mut workload = Workload::start()?;
    let as_hugepage = (3.0, "EFAULT", "hugepage_unavailable");
    for mappings in [0, 100, 1000] {
        if mappings > 0 {
            workload.ask(&format!("fragment count={mappings}"))?;
        }
        let command = "fail how=hugepage size=4M count=3";
        fails_as(lab, &mut workload, command, as_hugepage)
            .map_err(|error| format!("{mappings} mappings: {error}"))?;
        let command = "fail how=unmapped size=4M count=3";
        fails_as(lab, &mut workload, command, (3.0, "EFAULT", "bad_address"))?;
    }
    workload.end()
}

pub fn memlock_stops_another_uid(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    workload.ask("rlimit memlock=1M")?;
    workload.ask("setuid uid=1000")?;
    // Up to the limit is well; one page more is not.
    workload.ask("reg count=1 size=1M")?;
    let before = lab.exporter.page()?;
    let refused = workload.ask("reg count=1 size=4096");
    if !refused.as_ref().is_err_and(|reply| reply.contains("ENOMEM")) {
        return Err(format!("over the limit: {refused:?}"));
    }
    let after = lab.exporter.page()?;
    let moved =
        failures(&after, "ENOMEM", "memlock_limit") - failures(&before, "ENOMEM", "memlock_limit");
    equal("ENOMEM, memlock_limit", moved, 1.0)?;
    equal("the MR that stays", after.or_zero(ACTIVE), before.or_zero(ACTIVE))?;
    workload.end()?;

    let mut workload = Workload::start()?;
    workload.ask("rlimit memlock=0")?;
    workload.ask("setuid uid=1000")?;
    let before = lab.exporter.page()?;
    let refused = workload.ask("reg count=1 size=4096");
    if !refused.as_ref().is_err_and(|reply| reply.contains("EPERM")) {
        return Err(format!("with a limit of 0: {refused:?}"));
    }
    let after = lab.exporter.page()?;
    let moved =
        failures(&after, "EPERM", "memlock_zero") - failures(&before, "EPERM", "memlock_zero");
    equal("EPERM, memlock_zero", moved, 1.0)?;
    workload.end()
}

pub fn refused_flags_never_reach_the_pin(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    let before = lab.exporter.page()?;
    workload.ask("fail how=access size=64K count=2")?;
    let after = lab.exporter.page()?;
    let refused = |page: &Page| -> f64 {
        page.starting("mrscope_mr_registration_failures_total{cause=\"refused\"")
            .map(|(_, c)| c)
            .sum()
    };
    equal("refused", refused(&after) - refused(&before), 2.0)?;
    equal("mr_active", after.or_zero(ACTIVE), before.or_zero(ACTIVE))?;
    workload.end()
}
