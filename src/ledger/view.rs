//! The ledger as it is shown.

use std::collections::HashMap;

use crate::model::{Labels, Memory, ProcessCounters, ProcessGauges, ProcessKey};

use super::Ledger;
use super::member::Member;

/// All series of processes at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// Sorted by labels.
    pub shown: Vec<Shown>,
    pub others: Others,
}

/// A series: one process, or a group of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub labels: Labels,
    /// None of a process that never registered nor tried to: one that only locks.
    pub counters: Option<ProcessCounters>,
    /// The same, of a process that locked; None of one that did not since its series began.
    pub locks: Option<ProcessCounters>,
    /// What is registered; None once no process of it lives or holds anything.
    pub gauges: Option<ProcessGauges>,
    /// None where it is not known, or no process of it lives.
    pub memory: Option<Memory>,
    /// Its process: where it lives, and is one.
    pub key: Option<ProcessKey>,
    /// All that live of it.
    pub members: Vec<ProcessKey>,
}

/// All processes without a series together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Others {
    pub counters: ProcessCounters,
    pub gauges: ProcessGauges,
    /// None where it is not known.
    pub memory: Option<Memory>,
}

impl Ledger {
    /// Every series, and all others. What is shown and what the others hold are all that is held.
    #[must_use]
    pub fn view(&self) -> View {
        let mut others =
            Others { counters: self.other, gauges: self.unowned, memory: self.strangers };
        let mut living: HashMap<&Labels, Vec<(&ProcessKey, &Member)>> = HashMap::new();
        for (key, member) in &self.members {
            if member.ended.is_none() {
                living.entry(&member.labels).or_default().push((key, member));
            }
        }
        let mut shown = Vec::new();
        for (labels, series) in self.series.iter().filter(|(_, series)| series.shown) {
            let mut members = living.remove(labels).unwrap_or_default();
            let mut key = None;
            if self.options.labels_name_one {
                // Of two with one pid the newer owns the series.
                members.sort_by_key(|(key, _)| key.start_ns);
                let newest = members.pop();
                members.drain(..).for_each(|(_, older)| others.add(older));
                key = newest.map(|(key, _)| *key);
                members.extend(newest);
            }
            let registers =
                series.counters.registers() || members.iter().any(|(_, member)| member.registers());
            let gauges = members.iter().filter(|_| registers).map(|(_, member)| member.gauges);
            let memory = members.iter().filter_map(|(_, member)| member.memory);
            shown.push(Shown {
                labels: Labels::clone(labels),
                counters: registers.then_some(series.counters),
                locks: (series.counters.lock_calls > 0).then_some(series.counters),
                gauges: gauges.reduce(|all, more| all.plus(&more)),
                members: members.iter().map(|(key, _)| **key).collect(),
                memory: memory.reduce(|all, more| all.plus(&more)),
                key,
            });
        }
        living.into_values().flatten().for_each(|(_, member)| others.add(member));
        shown.sort_by(|a, b| a.labels.cmp(&b.labels));
        View { shown, others }
    }
}

impl Others {
    fn add(&mut self, member: &Member) {
        self.gauges = self.gauges.plus(&member.gauges);
        self.memory = match (self.memory, member.memory) {
            (Some(all), Some(more)) => Some(all.plus(&more)),
            (all, _) => all,
        };
    }
}
