//! What people read at `/`: how each collector stands, and the last registrations that failed. Made
//! with each page, never changed, and had without asking any source.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

use crate::model::{COLLECTORS, LastFailure, Memory, Snapshot, errno_name};

use super::exporter::Report;
use super::{CollectError, OFF};

/// One reading, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// When it was made, right after the sources were asked.
    pub at: SystemTime,
    /// In the order of [`COLLECTORS`].
    pub collectors: Vec<CollectorStatus>,
    /// Newest first, or why they are not known.
    pub failures: Result<Vec<FailedRegistration>, String>,
}

/// How a collector's last turn went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorStatus {
    pub collector: &'static str,
    /// One of [`super::STATES`].
    pub state: &'static str,
    /// Empty where all is well.
    pub reason: String,
}

/// A registration that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRegistration {
    pub at: SystemTime,
    /// At the time of the status.
    pub age: Duration,
    pub pid: u32,
    /// Any text.
    pub comm: String,
    pub device: String,
    pub errno: String,
    pub cause: &'static str,
    /// What the cause means, and a sentence of what helps.
    pub meaning: &'static str,
    pub remedy: &'static str,
    pub kind: &'static str,
    /// Address and bytes, where a pin was tried.
    pub range: Option<(u64, u64)>,
    /// None: no limit.
    pub memlock_bytes: Option<u64>,
    pub pinned_bytes: u64,
    pub memlock_exempt: bool,
}

/// The same moment by two clocks.
#[derive(Debug, Clone, Copy)]
struct Now {
    wall: SystemTime,
    monotonic_ns: u64,
}

impl Now {
    fn read() -> Self {
        let monotonic = clock_gettime(ClockId::Monotonic);
        let monotonic_ns = monotonic.tv_sec as u64 * 1_000_000_000 + monotonic.tv_nsec as u64;
        Self { wall: SystemTime::now(), monotonic_ns }
    }
}

/// Puts up the newest status, for whoever looks.
pub struct Notices {
    newest: watch::Sender<Option<Arc<Status>>>,
    /// A page has those collectors alone that it was asked for: of the others the last holds.
    collectors: BTreeMap<&'static str, CollectorStatus>,
}

impl Notices {
    pub fn new(off: &[&'static str]) -> Self {
        let is_off = |collector: &&'static str| {
            let status = CollectorStatus { collector, state: OFF, reason: String::new() };
            (*collector, status)
        };
        Self { newest: watch::channel(None).0, collectors: off.iter().map(is_off).collect() }
    }

    pub fn reader(&self) -> watch::Receiver<Option<Arc<Status>>> {
        self.newest.subscribe()
    }

    pub fn publish(&mut self, reports: &[Report], snapshot: Result<&Snapshot, &CollectError>) {
        for Report { collector, outcome, .. } in reports {
            let error = outcome.as_ref().err();
            let status = CollectorStatus {
                collector,
                state: error.map_or("ok", CollectError::state),
                reason: error.map(ToString::to_string).unwrap_or_default(),
            };
            self.collectors.insert(collector, status);
        }
        let status = self.status(Now::read(), snapshot);
        self.newest.send_replace(Some(Arc::new(status)));
    }

    fn status(&self, now: Now, snapshot: Result<&Snapshot, &CollectError>) -> Status {
        let told = |collector| self.collectors.get(collector).cloned();
        let failures = snapshot.map_err(ToString::to_string);
        Status {
            at: now.wall,
            collectors: COLLECTORS.into_iter().filter_map(told).collect(),
            failures: failures.map(|snapshot| {
                snapshot.last_failures.iter().map(|failure| failed(failure, now)).collect()
            }),
        }
    }
}

fn failed(failure: &LastFailure, now: Now) -> FailedRegistration {
    let age = Duration::from_nanos(now.monotonic_ns.saturating_sub(failure.at_ns));
    FailedRegistration {
        at: now.wall.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH),
        age,
        pid: failure.tgid,
        comm: failure.comm.clone(),
        device: failure.device.clone(),
        errno: errno_name(failure.error),
        cause: failure.cause.label(),
        meaning: failure.cause.meaning(),
        remedy: failure.cause.remedy(),
        kind: failure.kind.label(),
        range: failure.range.map(|range| (range.address, range.length_bytes)),
        memlock_bytes: Some(failure.memlock_bytes).filter(|bytes| *bytes != Memory::NO_LIMIT),
        pinned_bytes: failure.pinned_bytes,
        memlock_exempt: failure.memlock_exempt,
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Cause, MrKind};

    use super::*;

    fn report(collector: &'static str, outcome: Result<(), CollectError>) -> Report {
        Report { collector, outcome, took: Duration::ZERO }
    }

    #[test]
    fn a_page_of_some_collectors_changes_the_status_of_no_other() {
        let mut notices = Notices::new(&["tlb"]);
        let reader = notices.reader();
        assert_eq!(*reader.borrow(), None);
        let why = CollectError::Denied("no right".to_owned());
        let denied = || Err(why.clone());
        notices.publish(&[report("mr", denied()), report("process", Ok(()))], Err(&why));
        let before = reader.borrow().clone().unwrap();
        notices.publish(&[report("process", denied())], Ok(&Snapshot::default()));
        let states = |status: &Status| -> Vec<_> {
            status.collectors.iter().map(|it| (it.collector, it.state, it.reason.clone())).collect()
        };
        let (well, ill) = (String::new(), "no right".to_owned());
        let [mr, tlb] = [("mr", "denied", ill.clone()), ("tlb", "off", well.clone())];
        assert_eq!(states(&before), [mr.clone(), ("process", "ok", well), tlb.clone()]);
        assert_eq!(before.failures, Err("no right".to_owned()));
        let after = reader.borrow().clone().unwrap();
        assert_eq!(states(&after), [mr, ("process", "denied", ill), tlb]);
        assert_eq!(after.failures, Ok(Vec::new()));
    }

    #[test]
    fn a_failure_has_the_time_of_day_at_which_it_happened() {
        let failure = LastFailure {
            at_ns: 40_000_000_000,
            tgid: 7,
            comm: "a".to_owned(),
            device: "mlx5_0".to_owned(),
            error: 12,
            cause: Cause::NoMemory,
            kind: MrKind::Host,
            range: None,
            memlock_bytes: Memory::NO_LIMIT,
            pinned_bytes: 0,
            memlock_exempt: false,
        };
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let now = Now { wall: at(1_700_000_000), monotonic_ns: 100_000_000_000 };
        let told = failed(&failure, now);
        assert_eq!((told.at, told.age.as_secs()), (at(1_699_999_940), 60));
        assert_eq!((told.errno.as_str(), told.memlock_bytes), ("ENOMEM", None));
        // Seen after the clock was read.
        let told = failed(&LastFailure { at_ns: 100_000_000_001, ..failure }, now);
        assert_eq!((told.at, told.age), (now.wall, Duration::ZERO));
    }
}
