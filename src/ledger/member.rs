//! One process of the ledger.

use std::time::Duration;

use crate::model::{Labels, Memory, Process, ProcessCounters, ProcessGauges};

#[derive(Debug)]
pub struct Member {
    pub labels: Labels,
    pub gauges: ProcessGauges,
    pub memory: Option<Memory>,
    /// Events since the last reading.
    pub news: ProcessCounters,
    /// When its end was noticed, with nothing of it pinned any more.
    pub ended: Option<Duration>,
    /// It is mrscope's own, and has no series.
    pub own: bool,
    /// The kernel's counters at the last reading: kept for as long as the kernel has its row.
    seen: ProcessCounters,
    live_pins: i64,
    in_kernel: bool,
    last_event: Option<Duration>,
    /// Counts for those alone that held something at a reading: many lock and unlock a page once, as
    /// they start.
    last_lock: Option<Duration>,
    held: bool,
    last_failure: Option<Duration>,
}

impl Member {
    pub fn new(labels: Labels) -> Self {
        Self {
            labels,
            gauges: ProcessGauges::default(),
            memory: None,
            news: ProcessCounters::default(),
            ended: None,
            own: false,
            seen: ProcessCounters::default(),
            live_pins: 0,
            in_kernel: false,
            last_event: None,
            last_lock: None,
            held: false,
            last_failure: None,
        }
    }

    /// A new reading begins: what it does not tell is not so any more.
    pub fn begin(&mut self) {
        self.held |= self.holds();
        if !self.in_kernel {
            // The kernel freed its row: another would count from zero.
            self.seen = ProcessCounters::default();
        }
        self.in_kernel = false;
        self.memory = None;
        self.gauges = ProcessGauges::default();
        self.live_pins = 0;
        self.news = ProcessCounters::default();
    }

    pub fn take_row(&mut self, row: &Process, now: Duration) {
        self.in_kernel = true;
        self.ended = None;
        self.gauges = row.gauges;
        self.live_pins = row.live_pins;
        self.news = row.counters.since(&self.seen);
        self.seen = row.counters;
        if self.news.failed() > 0 {
            self.last_failure = Some(now);
        }
        if self.news.lock_calls > 0 {
            self.last_lock = Some(now);
        }
        if self.news.registers() {
            self.last_event = Some(now);
        }
    }

    pub fn has_row(&self) -> bool {
        self.in_kernel
    }

    /// Whether it has a row of one that registered, tried to, or holds a pin: others only lock.
    pub fn registers(&self) -> bool {
        self.in_kernel && (self.seen.registers() || self.live_pins > 0 || self.gauges.active > 0)
    }

    /// Whether nothing of it can outlive it.
    pub fn may_end(&self) -> bool {
        self.live_pins <= 0
    }

    /// Whether it is one of those that the page is about.
    pub fn counts(&self, now: Duration, linger: Duration) -> bool {
        let of_late = |at: Option<Duration>| at.is_some_and(|at| now.saturating_sub(at) < linger);
        let last_lock = self.last_lock.filter(|_| self.held);
        match self.ended {
            // Without any event there is no counter to show.
            Some(_) => of_late(self.ended) && self.last_event.or(last_lock).is_some(),
            None => self.holds() || of_late(self.last_event) || of_late(last_lock),
        }
    }

    fn holds(&self) -> bool {
        self.gauges.active > 0
            || self.live_pins > 0
            || self.memory.is_some_and(|memory| memory.holds())
    }

    pub fn failing(&self, now: Duration, linger: Duration) -> bool {
        self.last_failure.is_some_and(|at| now.saturating_sub(at) < linger)
    }

    /// The largest of what it registered, pinned and locked: the same page may be in all of them.
    pub fn held_bytes(&self) -> u64 {
        let registered = self.gauges.active_bytes.max(0) as u64;
        self.memory.map_or(registered, |memory| {
            registered.max(memory.pinned_bytes).max(memory.locked_bytes)
        })
    }

    pub fn registration_ns(&self) -> u64 {
        self.seen.registration_ns
    }
}
