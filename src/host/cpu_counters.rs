//! Events counted on every CPU, summed by NUMA node: totals that only rise, and whether they are to
//! be believed. Who opens counters is given.

use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;

use super::perf::{Event, Group, Reading, Refused, Why};
use super::scaled::{Scaled, Step};

/// Counters take turns every few milliseconds: who waits so long has none to wait for.
const STARVED_NS: u64 = 10_000_000_000;
/// Events of which no CPU has had any for so long, though their counters ran, are not counted.
const QUIET_NS: u64 = 60_000_000_000;

/// Who opens counters on a CPU: the kernel, or a test.
pub trait OpensOnCpu {
    type Open: ReadsCounters;

    /// Opens events that are to run at the same time.
    ///
    /// # Errors
    /// Which of them can't be had, and why.
    fn open(&mut self, cpu: u32, events: &[Event]) -> Result<Self::Open, Refused>;
}

/// Open counters.
pub trait ReadsCounters {
    /// None when they are dead.
    ///
    /// # Errors
    /// They can't be read.
    fn read(&self) -> io::Result<Option<Reading>>;
}

impl ReadsCounters for Group {
    fn read(&self) -> io::Result<Option<Reading>> {
        Self::read(self)
    }
}

/// Whether an event's totals are to be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Counted,
    /// It could not be opened on this CPU.
    Refused {
        cpu: u32,
        why: Why,
    },
    /// Its counters on this CPU can't be read, or stand still.
    Broken {
        cpu: u32,
        what: String,
    },
    /// Its counters are open, and have not run on this CPU for long.
    Starved {
        cpu: u32,
    },
    /// Nothing was counted yet.
    Silent,
    /// Its counters run all the time and count nothing.
    CountsNothing,
}

/// Sums over the CPUs of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeTotal {
    pub count: u64,
    pub enabled_ns: u64,
    pub running_ns: u64,
}

/// A few events that belong together, on all CPUs.
#[derive(Debug)]
pub struct CpuCounters<C> {
    events: Vec<Track>,
    /// Not if the CPU can't count them at the same time.
    together: bool,
    /// Which events are opened together, by their positions.
    layout: Vec<Vec<usize>>,
    cpus: BTreeMap<u32, Cpu<C>>,
}

/// What is known of an event.
#[derive(Debug)]
struct Track {
    event: Event,
    /// On which CPU it was refused last, and why.
    out: Option<(u32, Why)>,
    totals: BTreeMap<u32, NodeTotal>,
    /// How long the CPU with the most time ran it since any counted one.
    quiet_ns: u64,
}

/// What is open on a CPU, in the order of the layout.
#[derive(Debug)]
struct Cpu<C> {
    node: u32,
    counters: Vec<Option<Counter<C>>>,
    /// Readings in a row that found them dead or unreadable, and what the last one found.
    failed: u32,
    found: String,
}

#[derive(Debug)]
struct Counter<C> {
    open: C,
    scaled: Scaled,
    /// Time since it ran last.
    waits_ns: u64,
}

impl<C: ReadsCounters> CpuCounters<C> {
    /// The first of the events is one that happens all the time, such as accesses.
    #[must_use]
    pub fn new(events: &[Event]) -> Self {
        let track = |event: &Event| Track {
            event: *event,
            out: None,
            totals: BTreeMap::new(),
            quiet_ns: 0,
        };
        let events = events.iter().map(track).collect();
        let mut counters =
            Self { events, together: true, layout: Vec::new(), cpus: BTreeMap::new() };
        counters.lay_out();
        counters
    }

    /// Adds what was counted since the last reading, and opens what is not open: `online` are CPUs
    /// with their nodes.
    pub fn read<O>(&mut self, opener: &mut O, online: &BTreeMap<u32, u32>)
    where
        O: OpensOnCpu<Open = C>,
    {
        self.take(online);
        self.try_again(opener, online);
        // Each round leaves out an event, or parts them.
        for _ in 0..=self.events.len() {
            if self.fill(opener, online) {
                return;
            }
        }
    }

