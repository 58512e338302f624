//! A process, what it did since its row began, and what it holds now.

use std::sync::Arc;

use super::failure::Cause;

/// Values of the labels that tell series of processes apart.
pub type Labels = Arc<[String]>;

/// A pid with the start time of its leader: a reused pid is another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    pub tgid: u32,
    /// Nanoseconds of boot time at which the leader started.
    pub start_ns: u64,
}

impl ProcessKey {
    /// The key with its start rounded down to a clock tick of 10 ms, as /proc tells it.
    #[must_use]
    pub fn rounded(&self) -> Self {
        Self { start_ns: self.start_ns / 10_000_000 * 10_000_000, ..*self }
    }

    /// The key of a process that /proc tells of.
    #[must_use]
    pub fn of_tick(tgid: u32, ticks: u64) -> Self {
        Self { tgid, start_ns: ticks * 10_000_000 }
    }

    /// The key as /proc can tell it: its start in clock ticks of 10 ms.
    #[must_use]
    pub fn tick(&self) -> (u32, u64) {
        (self.tgid, self.start_ns / 10_000_000)
    }
}

/// What a process did: only ever rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessCounters {
    pub registration_ns: u64,
    /// Registration times by [`super::PROCESS_BOUNDS_SECONDS`], and above.
    pub slots: [u64; 7],
    /// Registrations of what had been deregistered before, and their time.
    pub repeats: u64,
    pub repeat_ns: u64,
    /// Failed registrations, by [`Cause::ALL`].
    pub failures: [u64; Cause::ALL.len()],
    /// Successful calls of mlock and its kin, and their time.
    pub lock_calls: u64,
    pub lock_ns: u64,
}

impl ProcessCounters {
    /// What came since `before`. A counter below its old value counts as no change.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.zip(before, u64::saturating_sub)
    }

    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        self.zip(more, u64::saturating_add)
    }

    fn zip(&self, with: &Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            registration_ns: join(self.registration_ns, with.registration_ns),
            slots: std::array::from_fn(|i| join(self.slots[i], with.slots[i])),
            repeats: join(self.repeats, with.repeats),
            repeat_ns: join(self.repeat_ns, with.repeat_ns),
            failures: std::array::from_fn(|i| join(self.failures[i], with.failures[i])),
            lock_calls: join(self.lock_calls, with.lock_calls),
            lock_ns: join(self.lock_ns, with.lock_ns),
        }
    }

    /// Successful registrations: each is in one slot.
    #[must_use]
    pub fn registrations(&self) -> u64 {
        self.slots.iter().sum()
    }

    /// Whether it ever registered or tried to.
    #[must_use]
    pub fn registers(&self) -> bool {
        self.registrations() + self.failed() > 0
    }

    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.iter().sum()
    }
}

/// What a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessGauges {
    pub active: i64,
    /// Lengths asked for.
    pub active_bytes: i64,
    /// Largest MR registered since the process last held none.
    pub largest_bytes: u64,
}

impl ProcessGauges {
    /// The sum; of the largest MR the larger one.
    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        Self {
            active: self.active + more.active,
            active_bytes: self.active_bytes + more.active_bytes,
            largest_bytes: self.largest_bytes.max(more.largest_bytes),
        }
    }
}

/// A process's row in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub key: ProcessKey,
    pub comm: String,
    /// Cgroup (v2) at its first event.
    pub cgroup_id: u64,
    pub counters: ProcessCounters,
    pub gauges: ProcessGauges,
    /// Whole pages pinned for it by RDMA, for queues too.
    pub pinned_bytes: i64,
    /// Umems that still name this process, registered or about to be.
    pub live_pins: i64,
}

/// The text up to the first NUL; bytes that are no UTF-8 become U+FFFD.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
