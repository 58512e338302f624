//! MRs from before registrations were watched, as rows of the ledger and figures of devices.

use std::collections::{HashMap, HashSet};

use crate::ledger::distinct::{Room, Tick};
use crate::model::{
    DeviceTotals, Found, FoundOwner, PinUse, Process, ProcessCounters, ProcessGauges, ProcessKey,
    Tasks,
};

use super::CollectError;
use super::accounts::Resources;

/// Keeps up what was found: where it is not known now it is still there, as far as anybody knows.
pub fn keep_up(found: &mut Vec<Found>, listed: Result<&Resources, &CollectError>) {
    match listed {
        Ok(listed) => found.clone_from(&listed.accounts.found),
        Err(CollectError::NoData(_)) => found.clear(),
        Err(_) => {}
    }
}

/// VmPin of the processes of what was found, beyond what they were seen to pin.
pub fn room(found: &[Found], tasks: &Tasks, rows: &[Process]) -> Room {
    let owners: HashSet<Tick> = found.iter().filter_map(|some| some.owner.tick()).collect();
    let mut room = Room::new();
    for task in tasks.rows.iter().filter(|task| owners.contains(&task.key.tick())) {
        if let Some(memory) = task.memory {
            room.insert(task.key.tick(), memory.pinned_bytes);
        }
    }
    for row in rows {
        if let Some(room) = room.get_mut(&row.key.tick()) {
            *room = room.saturating_sub(row.pinned_bytes.max(0) as u64);
        }
    }
    room
}

/// The processes of what was found, as they were known while they lived.
#[derive(Debug, Default)]
pub struct Holders(HashMap<(u32, u64), (ProcessKey, String)>);

impl Holders {
    /// Adds what was found to the rows of its processes; those that have none get one.
    pub fn add_to_rows(&mut self, rows: &mut Vec<Process>, found: &[Found], tasks: Option<&Tasks>) {
        self.meet(found, tasks);
        let mut places: HashMap<(u32, u64), usize> =
            rows.iter().enumerate().map(|(at, row)| (row.key.tick(), at)).collect();
        for some in found {
            let FoundOwner::Process(key) = some.owner else { continue };
            let at = *places.entry(key.tick()).or_insert_with(|| {
                rows.push(self.row(key));
                rows.len() - 1
            });
            let row = &mut rows[at];
            row.gauges = row.gauges.plus(&gauges(some));
            row.live_pins += some.count as i64;
            row.pinned_bytes += some.pinned_bytes as i64;
        }
    }

    fn meet(&mut self, found: &[Found], tasks: Option<&Tasks>) {
        let owners: HashSet<Tick> = found.iter().filter_map(|some| some.owner.tick()).collect();
        self.0.retain(|tick, _| owners.contains(tick));
        if owners.len() == self.0.len() {
            return;
        }
        for task in tasks.iter().flat_map(|tasks| &tasks.rows) {
            if owners.contains(&task.key.tick()) {
                self.0.entry(task.key.tick()).or_insert_with(|| (task.key, task.name()));
            }
        }
    }

    /// A process that did nothing yet.
    fn row(&self, key: ProcessKey) -> Process {
        let (key, comm) = self.0.get(&key.tick()).cloned().unwrap_or((key, String::new()));
        Process {
            key,
            comm,
            cgroup_id: 0,
            counters: ProcessCounters::default(),
            gauges: ProcessGauges::default(),
            pinned_bytes: 0,
            live_pins: 0,
        }
    }
}

fn gauges(found: &Found) -> ProcessGauges {
    ProcessGauges {
        active: found.count as i64,
        active_bytes: found.bytes as i64,
        largest_bytes: found.largest_bytes,
    }
}

/// What was found and is of no process that is known.
pub fn unowned(found: &[Found]) -> ProcessGauges {
    let unowned = found.iter().filter(|some| !matches!(some.owner, FoundOwner::Process(_)));
    unowned.fold(ProcessGauges::default(), |all, some| all.plus(&gauges(some)))
}