    /// The sums of an event, by node.
    #[must_use]
    pub fn totals(&self, event: usize) -> &BTreeMap<u32, NodeTotal> {
        &self.events[event].totals
    }

    /// Whether these sums are to be believed.
    #[must_use]
    pub fn verdict(&self, event: usize) -> Verdict {
        let track = &self.events[event];
        if let Some((cpu, why)) = track.out {
            return Verdict::Refused { cpu, why };
        }
        if let Some((cpu, broken)) = self.cpus.iter().find(|(_, cpu)| cpu.failed > 1) {
            return Verdict::Broken { cpu: *cpu, what: broken.found.clone() };
        }
        let group = self.layout.iter().position(|group| group.contains(&event)).unwrap_or_default();
        let waits = |cpu: &Cpu<C>| {
            let counter = cpu.counters.get(group).and_then(Option::as_ref);
            counter.is_some_and(|counter| counter.waits_ns >= STARVED_NS)
        };
        if let Some((cpu, _)) = self.cpus.iter().find(|(_, cpu)| waits(cpu)) {
            return Verdict::Starved { cpu: *cpu };
        }
        let counted = track.totals.values().any(|total| total.count > 0);
        // One that has counted may pause, as long as what happens all the time is counted still.
        let pauses = counted && event > 0 && self.verdict(0) == Verdict::Counted;
        if track.quiet_ns >= QUIET_NS && !pauses {
            Verdict::CountsNothing
        } else if counted {
            Verdict::Counted
        } else {
            Verdict::Silent
        }
    }

    /// Reads what is open; closes what is dead, or whose CPU is gone.
    fn take(&mut self, online: &BTreeMap<u32, u32>) {
        let Self { events, layout, cpus, .. } = self;
        let mut ran = vec![(0, false); events.len()];
        for cpu in cpus.values_mut() {
            let mut found = None;
            for (slot, group) in cpu.counters.iter_mut().zip(layout.iter()) {
                let Some(counter) = slot else { continue };
                match counter.advance(group.len()) {
                    Ok(step) => {
                        for (&at, &count) in group.iter().zip(&step.counts) {
                            let total = events[at].totals.entry(cpu.node).or_default();
                            total.add(count, &step);
                            ran[at].0 = step.running_ns.max(ran[at].0);
                            ran[at].1 |= count > 0;
                        }
                    }
                    Err(what) => {
                        found = Some(what);
                        *slot = None;
                    }
                }
            }
            if let Some(what) = found {
                cpu.failed += 1;
                cpu.found = what;
            } else if cpu.counters.iter().any(Option::is_some) {
                cpu.failed = 0;
            }
        }
        for (track, (longest_ns, counted)) in events.iter_mut().zip(ran) {
            track.quiet_ns = if counted { 0 } else { track.quiet_ns.saturating_add(longest_ns) };
        }
        cpus.retain(|cpu, _| online.contains_key(cpu));
    }

    /// Whether events that could not be had can be had now.
    fn try_again<O>(&mut self, opener: &mut O, online: &BTreeMap<u32, u32>)
    where
        O: OpensOnCpu<Open = C>,
    {
        let Some(first) = online.keys().next() else { return };
        let mut back = false;
        for track in &mut self.events {
            let Some((cpu, why)) = track.out.filter(|(_, why)| *why != Why::Absent) else {
                continue;
            };
            let cpu = if online.contains_key(&cpu) { cpu } else { *first };
            track.out = match opener.open(cpu, &[track.event]) {
                Ok(_) => None,
                Err(Refused { why: Why::CpuGone, .. }) => Some((cpu, why)),
                Err(refused) => Some((cpu, refused.why)),
            };
            back |= track.out.is_none();
        }
        if back {
            self.lay_out();
        }
    }

