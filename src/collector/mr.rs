//! Collector `mr`: registrations of memory, by device and by process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ebpf::{SLOT_FIRST_LOG2, UNKNOWN_DEVICE};
use crate::metrics::{Page, PageError, mr};
use crate::model::{
    Attach, Cause, DeviceTotals, Found, HookState, Labels, MapUse, MrKind, PROCESS_BOUNDS_SECONDS,
    PinUse, ProcessCounters, ProcessGauges, Snapshot, Trouble, cumulate, errno_name,
    power_of_four_bounds,
};

use super::found::add_to_devices;
use super::journal::remedy_of_full;
use super::{CollectError, Collector, Scene, SourceTimes};

const NS: f64 = 1e-9;
/// Rows of the kernel's map of devices.
const MAX_DEVICES: usize = 256;

/// What it remembers from page to page.
#[derive(Default)]
pub struct Mr {
    /// Maps that were full and have not been emptied enough since.
    full: BTreeSet<&'static str>,
    /// Devices that there were: their counters stay, a deleted one's too.
    devices: BTreeSet<String>,
}

impl Collector for Mr {
    fn name(&self) -> &'static str {
        "mr"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.events
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let snapshot = scene.events.map_err(Clone::clone)?;
        let watched = watched(scene.hooks);
        if let Err(CollectError::Unsupported(_)) = watched {
            // Nothing is watched: a zero would be a claim.
            return watched;
        }
        self.note_devices(snapshot, scene.present);
        let there = There { names: scene.devices.ok().map(|devices| devices.names.as_slice()) };
        let devices = self.with_idle(snapshot, scene.found);
        for totals in &devices {
            device(totals, &there, page)?;
        }
        repeats(&devices, page)?;
        page.number(&mr::HISTORY_FORGOTTEN, &[], snapshot.history_forgotten as f64)?;
        self.pinned(&devices, &there, page)?;
        self.in_flight(snapshot, &there, page)?;
        self.failures(snapshot, page)?;
        for shown in &scene.view.shown {
            if let Some(counted) = &shown.counters {
                counters(&shown.labels, counted, page)?;
            }
            if let Some(held) = &shown.gauges {
                gauges(&shown.labels, held, page)?;
            }
        }
        let others = &scene.view.others;
        counters(scene.others, &others.counters, page)?;
        gauges(scene.others, &others.gauges, page)?;
        watched.and_then(|()| room(snapshot, &mut self.full))
    }
}

impl Mr {
    /// Remembers names, as many as the kernel's map of devices has rows.
    fn note_devices(&mut self, snapshot: &Snapshot, present: &[String]) {
        let seen = snapshot.devices.iter().map(|totals| &totals.device).chain(present);
        for name in seen {
            if self.devices.len() < MAX_DEVICES && !self.devices.contains(name) {
                self.devices.insert(name.clone());
            }
        }
    }

    /// Totals of all devices, with what was found on them: one on which nothing was registered yet
    /// has its zeros.
    fn with_idle(&self, snapshot: &Snapshot, found: &[Found]) -> Vec<DeviceTotals> {
        let mut devices = snapshot.devices.clone();
        add_to_devices(&mut devices, found);
        for name in self.devices.iter().filter(|name| *name != UNKNOWN_DEVICE) {
            let seen =
                |totals: &DeviceTotals| totals.device == *name && totals.kind == MrKind::Host;
            if !devices.iter().any(seen) {
                devices.push(DeviceTotals::idle(name, MrKind::Host));
            }
        }
        devices
    }

    /// Every known failure of every device that was seen, and what failed otherwise.
    fn failures(&self, snapshot: &Snapshot, page: &mut Page) -> Result<(), PageError> {
        let mut counts: BTreeMap<(&str, u32, Cause), u64> = BTreeMap::new();
        for device in &self.devices {
            for (error, cause) in KNOWN_FAILURES {
                counts.insert((device, error, cause), 0);
            }
        }
        for failure in &snapshot.failures {
            counts.insert((&failure.device, failure.error, failure.cause), failure.count);
        }
        for ((device, error, cause), count) in counts {
            let labels = [device, &errno_name(error), cause.label()];
            page.number(&mr::FAILURES, &labels, count as f64)?;
        }
        Ok(())
    }

