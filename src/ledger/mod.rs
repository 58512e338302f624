//! What each process holds and did, which have series of their own, and what all others did.
//! No clock and no I/O: time, deaths and labels are told. Every event is in exactly one series,
//! and no counter here ever falls.

pub mod distinct;
pub mod layout;
mod member;
pub mod reconcile;
mod slots;
mod view;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Labels, Memory, Process, ProcessCounters, ProcessGauges, ProcessKey, Tasks};

use member::Member;
use slots::{Candidate, Slots};
pub use view::{Others, Shown, View};

/// Limits of the process view.
#[derive(Debug, Clone)]
pub struct LedgerOptions {
    /// Series at most; the rest are folded into one.
    pub max_series: usize,
    /// How long the counters of a process outlive it, and a process its last event.
    pub linger: Duration,
    /// The labels name one process: of two with equal ones the newer shows what it holds. Else
    /// they are a group, and what its members hold is folded.
    pub labels_name_one: bool,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self { max_series: 100, linger: Duration::from_mins(1), labels_name_one: true }
    }
}

/// What is known of all processes at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// The kernel's rows of those that registered.
    pub rows: &'a [Process],
    /// All processes; None where that is not known now.
    pub tasks: Option<&'a Tasks>,
    /// Those that had ended *before* the rows were read, so that their rows are final.
    pub gone: &'a HashSet<ProcessKey>,
    /// Processes of mrscope itself, by pid and start in clock ticks: they never have series, and
    /// count with the others.
    pub own: &'a HashSet<(u32, u64)>,
    /// What is registered for nobody who is known.
    pub unowned: ProcessGauges,
    pub now: Duration,
}

/// A process that becomes a member: what its labels can be made of.
#[derive(Debug, Clone, Copy)]
pub struct Newcomer<'a> {
    pub key: ProcessKey,
    pub comm: &'a str,
    /// Of cgroup v2, at its first event; None where it had none.
    pub cgroup_id: Option<u64>,
}

impl<'a> Newcomer<'a> {
    fn of_row(row: &'a Process) -> Self {
        Self { key: row.key, comm: &row.comm, cgroup_id: Some(row.cgroup_id) }
    }
}

/// The processes of this host that RDMA memory is about: those with an MR, a pin or a lock, or with
/// a registration or failure of late.
#[derive(Debug)]
pub struct Ledger {
    options: LedgerOptions,
    members: HashMap<ProcessKey, Member>,
    series: HashMap<Labels, Series>,
    slots: Slots,
    /// Counters of groups without a process, the oldest first.
    remembered: VecDeque<(Labels, ProcessCounters)>,
    /// Events of processes that had no series when they happened.
    other: ProcessCounters,
    /// Memory of all processes that are no members; None where it is not known.
    strangers: Option<Memory>,
    unowned: ProcessGauges,
    /// Some keys may be rounded to the tick.
    rounded: bool,
}

/// Groups whose last process is gone that are remembered, so that they go on when another comes:
/// about 300 bytes each. The oldest of more begin anew.
const REMEMBERED_GROUPS: usize = 1024;

/// A series, shown or waiting to be shown again.
#[derive(Debug, Default)]
struct Series {
    /// Events of its processes while it was shown. Kept while one of them is known, so that a series
    /// that comes back is not below what it was.
    counters: ProcessCounters,
    shown: bool,
}

impl Ledger {
    #[must_use]
    pub fn new(options: LedgerOptions) -> Self {
        Self {
            options,
            members: HashMap::new(),
            series: HashMap::new(),
            slots: Slots::default(),
            remembered: VecDeque::new(),
            other: ProcessCounters::default(),
            strangers: None,
            unowned: ProcessGauges::default(),
            rounded: false,
        }
    }

