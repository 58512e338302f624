//! Records of the kernel → rows of a snapshot. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::model::{
    AddressRange, Cause, DeviceTotals, Failure, InFlight, LastFailure, LostUpdates, MadeBy,
    MlockCall, MlockTotals, MrKind, Pin, PinUse, Process, ProcessCounters, ProcessGauges,
    ProcessKey, text,
};

use super::records;

/// Label of a device whose name nobody knows.
pub const UNKNOWN_DEVICE: &str = "unknown";

/// Names of devices by the id that rows carry.
#[derive(Debug, Default)]
pub struct DeviceNames(HashMap<u64, String>);

impl DeviceNames {
    /// Takes the names that rows have; `sampled` names a device by its kernel address.
    pub fn new(
        devices: &[(u64, records::device)],
        sampled: impl Fn(u64) -> Option<String>,
    ) -> Self {
        let own_name = |device: &records::device| {
            Some(text(&device.name.map(|c| c as u8))).filter(|name| !name.is_empty())
        };
        // A row from before names were known shares its pointer with a later one that has one.
        let twin = |pointer| {
            devices
                .iter()
                .filter(|(_, twin)| twin.pointer == pointer)
                .find_map(|(_, d)| own_name(d))
        };
        let name = |device: &records::device| {
            own_name(device).or_else(|| sampled(device.pointer)).or_else(|| twin(device.pointer))
        };
        Self(devices.iter().filter_map(|(id, device)| Some((*id, name(device)?))).collect())
    }

    #[must_use]
    pub fn name(&self, id: u64) -> &str {
        self.0.get(&id).map_or(UNKNOWN_DEVICE, String::as_str)
    }
}

/// Joins rows of one device name and kind.
#[must_use]
pub fn device_totals(
    rows: &[(records::totals_key, records::totals)],
    names: &DeviceNames,
) -> Vec<DeviceTotals> {
    let mut joined: BTreeMap<(String, MrKind), DeviceTotals> = BTreeMap::new();
    for (key, row) in rows {
        let Some(kind) = MrKind::ALL.get(key.kind as usize) else {
            continue;
        };
        let device = names.name(key.device).to_owned();
        let idle = || DeviceTotals::idle(&device, *kind);
        let into = joined.entry((device.clone(), *kind)).or_insert_with(idle);
        into.registration_ns += row.registration_ns;
        into.pin_ns += row.pin_ns;
        into.deregistration_ns += row.deregistration_ns;
        into.registered_bytes += row.registered_bytes;
        into.repeats += row.repeats;
        into.repeat_ns += row.repeat_ns;
        add(&mut into.registration_slots, &row.registration_slots);
        add(&mut into.pin_slots, &row.pin_slots);
        add(&mut into.deregistration_slots, &row.deregistration_slots);
        add(&mut into.size_slots, &row.size_slots);
        into.active += row.active;
        into.active_bytes += row.active_bytes;
        for (sum, bytes) in into.pinned_bytes.iter_mut().zip(row.pinned_bytes) {
            *sum += bytes;
        }
        into.unknown_releases += row.unknown_releases;
        into.walk_ns += row.walk_ns;
    }
    joined.into_values().collect()
}

fn add(into: &mut [u64], slots: &[u64]) {
    for (sum, count) in into.iter_mut().zip(slots) {
        *sum += count;
    }
}

/// Joins rows of one device name, errno and cause.
#[must_use]
pub fn failures(rows: &[(records::failure_key, u64)], names: &DeviceNames) -> Vec<Failure> {
    let mut joined: BTreeMap<(String, u32, Cause), u64> = BTreeMap::new();
    for (key, count) in rows {
        let cause = Cause::ALL.get(key.cause as usize).copied().unwrap_or(Cause::Other);
        *joined.entry((names.name(key.device).to_owned(), key.error, cause)).or_default() += count;
    }
    joined
        .into_iter()
        .map(|((device, error, cause), count)| Failure { device, error, cause, count })
        .collect()
}

