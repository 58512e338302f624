//! The ways into the kernel that a registration can take: the library's, write(), and the newer
//! ioctl that no library here uses.

use crate::cases::*;
use crate::kprobes::{self, Hits};
use crate::page::Page;
use crate::workload::{Workload, number, vm_pin};

/// By UVERBS_METHOD_REG_MR: 5b2e45049dc0, in 6.18.
fn has_own_method() -> Result<bool, String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    let release = release.map_err(|error| error.to_string())?;
    let mut numbers = release.split('.').map(|word| word.parse::<u32>().unwrap_or_default());
    let version = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    Ok(version >= (6, 18))
}

/// Hits since `before`. Where trampolines are used no kprobe tells.
fn was_hit(lab: &Lab<'_>, before: &Hits, program: &str, expected: f64) -> Outcome {
    match kprobes::hits(lab.exporter.pid())?.get(program) {
        Some(now) => {
            let grown = now - before.get(program).copied().unwrap_or_default();
            equal(&format!("hits of {program}"), grown, expected)
        }
        None if lab.attach == "fentry" => Ok(()),
        None => Err(format!("{program} is no kprobe")),
    }
}

pub fn each_way_into_the_kernel_is_one_registration(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    let mut hits = kprobes::hits(lab.exporter.pid())?;
    // The library's: the old command inside of an ioctl.
    workload.ask("reg count=2 size=8192")?;
    workload.ask("dereg count=all")?;
    was_hit(lab, &hits, "verbs_write_enter", 0.0)?;
    was_hit(lab, &hits, "verbs_reg_mr_enter", 2.0)?;

    hits = kprobes::hits(lab.exporter.pid())?;
    for back in ["write", "ioctl"] {
        registers(lab, &mut workload, "write", back)?;
    }
    // Two batches of five came by write(), and one of them went so.
    was_hit(lab, &hits, "verbs_write_enter", 15.0)?;
    was_hit(lab, &hits, "verbs_reg_mr_enter", 10.0)?;

    hits = kprobes::hits(lab.exporter.pid())?;
    if has_own_method()? {
        for back in ["write", "ioctl"] {
            registers(lab, &mut workload, "ioctl", back)?;
        }
        was_hit(lab, &hits, "verbs_reg_mr_ioctl_enter", 10.0)?;
        was_hit(lab, &hits, "verbs_reg_mr_enter", 0.0)?;
    } else {
        is_unknown(lab, &mut workload)?;
    }
    workload.end()
}

fn registers(lab: &Lab<'_>, workload: &mut Workload, by: &str, back: &str) -> Outcome {
    let pid = workload.pid;
    let (before, pinned_before) = (lab.exporter.page()?, vm_pin(pid)?);
    let reply = workload.ask(&format!("rawreg by={by} count=5 size=10000"))?;
    let (held, pinned) = (lab.exporter.page()?, vm_pin(pid)?);
    let moved = |series: &str| held.or_zero(series) - before.or_zero(series);
    equal(&format!("{by}: done"), number(&reply, "registered")?, 5.0)?;
    equal(&format!("{by}: registrations"), moved(REGISTRATIONS), 5.0)?;
    equal(&format!("{by}: active"), moved(ACTIVE), 5.0)?;
    equal(&format!("{by}: bytes"), moved(ACTIVE_BYTES), number(&reply, "bytes")?)?;
    equal(&format!("{by}: pinned"), moved(PINNED_MR), pinned - pinned_before)?;
    equal(&format!("{by}: pages"), moved(PINNED_MR), number(&reply, "pages_bytes")?)?;
    equal(&format!("{by}: queue buffers"), moved(PINNED_QUEUE), 0.0)?;
    equal(&format!("{by}: of the process"), held.or_zero(&of_process("active", pid)), 5.0)?;
    nothing_failed_or_was_lost(&before, &held)?;

    workload.ask(&format!("rawdereg by={back}"))?;
    let after = lab.exporter.page()?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR] {
        equal(&format!("{back}: {series}"), after.or_zero(series), before.or_zero(series))?;
    }
    let gone = after.or_zero(DEREGISTRATIONS) - held.or_zero(DEREGISTRATIONS);
    equal(&format!("{back}: deregistrations"), gone, 5.0)?;
    nothing_failed_or_was_lost(&before, &after)
}

fn nothing_failed_or_was_lost(before: &Page, after: &Page) -> Outcome {
    let failed = |page: &Page| -> f64 {
        page.starting("mrscope_mr_registration_failures_total").map(|(_, count)| count).sum()
    };
    equal("failures", failed(after), failed(before))?;
    if after.lost() == before.lost() { Ok(()) } else { Err(format!("lost: {:?}", after.lost())) }
}

/// The kernel refuses the method itself: no registration was begun, so none failed.
fn is_unknown(lab: &Lab<'_>, workload: &mut Workload) -> Outcome {
    let before = lab.exporter.page()?;
    let refused = workload.ask("rawreg by=ioctl count=5 size=10000");
    if !refused.as_ref().is_err_and(|reply| reply.contains("\"EPROTONOSUPPORT\"")) {
        return Err(format!("a method that this kernel should not have: {refused:?}"));
    }
    workload.ask("rawdereg by=write")?;
    let after = lab.exporter.page()?;
    for series in [REGISTRATIONS, ACTIVE, ACTIVE_BYTES, PINNED_MR, PINNED_QUEUE] {
        equal(series, after.or_zero(series), before.or_zero(series))?;
    }
    nothing_failed_or_was_lost(&before, &after)
}