    /// Pinned bytes by device and use, over all kinds.
    fn pinned(
        &self,
        all: &[DeviceTotals],
        there: &There<'_>,
        page: &mut Page,
    ) -> Result<(), PageError> {
        let mut devices: BTreeMap<&str, [i64; PinUse::ALL.len()]> =
            self.devices.iter().map(|name| (name.as_str(), Default::default())).collect();
        for totals in all {
            let sums = devices.entry(&totals.device).or_default();
            for (sum, bytes) in sums.iter_mut().zip(totals.pinned_bytes) {
                *sum += bytes;
            }
        }
        for (device, sums) in devices {
            if there.shows(device, sums.iter().any(|bytes| *bytes > 0)) {
                for (pin_use, bytes) in PinUse::ALL.iter().zip(sums) {
                    page.number(&mr::PINNED_BYTES, &[device, pin_use.label()], level(bytes))?;
                }
            }
        }
        Ok(())
    }

    /// In flight, for every device: zero is a figure too.
    fn in_flight(
        &self,
        snapshot: &Snapshot,
        there: &There<'_>,
        page: &mut Page,
    ) -> Result<(), PageError> {
        let mut devices: BTreeMap<&str, (u64, u64)> =
            self.devices.iter().map(|name| (name.as_str(), (0, 0))).collect();
        for call in &snapshot.in_flight {
            let (count, oldest) = devices.entry(&call.device).or_default();
            *count += 1;
            *oldest = (*oldest).max(call.age_ns);
        }
        for (device, (count, oldest)) in devices {
            if there.shows(device, count > 0) {
                page.number(&mr::IN_FLIGHT, &[device], count as f64)?;
                page.number(&mr::IN_FLIGHT_OLDEST, &[device], oldest as f64 * NS)?;
            }
        }
        Ok(())
    }
}

/// The devices that there are now; None while nobody knows.
struct There<'a> {
    names: Option<&'a [String]>,
}

impl There<'_> {
    /// Whether gauges of a device are shown: those of one that was deleted go, unless something
    /// is held there still. What has no name is no device that could be.
    fn shows(&self, device: &str, holds: bool) -> bool {
        let deleted = self.names.is_some_and(|names| !names.iter().any(|name| name == device));
        holds || !deleted || device == UNKNOWN_DEVICE
    }
}

/// Failures that are written down in the table of causes: there at 0 from when a device is seen,
/// so that the first of its kind is an increase.
const KNOWN_FAILURES: [(u32, Cause); 11] = [
    (22, Cause::Refused),
    (95, Cause::Refused),
    (12, Cause::Device),
    (1, Cause::MemlockZero),
    (12, Cause::MemlockLimit),
    (12, Cause::NoMemory),
    (4, Cause::Interrupted),
    (14, Cause::BadAddress),
    (14, Cause::HugepageUnavailable),
    (22, Cause::Invalid),
    (95, Cause::Invalid),
];

fn device(totals: &DeviceTotals, there: &There<'_>, page: &mut Page) -> Result<(), PageError> {
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
    // Device memory is never pinned: what of it lives is not seen, which is not zero.
    if totals.kind == MrKind::Dm || !there.shows(&totals.device, totals.active > 0) {
        return Ok(());
    }
    page.number(&mr::ACTIVE, &labels, level(totals.active))?;
    page.number(&mr::ACTIVE_BYTES, &labels, level(totals.active_bytes))
}