/// Adds what was found to the figures of its devices.
pub fn add_to_devices(devices: &mut Vec<DeviceTotals>, found: &[Found]) {
    for some in found {
        let same = |totals: &DeviceTotals| totals.device == some.device && totals.kind == some.kind;
        let at = devices.iter().position(same).unwrap_or_else(|| {
            devices.push(DeviceTotals::idle(&some.device, some.kind));
            devices.len() - 1
        });
        let totals = &mut devices[at];
        totals.active += some.count as i64;
        totals.active_bytes += some.bytes as i64;
        totals.pinned_bytes[PinUse::Mr as usize] += some.pinned_bytes as i64;
    }
}

/// VmPin of all processes beyond what RDMA pinned for those that live.
pub fn beyond_pins(tasks: &Tasks, rows: &[Process]) -> i64 {
    let memories: HashMap<ProcessKey, u64> =
        tasks.rows.iter().filter_map(|task| Some((task.key, task.memory?.pinned_bytes))).collect();
    let all: u64 = memories.values().sum();
    // Of one that has ended nothing is in any VmPin.
    let living = rows.iter().filter(|row| memories.contains_key(&row.key));
    all as i64 - living.map(|row| row.pinned_bytes.max(0)).sum::<i64>()
}

/// A difference between two readings that were not made at one time: what is so at one of the last
/// two alone came from what happened in between.
#[derive(Debug, Default)]
pub struct Steady {
    last: Option<i64>,
    before: Option<i64>,
}

impl Steady {
    pub fn push(&mut self, difference: Option<i64>) {
        self.before = std::mem::replace(&mut self.last, difference);
    }

    /// None while the latest is not known.
    pub fn value(&self) -> Option<i64> {
        let last = self.last?;
        let before = self.before.unwrap_or_default();
        Some(if last > 0 { before.clamp(0, last) } else { before.clamp(last, 0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(owner: FoundOwner) -> Found {
        Found {
            device: "a".to_owned(),
            kind: crate::model::MrKind::Host,
            owner,
            count: 1,
            bytes: 1,
            pinned_bytes: 4096,
            largest_bytes: 1,
        }
    }

    #[test]
    fn what_is_not_known_now_is_still_there() {
        let some = found(FoundOwner::Gone);
        let mut listed = Resources::default();
        listed.accounts.found = vec![some.clone()];
        let mut found = Vec::new();
        keep_up(&mut found, Ok(&listed));
        keep_up(&mut found, Err(&CollectError::Stale(String::new())));
        assert_eq!(found, [some]);
        keep_up(&mut found, Err(&CollectError::NoData(String::new())));
        assert_eq!(found, []);
    }

    #[test]
    fn the_room_for_what_was_found_is_what_nobody_saw_pinned() {
        let key = ProcessKey { tgid: 7, start_ns: 12_345_678 };
        let found = found(FoundOwner::Process(key.rounded()));
        let memory = crate::model::Memory { pinned_bytes: 12_288, ..Default::default() };
        let task = |key| crate::model::Task { key, comm: [0; 16], memory: Some(memory) };
        let other = ProcessKey { tgid: 8, start_ns: 1 };
        let tasks = Tasks { rows: vec![task(key), task(other)], ..Tasks::default() };
        let mut row = Holders::default().row(key);
        row.pinned_bytes = 4096;
        assert_eq!(room(&[found], &tasks, &[row]), Room::from([(key.tick(), 8192)]));
    }

    #[test]
    fn a_difference_that_is_there_once_is_none() {
        let mut steady = Steady::default();
        let mut seen = |difference| {
            steady.push(difference);
            steady.value()
        };
        assert_eq!(seen(None), None);
        assert_eq!(seen(Some(4096)), Some(0));
        assert_eq!(seen(Some(-98_304)), Some(0));
        assert_eq!(seen(Some(-4096)), Some(-4096));
        assert_eq!(seen(Some(-8192)), Some(-4096));
        assert_eq!(seen(Some(8192)), Some(0));
        assert_eq!(seen(Some(8192)), Some(8192));
        assert_eq!(seen(None), None);
    }
}
