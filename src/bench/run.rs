//! The rounds: of all rows one after the other, so that whatever changes on the host meanwhile
//! changes all of them. Asks for one thing at a time; measures nothing itself.

use std::fmt;
use std::time::Duration;

use super::outcome::{Fault, Measured, name};
use super::plan::{Row, pages_name, pooled_bytes};
use crate::probe::{NoReport, ProbeOptions, Report};

const MESSAGE_BYTES: u64 = 64 << 10;
const LATENCIES: u32 = 1000;
/// For what does not grow with the memory.
const GUARD_MS: u64 = 10_000;
/// A slow machine takes seconds to fill and to compare a GiB.
const GUARD_MS_PER_GIB: u64 = 30_000;
const MOST_GUARD_MS: u64 = 600_000;
/// The probe ends by itself before it is killed.
const AFTER_GUARD: Duration = Duration::from_secs(5);

/// What all rows have in common.
#[derive(Debug, Clone)]
pub struct Common {
    pub device: String,
    pub port: u8,
    pub mr_bytes: u64,
    pub rounds: u32,
    pub base_page_bytes: u64,
    /// Who starts the probe.
    pub parent: Option<i32>,
}

impl Common {
    /// Of one write.
    #[must_use]
    pub fn message_bytes(&self) -> u64 {
        MESSAGE_BYTES.min(self.mr_bytes / 2)
    }

    /// What the probe is asked for a row, and after what time it is killed.
    #[must_use]
    pub fn asked(&self, row: &Row) -> (ProbeOptions, Duration) {
        let mapped = self.mr_bytes.next_multiple_of(pooled_bytes(row.pages).unwrap_or(1));
        let by_size = (mapped >> 20).saturating_mul(GUARD_MS_PER_GIB) >> 10;
        let guard_ms = GUARD_MS.saturating_add(by_size).min(MOST_GUARD_MS);
        let options = ProbeOptions {
            port: self.port,
            pages: row.pages,
            numa_node: row.node,
            untouched: !row.touched,
            mr_bytes: self.mr_bytes,
            message_bytes: self.message_bytes(),
            latency_count: LATENCIES,
            // By then memory that was untouched is like any other.
            tlb: row.touched,
            guard_ms,
            parent: self.parent,
            ..ProbeOptions::new(&self.device)
        };
        (options, Duration::from_millis(guard_ms) + AFTER_GUARD)
    }
}

/// Where a bench is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub round: u32,
    pub rounds: u32,
    pub row: String,
    /// Rows of all rounds that are done.
    pub done: usize,
    pub of: usize,
}

impl fmt::Display for Progress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, rounds, row, done, of } = self;
        write!(out, "round {round} of {rounds}: {row} ({done} of {of} done)")
    }
}

/// What came of all rounds.
#[derive(Debug)]
pub struct Ran {
    pub rows: Vec<Measured>,
    /// Why it ended before its end.
    pub ended: Option<String>,
}

/// Runs all rounds. Rows that fail are asked again in the next; the others go on.
///
/// # Errors
/// The probe can't be started at all.
pub fn run(
    common: &Common,
    rows: &[Row],
    mut ask: impl FnMut(&ProbeOptions, Duration) -> Result<Report, NoReport>,
    mut progress: impl FnMut(&Progress),
) -> Result<Ran, String> {
    let mut taken: Vec<(Vec<Report>, Vec<Fault>)> = vec![(Vec::new(), Vec::new()); rows.len()];
    let of = rows.len() * common.rounds as usize;
    let turns =
        (1..=common.rounds).flat_map(|round| rows.iter().enumerate().map(move |r| (round, r)));
    let mut ended = None;
    for (done, (round, (at, row))) in turns.enumerate() {
        let row_name = name(&pages_name(row.pages, common.base_page_bytes), row.node, row.touched);
        progress(&Progress { round, rounds: common.rounds, row: row_name, done, of });
        let (options, timeout) = common.asked(row);
        let (reports, faults) = &mut taken[at];
        match ask(&options, timeout) {
            Ok(report) => reports.push(report),
            Err(NoReport::NotStarted(why)) => return Err(why),
            Err(NoReport::Stopped) => {
                ended = Some(format!("stopped in round {round} of {}", common.rounds));
                break;
            }
            Err(why) => {
                let (reason, detail) = (why.word().to_owned(), why.to_string());
                faults.push(Fault { round, reason, detail });
                if let NoReport::Stuck(_) = why {
                    ended = Some(format!(
                        "nothing more was asked of the device after round {round}, in which it hung"
                    ));
                    break;
                }
            }
        }
    }
    let rows = rows.iter().zip(taken);
    let measured = |(row, (reports, faults)): (&Row, (Vec<Report>, Vec<Fault>))| {
        Measured::of(row, common.base_page_bytes, &reports, faults)
    };
    Ok(Ran { rows: rows.map(measured).collect(), ended })
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