/// Repeats by device, over all kinds.
fn repeats(all: &[DeviceTotals], page: &mut Page) -> Result<(), PageError> {
    let mut devices: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for totals in all {
        let (count, ns) = devices.entry(&totals.device).or_default();
        *count += totals.repeats;
        *ns += totals.repeat_ns;
    }
    for (device, (count, ns)) in devices {
        page.number(&mr::REPEATS, &[device], count as f64)?;
        page.number(&mr::REPEAT_SECONDS, &[device], ns as f64 * NS)?;
    }
    Ok(())
}

fn counters(labels: &Labels, counters: &ProcessCounters, page: &mut Page) -> Result<(), PageError> {
    let buckets = cumulate(&counters.slots, &PROCESS_BOUNDS_SECONDS);
    let seconds = counters.registration_ns as f64 * NS;
    page.process_histogram(&mr::PROCESS_REGISTRATION_SECONDS, labels, buckets, seconds)?;
    page.process_number(&mr::PROCESS_REPEATS, labels, None, counters.repeats as f64)?;
    let repeat_seconds = counters.repeat_ns as f64 * NS;
    page.process_number(&mr::PROCESS_REPEAT_SECONDS, labels, None, repeat_seconds)?;
    for (cause, count) in Cause::ALL.iter().zip(counters.failures) {
        page.process_number(&mr::PROCESS_FAILURES, labels, Some(cause.label()), count as f64)?;
    }
    Ok(())
}

fn gauges(labels: &Labels, held: &ProcessGauges, page: &mut Page) -> Result<(), PageError> {
    page.process_number(&mr::PROCESS_ACTIVE, labels, None, level(held.active))?;
    page.process_number(&mr::PROCESS_ACTIVE_BYTES, labels, None, level(held.active_bytes))?;
    page.process_number(&mr::PROCESS_LARGEST_BYTES, labels, None, held.largest_bytes as f64)
}

/// The kernel's live figures are signed sums of several CPUs: one read between a decrease and the
/// increase before it may be below zero for a moment.
fn level(value: i64) -> f64 {
    value.max(0) as f64
}

/// Whether registrations are seen as they are. Without the whole call, a way of pinning and the
/// release nothing is; without another function that this kernel has, some figures are wrong.
fn watched(hooks: &[HookState]) -> Result<(), CollectError> {
    const PINS: [&str; 3] = ["umem_get", "umem_get_peer", "umem_get_va"];
    let named = |names: &[&str]| -> Vec<&HookState> {
        hooks.iter().filter(|hook| names.contains(&hook.hook)).collect()
    };
    for needed in [named(&["verbs_reg_mr"]), named(&PINS), named(&["umem_release"])] {
        if needed.iter().any(|hook| hook.attach.watches()) {
            continue;
        }
        if needed.iter().any(|hook| hook.attach == Attach::Pending) {
            return Err(CollectError::NoData(
                "the RDMA modules are not loaded; their functions are watched once they are".into(),
            ));
        }
        let troubled = needed.iter().find(|hook| hook.trouble != Some(Trouble::NoFunction));
        return Err(match troubled.or(needed.first()) {
            Some(HookState { symbol, trouble: Some(Trouble::Denied(why)), .. }) => {
                CollectError::Denied(format!("{symbol} is not watched: {why}"))
            }
            Some(HookState { symbol, trouble: Some(why), .. }) => {
                CollectError::Unsupported(format!("{symbol} is not watched: {why}"))
            }
            _ => CollectError::Unsupported("no function that registers memory is watched".into()),
        });
    }
    for HookState { symbol, trouble, .. } in hooks {
        if let Some(Trouble::Denied(why) | Trouble::Refused(why)) = trouble {
            return Err(CollectError::Failed(format!(
                "figures are not whole, {symbol} is not watched: {why}"
            )));
        }
    }
    Ok(())
}

