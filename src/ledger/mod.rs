//! Which processes have a series, what each did while it had one, and what all others did.
//! No clock and no I/O: time and deaths are told. Every event is in exactly one series, and no
//! counter here ever falls.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::model::{Process, ProcessCounters, ProcessGauges, ProcessKey};

/// Limits of the process view.
#[derive(Debug, Clone)]
pub struct LedgerOptions {
    /// Processes with a series of their own at most; the rest are folded into one.
    pub max_processes: usize,
    /// How long the counters of a process outlive it.
    pub linger: Duration,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self { max_processes: 100, linger: Duration::from_mins(1) }
    }
}

/// The processes of this host that RDMA memory is about.
#[derive(Debug)]
pub struct Ledger {
    options: LedgerOptions,
    members: HashMap<ProcessKey, Member>,
    /// Events of processes that had no series when they happened.
    other: ProcessCounters,
}

/// A process that the kernel has a row of, or had until it ended.
#[derive(Debug)]
struct Member {
    comm: String,
    /// The kernel's counters at the last reading.
    seen: ProcessCounters,
    gauges: ProcessGauges,
    /// Counters since the process has its series; None while it has none.
    series: Option<ProcessCounters>,
    ended: Option<Duration>,
}

/// A series owner as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub tgid: u32,
    pub comm: String,
    pub counters: ProcessCounters,
    /// None once the process is gone and holds nothing.
    pub gauges: Option<ProcessGauges>,
}

/// All processes without a series together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Others {
    pub counters: ProcessCounters,
    pub gauges: ProcessGauges,
}

impl Ledger {
    #[must_use]
    pub fn new(options: LedgerOptions) -> Self {
        Self { options, members: HashMap::new(), other: ProcessCounters::default() }
    }

    /// Takes a reading of all rows in. `gone` are processes that had ended *before* the rows were
    /// read, so that their rows are final. Returns those whose rows may be freed: gone, and
    /// nothing pinned any more.
    pub fn advance(
        &mut self,
        rows: &[Process],
        gone: &HashSet<ProcessKey>,
        now: Duration,
    ) -> Vec<ProcessKey> {
        self.forget_lingering(rows, now);
        let mut newcomers: Vec<&Process> = Vec::new();
        for row in rows {
            if self.members.get(&row.key).is_none_or(|member| member.series.is_none()) {
                newcomers.push(row);
            }
        }
        // A free series goes to who fails, then to who holds most, then to who spent most time.
        newcomers.sort_by_key(|row| {
            let failed = row.counters.failed() > 0;
            std::cmp::Reverse((
                failed,
                row.gauges.active_bytes,
                row.counters.registration_ns,
                row.key,
            ))
        });
        let owners = self.members.values().filter(|member| member.series.is_some()).count();
        let free = self.options.max_processes.saturating_sub(owners);
        let admitted: HashSet<ProcessKey> =
            newcomers.iter().take(free).map(|row| row.key).collect();

        let mut free_rows = Vec::new();
        for row in rows {
            let member = self.members.entry(row.key).or_insert_with(|| Member {
                comm: row.comm.clone(),
                seen: ProcessCounters::default(),
                gauges: ProcessGauges::default(),
                series: None,
                ended: None,
            });
            if admitted.contains(&row.key) {
                member.series = Some(ProcessCounters::default());
            }
            let news = row.counters.since(&member.seen);
            member.seen = row.counters;
            member.gauges = row.gauges;
            let into = member.series.as_mut().unwrap_or(&mut self.other);
            *into = into.plus(&news);
            if gone.contains(&row.key) && row.live_pins <= 0 {
                member.ended.get_or_insert(now);
                free_rows.push(row.key);
            }
        }
        free_rows
    }

    /// Drops processes whose counters were shown long enough, and those that gave their pid away.
    fn forget_lingering(&mut self, rows: &[Process], now: Duration) {
        let present: HashMap<u32, ProcessKey> =
            rows.iter().map(|row| (row.key.tgid, row.key)).collect();
        let linger = self.options.linger;
        self.members.retain(|key, member| {
            let Some(ended) = member.ended else { return true };
            let reused = present.get(&key.tgid).is_some_and(|newer| newer != key);
            !reused && member.series.is_some() && now.saturating_sub(ended) < linger
        });
    }

    /// Series owners by pid, and all others. Two owners of one pid and name are one series: the
    /// newer's; what the older still holds counts with the others.
    #[must_use]
    pub fn view(&self) -> (Vec<Shown>, Others) {
        let mut others = Others { counters: self.other, gauges: ProcessGauges::default() };
        let mut owners: Vec<(&ProcessKey, &Member, &ProcessCounters)> = Vec::new();
        for (key, member) in &self.members {
            match &member.series {
                Some(counters) => owners.push((key, member, counters)),
                None => others.gauges = others.gauges.plus(&member.gauges),
            }
        }
        owners.sort_by_key(|(key, ..)| **key);
        let mut shown: Vec<Shown> = Vec::with_capacity(owners.len());
        for (index, (key, member, counters)) in owners.iter().enumerate() {
            let newer = owners[index + 1..]
                .iter()
                .take_while(|(next, ..)| next.tgid == key.tgid)
                .any(|(_, next, _)| next.comm == member.comm);
            if newer {
                others.gauges = others.gauges.plus(&member.gauges);
                continue;
            }
            shown.push(Shown {
                tgid: key.tgid,
                comm: member.comm.clone(),
                counters: **counters,
                gauges: member.ended.is_none().then_some(member.gauges),
            });
        }
        (shown, others)
    }

    /// Processes that may have ended: those whose end is not known yet.
    pub fn living(&self) -> impl Iterator<Item = &ProcessKey> {
        self.members.iter().filter(|(_, member)| member.ended.is_none()).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests;
