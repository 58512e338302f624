use proptest::prelude::*;

use super::*;
use crate::model::Cause;

fn row(tgid: u32, start_ns: u64, registrations: u64, active: i64) -> Process {
    Process {
        key: ProcessKey { tgid, start_ns },
        comm: "worker".into(),
        counters: ProcessCounters {
            slots: [registrations, 0, 0, 0, 0, 0, 0],
            ..Default::default()
        },
        gauges: ProcessGauges { active, active_bytes: active * 4096, ..Default::default() },
        live_pins: active,
    }
}

fn ledger(max_processes: usize) -> Ledger {
    Ledger::new(LedgerOptions { max_processes, linger: Duration::from_mins(1) })
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_process_without_a_series_counts_with_the_others_and_nothing_is_given_back() {
    let mut ledger = ledger(1);
    ledger.advance(&[row(1, 10, 5, 3), row(2, 20, 7, 1)], &HashSet::new(), at(0));
    let (shown, others) = ledger.view();
    assert_eq!((shown[0].tgid, shown[0].counters.registrations()), (1, 5));
    assert_eq!((others.counters.registrations(), others.gauges.active), (7, 1));

    // The owner ends and its linger passes: the other gets a series, from zero.
    let gone = HashSet::from([ProcessKey { tgid: 1, start_ns: 10 }]);
    let freed = ledger.advance(&[row(1, 10, 5, 0), row(2, 20, 8, 1)], &gone, at(5));
    assert_eq!(freed, [ProcessKey { tgid: 1, start_ns: 10 }]);
    ledger.advance(&[row(2, 20, 9, 1)], &HashSet::new(), at(66));
    let (shown, others) = ledger.view();
    assert_eq!((shown[0].tgid, shown[0].counters.registrations()), (2, 1));
    assert_eq!((others.counters.registrations(), others.gauges.active), (8, 0));
}

#[test]
fn a_failing_process_gets_the_free_series_before_a_large_one() {
    let mut failing = row(2, 20, 0, 0);
    failing.counters.failures[Cause::MemlockLimit as usize] = 1;
    let mut ledger = ledger(1);
    ledger.advance(&[row(1, 10, 5, 300), failing], &HashSet::new(), at(0));
    assert_eq!(ledger.view().0[0].tgid, 2);
}

#[test]
fn a_dead_process_that_still_holds_is_kept_with_its_figures() {
    let mut ledger = ledger(10);
    let gone = HashSet::from([ProcessKey { tgid: 1, start_ns: 10 }]);
    for seconds in [0, 100, 200] {
        assert!(ledger.advance(&[row(1, 10, 5, 3)], &gone, at(seconds)).is_empty());
        assert_eq!(ledger.view().0[0].gauges.map(|g| g.active), Some(3));
    }
}

#[test]
fn at_the_end_gauges_go_at_once_and_counters_after_the_linger() {
    let mut ledger = ledger(10);
    ledger.advance(&[row(1, 10, 5, 3)], &HashSet::new(), at(0));
    let gone = HashSet::from([ProcessKey { tgid: 1, start_ns: 10 }]);
    ledger.advance(&[row(1, 10, 6, 0)], &gone, at(5));
    let (shown, _) = ledger.view();
    assert_eq!((shown[0].counters.registrations(), shown[0].gauges), (6, None));
    ledger.advance(&[], &HashSet::new(), at(64));
    assert_eq!(ledger.view().0.len(), 1);
    ledger.advance(&[], &HashSet::new(), at(65));
    assert!(ledger.view().0.is_empty());
}

#[test]
fn a_reused_pid_starts_from_zero() {
    let mut ledger = ledger(10);
    let gone = HashSet::from([ProcessKey { tgid: 1, start_ns: 10 }]);
    ledger.advance(&[row(1, 10, 5, 0)], &gone, at(0));
    ledger.advance(&[row(1, 900, 1, 1)], &HashSet::new(), at(1));
    let (shown, _) = ledger.view();
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].counters.registrations(), 1);
}

#[test]
fn of_two_owners_of_one_pid_and_name_the_newer_is_shown_and_no_byte_is_lost() {
    let mut ledger = ledger(10);
    // The first died, but a child of it keeps its MRs.
    ledger.advance(&[row(1, 10, 5, 3), row(1, 900, 1, 1)], &HashSet::new(), at(0));
    let (shown, others) = ledger.view();
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].gauges.map(|g| g.active), Some(1));
    assert_eq!(others.gauges.active, 3);
}

proptest! {
    /// Whatever comes and goes: series and others add up to what the kernel counted, for good.
    #[test]
    fn every_event_is_counted_once(
        steps in prop::collection::vec((0u32..6, 0u64..9, 0i64..4, any::<bool>()), 1..80),
    ) {
        let mut ledger = ledger(2);
        let mut rows: Vec<Process> = Vec::new();
        let (mut total, mut last_other) = (0, 0);
        let mut retired: u64 = 0;
        let mut known: HashMap<(u32, u64), u64> = HashMap::new();
        // A pid's present life, and who of the living has ended: the dead do nothing more.
        let mut lives = [1u64; 6];
        let mut dead: HashSet<ProcessKey> = HashSet::new();
        for (second, (tgid, events, active, ends)) in steps.into_iter().enumerate() {
            let now = at(second as u64 * 7);
            let key = ProcessKey { tgid, start_ns: lives[tgid as usize] };
            let events = if dead.contains(&key) { 0 } else { events };
            match rows.iter_mut().find(|row| row.key == key) {
                Some(row) => {
                    row.counters.slots[0] += events;
                    row.gauges.active = active;
                    row.live_pins = active;
                }
                None => rows.push(row(tgid, key.start_ns, events, active)),
            }
            if ends {
                dead.insert(key);
            }
            total += events;
            let freed = ledger.advance(&rows, &dead, now);
            for key in &freed {
                lives[key.tgid as usize] += 1;
            }
            rows.retain(|row| !freed.contains(&row.key));
            let (shown, others) = ledger.view();
            prop_assert!(others.counters.registrations() >= last_other);
            last_other = others.counters.registrations();
            // A series that vanished, or began anew for a reused pid, took its count along.
            let now_known: HashMap<(u32, u64), u64> = ledger
                .members
                .iter()
                .filter_map(|(key, member)| Some(((key.tgid, key.start_ns), member.series?)))
                .map(|(key, counters)| (key, counters.registrations()))
                .collect();
            for (key, count) in &known {
                match now_known.get(key) {
                    Some(current) => prop_assert!(current >= count),
                    None => retired += count,
                }
            }
            known = now_known;
            let sum: u64 = known.values().sum();
            prop_assert_eq!(sum + retired + last_other, total);
            let held: i64 = shown.iter().filter_map(|s| s.gauges).map(|g| g.active).sum();
            let kernel: i64 = rows.iter().map(|row| row.gauges.active).sum();
            prop_assert_eq!(held + others.gauges.active, kernel);
        }
    }
}