    /// Takes a reading in. `label` is asked once for each new member.
    ///
    /// Returns the processes whose rows may be freed: gone, and nothing pinned any more.
    pub fn advance(
        &mut self,
        reading: &Reading<'_>,
        label: &mut dyn FnMut(&Newcomer<'_>) -> Labels,
    ) -> Vec<ProcessKey> {
        self.members.values_mut().for_each(Member::begin);
        self.unowned = reading.unowned;
        self.rekey(reading.rows);
        for row in reading.rows {
            self.members
                .entry(row.key)
                .or_insert_with(|| Member::new(label(&Newcomer::of_row(row))))
                .take_row(row, reading.now);
        }
        self.take_tasks(reading.tasks, label);
        let final_rows = self.bury(reading);
        let linger = self.options.linger;
        self.members.retain(|_, member| member.counts(reading.now, linger) || member.has_row());
        self.assign_series(reading.now, reading.own);
        self.count_news();
        final_rows
    }

    /// Who was first seen on a list that knows starts to the tick only, and has a row now, gets the
    /// key of the row: it is one process.
    fn rekey(&mut self, rows: &[Process]) {
        if !self.rounded {
            return;
        }
        for row in rows {
            let rounded = row.key.rounded();
            if rounded != row.key
                && !self.members.contains_key(&row.key)
                && let Some(member) = self.members.remove(&rounded)
            {
                self.members.insert(row.key, member);
            }
        }
    }

    /// Joins the list of all processes to the members; who holds something becomes one.
    fn take_tasks(
        &mut self,
        tasks: Option<&Tasks>,
        label: &mut dyn FnMut(&Newcomer<'_>) -> Labels,
    ) {
        self.strangers = None;
        let Some(tasks) = tasks else { return };
        let mut strangers: Option<Memory> = None;
        self.rounded |= !tasks.exact;
        let known: HashMap<(u32, u64), ProcessKey> = if tasks.exact {
            HashMap::new()
        } else {
            self.members.keys().map(|key| (key.tick(), *key)).collect()
        };
        for task in &tasks.rows {
            let Some(memory) = task.memory else { continue };
            let key = known.get(&task.key.tick()).copied().unwrap_or(task.key);
            if let Some(member) = self.members.get_mut(&key) {
                member.memory = Some(memory);
            } else if memory.holds() {
                let comm = task.name();
                let newcomer = Newcomer { key, comm: &comm, cgroup_id: None };
                let mut member = Member::new(label(&newcomer));
                member.memory = Some(memory);
                self.members.insert(key, member);
            } else {
                strangers = Some(strangers.map_or(memory, |all| all.plus(&memory)));
            }
        }
        self.strangers = Some(strangers.unwrap_or_default());
    }

    fn bury(&mut self, reading: &Reading<'_>) -> Vec<ProcessKey> {
        let mut final_rows = Vec::new();
        for key in reading.gone {
            let Some(member) = self.members.get_mut(key) else { continue };
            if member.may_end() {
                member.ended.get_or_insert(reading.now);
                if member.has_row() {
                    final_rows.push(*key);
                }
            }
        }
        final_rows
    }

    /// Decides which series are shown from now on.
    fn assign_series(&mut self, now: Duration, own: &HashSet<(u32, u64)>) {
        let linger = self.options.linger;
        let mut candidates: HashMap<Labels, Candidate> = HashMap::new();
        for (key, member) in &mut self.members {
            member.own |= own.contains(&key.tick());
            if member.own {
                continue;
            }
            candidates.entry(Arc::clone(&member.labels)).or_default().add(key, member, now, linger);
        }
        // A process's series is forgotten with it; a group's is remembered.
        let groups = !self.options.labels_name_one;
        self.series.retain(|labels, series| {
            let candidate = candidates.get(labels);
            series.shown &= candidate.is_some_and(|candidate| candidate.counts);
            if candidate.is_none() && groups {
                self.remembered.push_back((Arc::clone(labels), series.counters));
            }
            candidate.is_some()
        });
        let too_many = self.remembered.len().saturating_sub(REMEMBERED_GROUPS);
        self.remembered.drain(..too_many);
        for (labels, candidate) in &mut candidates {
            candidate.shown = self.series.get(labels).is_some_and(|series| series.shown);
        }
        for (labels, shown) in self.slots.assign(&candidates, self.options.max_series, now) {
            self.enter(labels).shown = shown;
        }
    }

    /// The series of that name, as it was when it was last known.
    fn enter(&mut self, labels: Labels) -> &mut Series {
        let remembered = &mut self.remembered;
        self.series.entry(labels).or_insert_with_key(|labels| {
            let place = remembered.iter().position(|(known, _)| known == labels);
            let known = place.and_then(|place| remembered.remove(place));
            let counters = known.map(|(_, counters)| counters).unwrap_or_default();
            Series { counters, shown: false }
        })
    }

    /// Each event since the last reading goes to the series of its process, or to all others'.
    fn count_news(&mut self) {
        for member in self.members.values() {
            let series = self.series.get_mut(&member.labels).filter(|series| series.shown);
            let into = series.map_or(&mut self.other, |series| &mut series.counters);
            *into = into.plus(&member.news);
        }
    }

    /// Processes that may have ended: those whose end is not known yet.
    pub fn living(&self) -> impl Iterator<Item = &ProcessKey> {
        self.members.iter().filter(|(_, member)| member.ended.is_none()).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