/// Newest first. Rows that were being replaced while they were read are left out: they are whole at
/// the next reading.
#[must_use]
pub fn last_failures(
    rows: &[(u32, records::last_failure)],
    names: &DeviceNames,
    page_bytes: u64,
) -> Vec<LastFailure> {
    let whole = rows.iter().map(|(_, row)| row).filter(|row| row.sum == sum_of(row));
    let mut failures: Vec<_> =
        whole.filter_map(|row| last_failure(row, names, page_bytes)).collect();
    failures.sort_by_key(|failure| std::cmp::Reverse(failure.at_ns));
    failures
}

fn last_failure(
    row: &records::last_failure,
    names: &DeviceNames,
    page_bytes: u64,
) -> Option<LastFailure> {
    Some(LastFailure {
        at_ns: row.at_ns,
        tgid: row.owner.tgid,
        comm: text(&row.comm.map(|c| c as u8)),
        device: names.name(row.device).to_owned(),
        error: row.error,
        cause: *Cause::ALL.get(row.cause as usize)?,
        kind: *MrKind::ALL.get(row.kind as usize)?,
        range: (row.range_known != 0)
            .then_some(AddressRange { address: row.address, length_bytes: row.length_bytes }),
        memlock_bytes: row.memlock_bytes,
        pinned_bytes: u64::try_from(row.pinned_pages).unwrap_or_default() * page_bytes,
        memlock_exempt: row.memlock_exempt != 0,
    })
}

