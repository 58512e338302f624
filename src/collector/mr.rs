//! Collector `mr`: registrations of memory, by device and by process.

use std::collections::BTreeMap;

use crate::ebpf::SLOT_FIRST_LOG2;
use crate::ledger::Shown;
use crate::metrics::{Page, PageError, mr};
use crate::model::{
    Attach, Cause, DeviceTotals, HookState, PROCESS_BOUNDS_SECONDS, PinUse, ProcessCounters,
    ProcessGauges, Snapshot, cumulate, power_of_four_bounds,
};

use super::{CollectError, Collector, Scene};

const NS: f64 = 1e-9;
/// Label of all processes without a series: longer than a comm can be.
const OTHER: &str = "(all other processes)";

pub struct Mr;

impl Collector for Mr {
    fn name(&self) -> &'static str {
        "mr"
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let snapshot = scene.events?;
        let watched = watched(scene.hooks);
        if let Err(CollectError::Unsupported(_)) = watched {
            // Nothing is watched: a zero would be a claim.
            return watched;
        }
        for totals in &snapshot.devices {
            device(totals, page)?;
        }
        pinned(snapshot, page)?;
        in_flight(snapshot, page)?;
        for failure in &snapshot.failures {
            let errno = errno_name(failure.error);
            let labels = [failure.device.as_str(), &errno, failure.cause.label()];
            page.number(&mr::FAILURES, &labels, failure.count as f64)?;
        }
        let (shown, others) = scene.ledger.view();
        for process in &shown {
            owner(process, page)?;
        }
        counters(["", OTHER], &others.counters, page)?;
        gauges(["", OTHER], &others.gauges, page)?;
        watched
    }
}

fn device(totals: &DeviceTotals, page: &mut Page) -> Result<(), PageError> {
    let labels = [totals.device.as_str(), totals.kind.label()];
    for (metric, slots, ns) in [
        (&mr::REGISTRATION_SECONDS, &totals.registration_slots, totals.registration_ns),
        (&mr::PIN_SECONDS, &totals.pin_slots, totals.pin_ns),
        (&mr::DEREGISTRATION_SECONDS, &totals.deregistration_slots, totals.deregistration_ns),
    ] {
        let buckets = power_of_four_bounds(slots, SLOT_FIRST_LOG2, NS);
        page.histogram(metric, &labels, buckets, ns as f64 * NS)?;
    }
    let registered = totals.registered_bytes as f64;
    let sizes = power_of_four_bounds(&totals.size_slots, SLOT_FIRST_LOG2, 1.0);
    page.histogram(&mr::REGISTRATION_SIZE, &labels, sizes, registered)?;
    page.number(&mr::REGISTERED_BYTES, &labels, registered)?;
    page.number(&mr::ACTIVE, &labels, level(totals.active))?;
    page.number(&mr::ACTIVE_BYTES, &labels, level(totals.active_bytes))
}

/// Pinned bytes by device and use, over all kinds.
fn pinned(snapshot: &Snapshot, page: &mut Page) -> Result<(), PageError> {
    let mut devices: BTreeMap<&str, [i64; PinUse::ALL.len()]> = BTreeMap::new();
    for totals in &snapshot.devices {
        let sums = devices.entry(&totals.device).or_default();
        for (sum, bytes) in sums.iter_mut().zip(totals.pinned_bytes) {
            *sum += bytes;
        }
    }
    for (device, sums) in devices {
        for (pin_use, bytes) in PinUse::ALL.iter().zip(sums) {
            page.number(&mr::PINNED_BYTES, &[device, pin_use.label()], level(bytes))?;
        }
    }
    Ok(())
}

/// In flight, for every device that was ever seen: zero is a figure too.
fn in_flight(snapshot: &Snapshot, page: &mut Page) -> Result<(), PageError> {
    let mut devices: BTreeMap<&str, (u64, u64)> =
        snapshot.devices.iter().map(|totals| (totals.device.as_str(), (0, 0))).collect();
    for call in &snapshot.in_flight {
        let (count, oldest) = devices.entry(&call.device).or_default();
        *count += 1;
        *oldest = (*oldest).max(call.age_ns);
    }
    for (device, (count, oldest)) in devices {
        page.number(&mr::IN_FLIGHT, &[device], count as f64)?;
        page.number(&mr::IN_FLIGHT_OLDEST, &[device], oldest as f64 * NS)?;
    }
    Ok(())
}

fn owner(process: &Shown, page: &mut Page) -> Result<(), PageError> {
    let pid = process.tgid.to_string();
    let labels = [pid.as_str(), process.comm.as_str()];
    counters(labels, &process.counters, page)?;
    process.gauges.map_or(Ok(()), |held| gauges(labels, &held, page))
}