    /// Opens what is not open. False if the layout had to be changed, and it is to be done again.
    fn fill<O>(&mut self, opener: &mut O, online: &BTreeMap<u32, u32>) -> bool
    where
        O: OpensOnCpu<Open = C>,
    {
        for (&number, &node) in online {
            let groups = self.layout.len();
            let cpu = self.cpus.entry(number).or_insert_with(|| Cpu {
                node,
                counters: Vec::new(),
                failed: 0,
                found: String::new(),
            });
            cpu.counters.resize_with(groups, || None);
            for (slot, group) in cpu.counters.iter_mut().zip(&self.layout) {
                if slot.is_some() {
                    continue;
                }
                let events: Vec<Event> = group.iter().map(|&at| self.events[at].event).collect();
                match opener.open(number, &events) {
                    Ok(open) => *slot = Some(Counter::new(open)),
                    // It has just gone offline.
                    Err(Refused { why: Why::CpuGone, .. }) => break,
                    Err(refused) => {
                        let group = group.clone();
                        self.refuse(opener, number, &group, refused);
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Leaves out what can't be opened on every CPU: sums of a part of them would mislead.
    fn refuse<O>(&mut self, opener: &mut O, cpu: u32, group: &[usize], refused: Refused)
    where
        O: OpensOnCpu<Open = C>,
    {
        let Refused { at, why } = refused;
        let at = group.get(at).copied().unwrap_or_default();
        let invalid = why == Why::Other(Errno::INVAL.raw_os_error());
        if invalid && group.len() > 1 && opener.open(cpu, &[self.events[at].event]).is_ok() {
            self.together = false;
        } else if matches!(why, Why::Denied | Why::NoFiles) {
            for track in &mut self.events {
                track.out = track.out.or(Some((cpu, why)));
            }
        } else {
            self.events[at].out = Some((cpu, why));
        }
        self.lay_out();
    }

    /// Closes all; what is not left out is opened next, in groups.
    fn lay_out(&mut self) {
        let mut left = Vec::new();
        for (at, track) in self.events.iter().enumerate() {
            if track.out.is_none() {
                left.push(at);
            }
        }
        self.layout = match (self.together, left.is_empty()) {
            (_, true) => Vec::new(),
            (true, _) => vec![left],
            (false, _) => left.into_iter().map(|at| vec![at]).collect(),
        };
        for cpu in self.cpus.values_mut() {
            cpu.counters.clear();
        }
    }
}

impl<C: ReadsCounters> Counter<C> {
    fn new(open: C) -> Self {
        Self { open, scaled: Scaled::default(), waits_ns: 0 }
    }

    /// What came since the last reading, or in what way it is dead.
    fn advance(&mut self, events: usize) -> Result<Step, String> {
        let now = match self.open.read() {
            Ok(Some(now)) if now.counts.len() == events => now,
            Ok(_) => return Err("a reading gives nothing".to_owned()),
            Err(error) => return Err(error.to_string()),
        };
        let step = self.scaled.advance(now);
        if step.enabled_ns == 0 && step.counts.iter().all(|count| *count == 0) {
            return Err("their clock stands still".to_owned());
        }
        self.waits_ns = if step.running_ns > 0 { 0 } else { self.waits_ns + step.enabled_ns };
        if self.waits_ns >= STARVED_NS {
            self.scaled.leave_out();
        }
        Ok(step)
    }
}

impl NodeTotal {
    fn add(&mut self, count: u64, step: &Step) {
        self.count = self.count.saturating_add(count);
        self.enabled_ns = self.enabled_ns.saturating_add(step.enabled_ns);
        self.running_ns = self.running_ns.saturating_add(step.running_ns);
    }
}

// By path, as programs that are not this crate have this file elsewhere in their tree.
#[cfg(test)]
#[path = "cpu_counters/properties.rs"]
mod properties;
#[cfg(test)]
#[path = "cpu_counters/tests.rs"]
mod tests;
