//! Rereg in all its forms: with a pin the MR is replaced, without one the call only counts.

use super::held::failures_of;
use super::vendor::Vendor;
use crate::cases::*;
use crate::exporter::Exporter;
use crate::page::Page;
use crate::workload::{Workload, kernel_mrs, number, vm_pin};

pub const CASES: &[OnceCase] = &[
    (
        "an_mr_whose_rights_or_pd_change_by_rereg_only_counts",
        an_mr_whose_rights_or_pd_change_by_rereg_only_counts,
    ),
    ("an_mr_that_is_moved_by_rereg_is_replaced", an_mr_that_is_moved_by_rereg_is_replaced),
];

const REGISTERED_BYTES: &str = "mrscope_mr_registered_bytes_total{device=\"rxe0\",kind=\"host\"}";

/// What is held, by device and by process, is what the kernel lists and charges; nothing is lost.
fn as_the_kernel_says(exporter: &Exporter, pid: u32) -> Result<Page, String> {
    let page = exporter.page()?;
    let (count, bytes) = kernel_mrs()?;
    equal("mr_active", page.or_zero(ACTIVE), count)?;
    equal("mr_active_bytes", page.or_zero(ACTIVE_BYTES), bytes)?;
    equal("of the process", page.or_zero(&of_process("active", pid)), count)?;
    equal("bytes of the process", page.or_zero(&of_process("active_bytes", pid)), bytes)?;
    equal("pinned", page.or_zero(PINNED_MR), vm_pin(pid)?)?;
    let pins = "mrscope_map_entries{map=\"pins\"}";
    equal("live pins", page.or_zero(pins), count)?;
    if page.lost().is_empty() { Ok(page) } else { Err(format!("lost: {:?}", page.lost())) }
}

/// The change of some series from a command that does well: registrations, of them in bytes, held
/// bytes.
fn succeeds(
    exporter: &Exporter,
    workload: &mut Workload,
    command: &str,
    (registered_bytes, held_bytes): (f64, f64),
) -> Outcome {
    let before = exporter.page()?;
    workload.ask(command)?;
    let after = as_the_kernel_says(exporter, workload.pid)?;
    let moved = |series: &str| after.or_zero(series) - before.or_zero(series);
    equal(&format!("{command}: registrations"), moved(REGISTRATIONS), 1.0)?;
    let count = of_process("registration_duration_seconds_count", workload.pid);
    equal(&format!("{command}: registrations of the process"), moved(&count), 1.0)?;
    equal(&format!("{command}: registered"), moved(REGISTERED_BYTES), registered_bytes)?;
    equal(&format!("{command}: held"), moved(ACTIVE), 0.0)?;
    equal(&format!("{command}: held bytes"), moved(ACTIVE_BYTES), held_bytes)?;
    equal(&format!("{command}: deregistrations"), moved(DEREGISTRATIONS), 0.0)
}

fn fails(
    exporter: &Exporter,
    workload: &mut Workload,
    command: &str,
    (errno, cause): (&str, &str),
) -> Outcome {
    let before = exporter.page()?;
    let refused = workload.ask(command);
    if !refused.as_ref().is_err_and(|reply| reply.contains(errno)) {
        return Err(format!("{command}: {refused:?}, expected {errno}"));
    }
    let after = as_the_kernel_says(exporter, workload.pid)?;
    let failed = failures_of(&after, errno, cause) - failures_of(&before, errno, cause);
    equal(&format!("{command}: {errno}, {cause}"), failed, 1.0)?;
    let same = [ACTIVE, ACTIVE_BYTES, PINNED_MR, REGISTRATIONS, DEREGISTRATIONS, REGISTERED_BYTES];
    for series in same {
        equal(&format!("{command}: {series}"), after.or_zero(series), before.or_zero(series))?;
    }
    Ok(())
}

/// All forms that soft RoCE has, and those that it refuses.
fn an_mr_whose_rights_or_pd_change_by_rereg_only_counts() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=3 size=100000 offset=123")?;
    for flags in ["access", "pd", "access,pd", "pd"] {
        let command = format!("rereg flags={flags} via=kernel access=remote");
        succeeds(&exporter, &mut workload, &command, (0.0, 0.0))?;
    }
    for flags in ["translation", "translation,access", "translation,pd", "translation,access,pd"] {
        let command = format!("rereg flags={flags} via=kernel size=5000 access=remote");
        fails(&exporter, &mut workload, &command, ("EOPNOTSUPP", "refused"))?;
    }
    workload.ask("dereg count=all")?;
    let page = as_the_kernel_says(&exporter, workload.pid)?;
    equal("after", page.or_zero(ACTIVE), 0.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// As a vendor's driver does it, in place or by a new MR in the place of the old.
fn an_mr_that_is_moved_by_rereg_is_replaced() -> Outcome {
    let vendor = Vendor::load()?;
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    let reply = workload.ask("reg count=3 size=100000 offset=123")?;
    equal("at first", number(&reply, "bytes")?, 300_000.0)?;
    let mut held = 100_000.0;
    for (flags, size) in [
        ("translation", 50_001.0),
        ("translation,access", 200_000.0),
        ("translation,pd", 4096.0),
        ("translation,access,pd", 1_000_000.0),
        ("translation", 1.0),
    ] {
        let command =
            format!("rereg flags={flags} via=kernel size={size} offset=4095 access=remote");
        succeeds(&exporter, &mut workload, &command, (size, size - held))?;
        held = size;
    }
    for flags in ["access", "pd", "access,pd"] {
        let command = format!("rereg flags={flags} via=kernel access=remote");
        succeeds(&exporter, &mut workload, &command, (0.0, 0.0))?;
    }
    for flags in ["translation", "translation,access", "translation,access,pd"] {
        let command = format!("rereg flags={flags} via=kernel size=64K how=unmapped access=remote");
        fails(&exporter, &mut workload, &command, ("EFAULT", "bad_address"))?;
    }
    workload.ask("dereg count=all")?;
    let page = as_the_kernel_says(&exporter, workload.pid)?;
    equal("after", page.or_zero(ACTIVE), 0.0)?;
    equal("deregistrations", page.or_zero(DEREGISTRATIONS), 3.0)?;
    workload.end()?;
    exporter.stop()?;
    drop(vendor);
    Ok(())
}
