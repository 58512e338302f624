//! Events counted in processes, in user mode, by counters of each of their threads. What a process
//! has counted is kept while it lives, so that its counts never fall. Who opens counters is given.

use std::collections::{BTreeMap, BTreeSet};

use rustix::time::{ClockId, clock_gettime};

use super::perf::{Event, Why};
use super::process::NS_PER_TICK;
use super::scaled::Scaled;
use super::{Host, Presence, Processes, ReadsCounters};
use crate::model::ProcessKey;

/// How often a process is opened before it is left to the next reading: it creates threads too fast.
const ROUNDS: u32 = 8;
/// A thread that is this young when its process was opened may have been under way then.
const YOUNG_TICKS: u64 = 10;
/// How often a process is opened anew because of such threads.
const DOUBTS: u32 = 2;

/// Who opens counters in threads: the kernel, or a test.
pub trait OpensInThread {
    type Open: ReadsCounters;

    /// Opens an event in a thread; threads that it creates from then on are counted with it.
    ///
    /// # Errors
    /// Why that can't be.
    fn open(&mut self, tid: u32, event: Event) -> Result<Self::Open, Why>;
}

/// Why a process that was asked for is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uncounted {
    Refused(Why),
    /// It would take more files than there may be.
    Files,
    /// Its threads come and go too fast to be opened.
    Restless,
    /// Pids of this /proc are not those of the kernel, or it hides the process.
    Hidden,
    Ended,
}

/// Counters of a few processes.
#[derive(Debug)]
pub struct ProcessCounters<C> {
    events: Vec<Event>,
    /// Which of them are open, by position.
    wanted: Vec<bool>,
    /// Files that may be open at a time.
    files: usize,
    open: BTreeMap<ProcessKey, Opened<C>>,
    /// What was counted, of all that live and were ever asked for.
    totals: BTreeMap<ProcessKey, Vec<u64>>,
    uncounted: BTreeMap<ProcessKey, Uncounted>,
}

#[derive(Debug)]
struct Opened<C> {
    tids: BTreeSet<u32>,
    counters: Vec<Counter<C>>,
    /// When that was, in ticks of boot time.
    at: u64,
    /// How often it may still be opened anew; none once no thread can have been missed.
    doubts: u32,
}

/// An event in a thread, and in those that it created.
#[derive(Debug)]
struct Counter<C> {
    event: usize,
    open: C,
    scaled: Scaled,
}

impl<C: ReadsCounters> ProcessCounters<C> {
    /// `files` may be open at a time.
    #[must_use]
    pub fn new(events: &[Event], files: usize) -> Self {
        Self {
            events: events.to_vec(),
            wanted: vec![false; events.len()],
            files,
            open: BTreeMap::new(),
            totals: BTreeMap::new(),
            uncounted: BTreeMap::new(),
        }
    }

    /// Adds what was counted since the last reading in those that are asked for, opens newcomers,
    /// and closes the others. `wanted` events alone are open, by position.
    pub fn read<O>(&mut self, opener: &mut O, host: &Host, asked: &[ProcessKey], wanted: &[bool])
    where
        O: OpensInThread<Open = C>,
    {
        self.take();
        let processes = Processes::of(host);
        let presence = |key: &ProcessKey| processes.presence(key.tgid, key.start_ns);
        let ended = |key: &ProcessKey| presence(key) == Presence::Gone;
        if self.wanted != wanted {
            self.open.clear();
            self.wanted = wanted.to_vec();
        }
        self.open.retain(|key, _| asked.contains(key) && !ended(key));
        self.totals.retain(|key, _| !ended(key));
        self.uncounted.clear();
        if !wanted.contains(&true) {
            return;
        }
        for key in asked {
            let doubts = match self.open.get_mut(key) {
                Some(opened) => match opened.doubt(host, *key) {
                    Some(doubts) => doubts,
                    None => continue,
                },
                None => DOUBTS,
            };
            self.open.remove(key);
            let opened = match presence(key) {
                Presence::Runs => self.opened(opener, host, *key, doubts),
                Presence::Gone => Err(Uncounted::Ended),
                Presence::Unknown => Err(Uncounted::Hidden),
            };
            // What was opened belongs to that process, or to another that has its pid now.
            match opened {
                Ok(_) if presence(key) != Presence::Runs => {
                    self.uncounted.insert(*key, Uncounted::Ended);
                }
                Ok(opened) => {
                    self.open.insert(*key, opened);
                    self.totals.entry(*key).or_insert_with(|| vec![0; self.events.len()]);
                }
                Err(why) => {
                    self.uncounted.insert(*key, why);
                }
            }
        }
    }