fn counters(
    [pid, comm]: [&str; 2],
    counters: &ProcessCounters,
    page: &mut Page,
) -> Result<(), PageError> {
    let buckets = cumulate(&counters.slots, &PROCESS_BOUNDS_SECONDS);
    let seconds = counters.registration_ns as f64 * NS;
    page.histogram(&mr::PROCESS_REGISTRATION_SECONDS, &[pid, comm], buckets, seconds)?;
    for (cause, count) in Cause::ALL.iter().zip(counters.failures) {
        page.number(&mr::PROCESS_FAILURES, &[pid, comm, cause.label()], count as f64)?;
    }
    Ok(())
}

fn gauges(labels: [&str; 2], held: &ProcessGauges, page: &mut Page) -> Result<(), PageError> {
    page.number(&mr::PROCESS_ACTIVE, &labels, level(held.active))?;
    page.number(&mr::PROCESS_ACTIVE_BYTES, &labels, level(held.active_bytes))?;
    page.number(&mr::PROCESS_LARGEST_BYTES, &labels, held.largest_bytes as f64)
}

/// The kernel's live figures are signed sums of several CPUs: one read between a decrease and the
/// increase before it may be below zero for a moment.
fn level(value: i64) -> f64 {
    value.max(0) as f64
}

/// Registrations are seen when the whole call and one way of pinning are watched.
fn watched(hooks: &[HookState]) -> Result<(), CollectError> {
    const PINS: [&str; 3] = ["umem_get", "umem_get_peer", "umem_get_va"];
    let call = hooks.iter().filter(|hook| hook.hook == "verbs_reg_mr");
    let pins = hooks.iter().filter(|hook| PINS.contains(&hook.hook));
    let best = |attach: Attach| matches!(attach, Attach::Fentry | Attach::Kprobe);
    let (calls, pins): (Vec<_>, Vec<_>) = (call.collect(), pins.collect());
    if calls.iter().any(|h| best(h.attach)) && pins.iter().any(|h| best(h.attach)) {
        return Ok(());
    }
    if calls.iter().chain(&pins).any(|hook| hook.attach == Attach::Pending) {
        return Err(CollectError::NoData(
            "the RDMA modules are not loaded; their functions are watched once they are".into(),
        ));
    }
    let reason = calls.iter().chain(&pins).find(|hook| !hook.reason.is_empty());
    Err(CollectError::Unsupported(reason.map_or_else(
        || "no function that registers memory is watched".to_owned(),
        |hook| format!("{} is not watched: {}", hook.symbol, hook.reason),
    )))
}

/// The usual name of an errno, or its number.
fn errno_name(error: u32) -> String {
    const NAMES: [(u32, &str); 22] = [
        (1, "EPERM"),
        (2, "ENOENT"),
        (4, "EINTR"),
        (5, "EIO"),
        (7, "E2BIG"),
        (9, "EBADF"),
        (11, "EAGAIN"),
        (12, "ENOMEM"),
        (13, "EACCES"),
        (14, "EFAULT"),
        (16, "EBUSY"),
        (19, "ENODEV"),
        (22, "EINVAL"),
        (28, "ENOSPC"),
        (34, "ERANGE"),
        (38, "ENOSYS"),
        (62, "ETIME"),
        (71, "EPROTO"),
        (75, "EOVERFLOW"),
        (95, "EOPNOTSUPP"),
        (110, "ETIMEDOUT"),
        (512, "ERESTARTSYS"),
    ];
    NAMES
        .iter()
        .find(|(number, _)| *number == error)
        .map_or_else(|| error.to_string(), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(hook: &'static str, attach: Attach) -> HookState {
        let reason = if attach == Attach::None { "because".into() } else { String::new() };
        HookState { hook, symbol: "ib_x", attach, reason }
    }

    #[test]
    fn one_way_of_pinning_is_enough_and_the_whole_call_is_needed() {
        let whole = hook("verbs_reg_mr", Attach::Kprobe);
        let old = hook("umem_get", Attach::None);
        let new = hook("umem_get_va", Attach::Kprobe);
        assert_eq!(watched(&[whole.clone(), old.clone(), new.clone()]), Ok(()));
        assert!(matches!(watched(&[old.clone(), new]), Err(CollectError::Unsupported(_))));
        let waiting = hook("umem_get", Attach::Pending);
        assert!(matches!(watched(&[whole, waiting]), Err(CollectError::NoData(_))));
        assert_eq!(
            watched(&[hook("verbs_reg_mr", Attach::None), old]),
            Err(CollectError::Unsupported("ib_x is not watched: because".into()))
        );
    }

    #[test]
    fn an_errno_without_a_name_is_a_number() {
        assert_eq!((errno_name(12).as_str(), errno_name(4000).as_str()), ("ENOMEM", "4000"));
    }

    #[test]
    fn no_comm_can_be_the_others() {
        assert!(OTHER.len() > 15);
    }
}