/// Whether the maps can take what comes next. One that was full has to be emptied a little before
/// it counts as having room: else a host at the limit would change its state with every reading.
fn room(snapshot: &Snapshot, full: &mut BTreeSet<&'static str>) -> Result<(), CollectError> {
    for map in snapshot.maps.iter().filter(|map| !map.may_be_full()) {
        if map.entries >= map.max_entries {
            full.insert(map.map);
        } else if map.entries * 20 < map.max_entries * 19 {
            full.remove(map.map);
        }
    }
    match snapshot.maps.iter().find(|map| full.contains(map.map)) {
        Some(MapUse { map, max_entries, .. }) => Err(CollectError::Failed(format!(
            "figures are not whole, the map {map} is full ({max_entries} rows): {}",
            remedy_of_full(map)
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_of_a_deleted_device_go_when_it_holds_nothing() {
        let names = ["mlx5_0".to_owned()];
        let there = There { names: Some(&names) };
        assert!(there.shows("mlx5_0", false));
        assert!(!there.shows("mlx5_1", false));
        assert!(there.shows("mlx5_1", true));
        assert!(there.shows(UNKNOWN_DEVICE, false));
        // While nobody can tell, none is deleted.
        assert!(There { names: None }.shows("mlx5_1", false));
    }

    #[test]
    fn a_map_that_was_full_has_room_again_when_a_twentieth_is_free() {
        let mut full = BTreeSet::new();
        let mut state = |entries| {
            let map = MapUse { map: "pins", entries, max_entries: 100, memory_bytes: 0 };
            let snapshot = Snapshot { maps: vec![map], ..Snapshot::default() };
            room(&snapshot, &mut full).map_err(|error| error.state())
        };
        assert_eq!(state(99), Ok(()));
        assert_eq!(state(100), Err("failed"));
        assert_eq!(state(95), Err("failed"));
        assert_eq!(state(94), Ok(()));
        assert_eq!(state(99), Ok(()));
    }

    #[test]
    fn a_map_that_forgets_what_is_old_may_be_full() {
        for map in ["last_failures", "device_samples", "history"] {
            let map = MapUse { map, entries: 8, max_entries: 8, memory_bytes: 0 };
            let snapshot = Snapshot { maps: vec![map], ..Snapshot::default() };
            assert_eq!(room(&snapshot, &mut BTreeSet::new()), Ok(()));
        }
    }

    fn hook(hook: &'static str, attach: Attach) -> HookState {
        let trouble = (attach == Attach::None).then_some(Trouble::NoFunction);
        HookState { hook, symbol: "ib_x", attach, trouble }
    }

    fn troubled(name: &'static str, trouble: Trouble) -> HookState {
        HookState { trouble: Some(trouble), ..hook(name, Attach::None) }
    }

    /// What kernels from 7.2 on have.
    fn all() -> Vec<HookState> {
        vec![
            hook("verbs_reg_mr", Attach::Kprobe),
            hook("umem_get", Attach::None),
            hook("umem_get_va", Attach::Kprobe),
            hook("umem_release", Attach::Fentry),
        ]
    }

    #[test]
    fn one_way_of_pinning_is_enough_and_the_whole_call_and_the_release_are_needed() {
        assert_eq!(watched(&all()), Ok(()));
        for needed in ["verbs_reg_mr", "umem_get_va", "umem_release"] {
            let with = |other: HookState| -> Vec<HookState> {
                all().into_iter().filter(|h| h.hook != needed).chain([other]).collect()
            };
            let state = |other| watched(&with(other)).map_err(|error| error.state());
            assert_eq!(state(hook(needed, Attach::None)), Err("unsupported"), "{needed}");
            assert_eq!(state(hook(needed, Attach::Pending)), Err("no_data"), "{needed}");
            let denied = troubled(needed, Trouble::Denied("perf_event_open".into()));
            assert_eq!(state(denied), Err("denied"), "{needed}");
        }
    }

    #[test]
    fn a_function_that_exists_and_is_not_watched_makes_the_figures_wrong() {
        let mut hooks = all();
        hooks.push(troubled("verbs_rereg_mr", Trouble::Refused("EBUSY".into())));
        assert_eq!(
            watched(&hooks),
            Err(CollectError::Failed("figures are not whole, ib_x is not watched: EBUSY".into()))
        );
    }
}