    /// What each open process counted, by event; None of those that are not open.
    pub fn counts(&self) -> impl Iterator<Item = (ProcessKey, Vec<Option<u64>>)> {
        let of = |key: &ProcessKey| -> Option<Vec<Option<u64>>> {
            let counts = self.totals.get(key)?.iter().zip(&self.wanted);
            Some(counts.map(|(count, wanted)| wanted.then_some(*count)).collect())
        };
        self.open.keys().filter_map(move |key| Some((*key, of(key)?)))
    }

    /// Those that were asked for last and are not counted.
    #[must_use]
    pub fn uncounted(&self) -> &BTreeMap<ProcessKey, Uncounted> {
        &self.uncounted
    }

    fn take(&mut self) {
        for (key, opened) in &mut self.open {
            let Some(totals) = self.totals.get_mut(key) else { continue };
            for counter in &mut opened.counters {
                // Those of a thread that has ended are read all the same: they stand for the threads
                // that it created.
                if let Ok(Some(now)) = counter.open.read() {
                    let count = counter.scaled.advance(now).counts.first().copied();
                    let total = &mut totals[counter.event];
                    *total = total.saturating_add(count.unwrap_or_default());
                }
            }
        }
    }

    /// Opens every thread of a process: again, until none was created meanwhile. Of such a thread
    /// nobody could tell whether it is counted with the one that created it.
    fn opened<O>(
        &self,
        opener: &mut O,
        host: &Host,
        key: ProcessKey,
        doubts: u32,
    ) -> Result<Opened<C>, Uncounted>
    where
        O: OpensInThread<Open = C>,
    {
        let others: usize = self.open.values().map(|opened| opened.counters.len()).sum();
        let each = self.wanted.iter().filter(|wanted| **wanted).count();
        for _ in 0..ROUNDS {
            let tids = threads(host, key.tgid).ok_or(Uncounted::Ended)?;
            if others + tids.len() * each > self.files {
                return Err(Uncounted::Files);
            }
            let mut counters = Vec::new();
            let mut counted = BTreeSet::new();
            for &tid in &tids {
                if self.open_thread(opener, tid, &mut counters)? {
                    counted.insert(tid);
                }
            }
            // Of a thread that is gone the number may be another's by now. A leader that has ended
            // stays listed.
            let now = threads(host, key.tgid).ok_or(Uncounted::Ended)?;
            if now.is_subset(&tids) && counted.is_subset(&now) {
                return Ok(Opened { tids, counters, at: now_ticks(), doubts });
            }
        }
        Err(Uncounted::Restless)
    }

    /// False if the thread has ended.
    fn open_thread<O>(
        &self,
        opener: &mut O,
        tid: u32,
        counters: &mut Vec<Counter<C>>,
    ) -> Result<bool, Uncounted>
    where
        O: OpensInThread<Open = C>,
    {
        for (at, event) in self.events.iter().enumerate().filter(|(at, _)| self.wanted[*at]) {
            match opener.open(tid, *event) {
                Ok(open) => counters.push(Counter { event: at, open, scaled: Scaled::default() }),
                Err(Why::ThreadGone) => return Ok(false),
                Err(why) => return Err(Uncounted::Refused(why)),
            }
        }
        Ok(true)
    }
}

impl<C> Opened<C> {
    /// Whether it is to be opened anew, and how often still after that: a thread may be counted by
    /// nobody if clone had passed its creator's events when these were opened, and had not shown the
    /// thread in /proc yet.
    fn doubt(&mut self, host: &Host, key: ProcessKey) -> Option<u32> {
        let left = self.doubts.checked_sub(1)?;
        let young = self.at + YOUNG_TICKS;
        let was_under_way = |tid: &u32| {
            let stat = host.proc_text(format!("{}/task/{tid}/stat", key.tgid));
            stat.ok().and_then(|stat| start_ticks(&stat)).is_some_and(|started| started <= young)
        };
        let now = now_ticks();
        if threads(host, key.tgid)?.difference(&self.tids).any(was_under_way) {
            return Some(left);
        }
        if now > young {
            self.doubts = 0;
        }
        None
    }
}

/// Threads of a process; None if it has ended.
fn threads(host: &Host, tgid: u32) -> Option<BTreeSet<u32>> {
    let folders = std::fs::read_dir(host.proc(format!("{tgid}/task"))).ok()?;
    let tids = folders.flatten().filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    let tids: BTreeSet<u32> = tids.collect();
    (!tids.is_empty()).then_some(tids)
}

/// Field 22 of a stat: when the thread was created, in ticks of boot time.
fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn now_ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64) / NS_PER_TICK
}

#[cfg(test)]
mod tests;