/// As `mix` of bpf/maps.h, over all words before the sum itself.
fn sum_of(row: &records::last_failure) -> u64 {
    let words = &records::as_bytes(row)[..std::mem::offset_of!(records::last_failure, sum)];
    words.chunks_exact(8).fold(0, |sum, word| {
        let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
        (sum ^ word ^ (word >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// None for a row that was just made: its name is not written yet.
#[must_use]
pub fn process(key: &records::process_key, row: &records::process) -> Option<Process> {
    (row.named != 0).then(|| Process {
        key: ProcessKey { tgid: key.tgid, start_ns: key.start_boottime_ns },
        comm: text(&row.comm.map(|c| c as u8)),
        cgroup_id: row.cgroup_id,
        counters: ProcessCounters {
            registration_ns: row.registration_ns,
            slots: row.registration_slots,
            repeats: row.repeats,
            repeat_ns: row.repeat_ns,
            failures: row.failures,
            lock_calls: row.lock_calls,
            lock_ns: row.lock_ns,
        },
        gauges: ProcessGauges {
            active: row.active,
            active_bytes: row.active_bytes,
            largest_bytes: if row.active > 0 { row.largest_bytes } else { 0 },
        },
        pinned_bytes: row.pinned_bytes,
        live_pins: row.live_pins,
    })
}

/// A live pin. Devices of one name share it through `devices`.
#[must_use]
pub fn pin(
    umem: u64,
    row: &records::pin,
    names: &DeviceNames,
    devices: &mut HashMap<u64, Arc<str>>,
) -> Option<Pin> {
    let device = devices.entry(row.device).or_insert_with(|| names.name(row.device).into());
    Some(Pin {
        umem,
        born_ns: row.born_ns,
        owner: (row.owner.tgid != 0)
            .then_some(ProcessKey { tgid: row.owner.tgid, start_ns: row.owner.start_boottime_ns }),
        device: Arc::clone(device),
        kind: *MrKind::ALL.get(row.kind as usize)?,
        pin_use: *PinUse::ALL.get(row.use_ as usize)?,
        made_by: match row.verb {
            records::VERB_REREG_MR => MadeBy::Reregistration,
            records::VERB_REG_DMABUF_MR | records::VERB_REG_MR_IOCTL => MadeBy::Lengthless,
            _ => MadeBy::Registration,
        },
        committed: row.committed != 0,
        address: row.address,
        length_bytes: row.length_bytes,
        pinned_bytes: row.pinned_bytes,
    })
}

/// The registration that a thread is in; None for a pin without one, a deregistration or a lock.
#[must_use]
pub fn in_flight(
    pid_tgid: u64,
    call: &records::call,
    now_ns: u64,
    names: &DeviceNames,
) -> Option<InFlight> {
    if matches!(
        call.verb,
        records::VERB_NONE
            | records::VERB_DEREG_MR
            | records::VERB_DEVX_UMEM_REG
            | records::VERB_MLOCK
    ) {
        return None;
    }
    Some(InFlight {
        device: names.name(call.device).to_owned(),
        tgid: (pid_tgid >> 32) as u32,
        tid: pid_tgid as u32,
        age_ns: now_ns.saturating_sub(call.start_ns),
    })
}

/// Rows by [`MlockCall::ALL`].
#[must_use]
pub fn mlock_totals(rows: &[records::mlock_totals]) -> Vec<MlockTotals> {
    MlockCall::ALL
        .into_iter()
        .zip(rows)
        .map(|(call, row)| MlockTotals {
            call,
            ns: row.ns,
            bytes: row.bytes,
            slots: row.slots.to_vec(),
            failures: row.failures,
        })
        .collect()
}

/// The map and the word for each row of the `lost` map, in its order.
const LOST: [(&str, &str); records::LOST_REASONS as usize] = [
    ("calls", "full"),
    ("calls", "stale"),
    ("pins", "full"),
    ("pins", "replaced"),
    ("pins", "too_many_in_one_call"),
    ("pins", "not_removed"),
    ("processes", "full"),
    ("totals", "full"),
    ("devices", "full"),
    ("failures", "full"),
    ("last_failures", "not_written"),
    ("mlock_threads", "refused"),
    ("placements", "no_memory"),
];

/// Every row, zero too: that nothing was lost is something to show.
#[must_use]
pub fn lost(counts: &[u64]) -> Vec<LostUpdates> {
    LOST.iter()
        .zip(counts)
        .map(|((source, reason), count)| LostUpdates {
            source: (*source).to_owned(),
            reason,
            count: *count,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MLOCK_ERRORS;

    fn device(name: &str, pointer: u64) -> records::device {
        let mut row = records::device { pointer, ..Default::default() };
        for (to, from) in row.name.iter_mut().zip(name.bytes()) {
            *to = from as std::ffi::c_char;
        }
        row
    }

    #[test]
    fn rows_from_before_and_after_a_name_was_learned_are_one_device() {
        let devices = [(7, device("", 0xffff_0000)), (9, device("rxe0", 0xffff_0000))];
        let names = DeviceNames::new(&devices, |pointer| {
            (pointer == 0xffff_0000).then(|| "rxe0".to_owned())
        });
        let row = records::totals { active: 2, registered_bytes: 10, ..Default::default() };
        let gone = records::totals { active: -1, registered_bytes: 5, ..Default::default() };
        let key = |device| records::totals_key { device, kind: 0, unused: 0 };
        let joined = device_totals(&[(key(7), row), (key(9), gone)], &names);
        assert_eq!(joined.len(), 1);
        assert_eq!((joined[0].active, joined[0].registered_bytes), (1, 15));
        assert_eq!(joined[0].device, "rxe0");
        assert_eq!(names.name(0), UNKNOWN_DEVICE);
    }

    #[test]
    fn a_device_that_was_never_sampled_is_named_by_a_later_row_of_it() {
        let devices = [(7, device("", 0xffff_0000)), (9, device("mlx5_9", 0xffff_0000))];
        assert_eq!(DeviceNames::new(&devices, |_| None).name(7), "mlx5_9");
    }

    #[test]
    fn a_row_counts_from_when_it_is_named_even_with_nothing_left_in_it() {
        let key = records::process_key { tgid: 7, ..Default::default() };
        assert!(process(&key, &records::process::default()).is_none());
        let empty = records::process { named: 1, ..Default::default() };
        assert!(process(&key, &empty).is_some_and(|row| row.live_pins == 0));
    }

    fn noted(at_ns: u64) -> records::last_failure {
        let mut row = records::last_failure {
            at_ns,
            error: 12,
            cause: records::CAUSE_NO_MEMORY,
            address: 0x1000,
            length_bytes: 5,
            pinned_pages: 3,
            ..Default::default()
        };
        row.sum = sum_of(&row);
        row
    }

    #[test]
    fn the_last_failures_are_told_newest_first_and_one_that_is_being_replaced_is_not() {
        let mut torn = noted(9);
        torn.length_bytes = 6;
        let mut refused = records::last_failure { pinned_pages: -1, ..noted(8) };
        refused.sum = sum_of(&refused);
        let reached = records::last_failure { range_known: 1, memlock_exempt: 1, ..noted(7) };
        let reached = records::last_failure { sum: sum_of(&reached), ..reached };
        let rows = [(1, noted(3)), (2, torn), (3, refused), (4, reached)];
        let told = last_failures(&rows, &DeviceNames::default(), 4096);
        assert_eq!(told.iter().map(|row| row.at_ns).collect::<Vec<_>>(), [8, 7, 3]);
        assert_eq!((told[0].range, told[0].pinned_bytes), (None, 0));
        let range = AddressRange { address: 0x1000, length_bytes: 5 };
        assert_eq!((told[1].range, told[1].pinned_bytes), (Some(range), 12_288));
        assert!(told[1].memlock_exempt && !told[2].memlock_exempt);
    }

    #[test]
    fn the_orders_of_both_languages_agree() {
        assert_eq!(MrKind::ALL.len(), records::KINDS as usize);
        assert_eq!(MrKind::ALL[records::KIND_PEER as usize], MrKind::Peer);
        assert_eq!(DeviceTotals::SLOTS, records::SLOTS as usize);
        assert_eq!(PinUse::ALL.len(), records::USES as usize);
        assert_eq!(PinUse::ALL[records::USE_DEVX as usize], PinUse::Devx);
        assert_eq!(Cause::ALL.len(), records::CAUSES as usize);
        assert_eq!(Cause::ALL[records::CAUSE_MEMLOCK_LIMIT as usize], Cause::MemlockLimit);
        assert_eq!(Cause::ALL[records::CAUSE_BAD_ADDRESS as usize], Cause::BadAddress);
        let hugepage = Cause::ALL[records::CAUSE_HUGEPAGE_UNAVAILABLE as usize];
        assert_eq!(hugepage, Cause::HugepageUnavailable);
        assert_eq!(LOST[records::LOST_PINS_REPLACED as usize], ("pins", "replaced"));
        assert_eq!(LOST[records::LOST_FAILURES_FULL as usize], ("failures", "full"));
        assert_eq!(LOST[records::LOST_LAST_FAILURES as usize], ("last_failures", "not_written"));
        assert_eq!(LOST[records::LOST_THREADS_REFUSED as usize], ("mlock_threads", "refused"));
        assert_eq!(LOST[records::LOST_PLACEMENTS_NO_MEMORY as usize], ("placements", "no_memory"));
        assert_eq!(MlockCall::ALL.len(), records::MLOCK_SYSCALLS as usize);
        let place = |call| MlockCall::ALL.iter().position(|known| *known == call);
        assert_eq!(place(MlockCall::Mlockall), Some(records::SYSCALL_MLOCKALL as usize));
        assert_eq!(place(MlockCall::Munlockall), Some(records::SYSCALL_MUNLOCKALL as usize));
        assert_eq!(MLOCK_ERRORS[records::ERROR_ENOMEM as usize], "ENOMEM");
        assert_eq!(MLOCK_ERRORS[records::ERROR_EINVAL as usize], "EINVAL");
    }
}
