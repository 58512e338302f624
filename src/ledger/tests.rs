use super::*;
use crate::model::{Cause, ProcessGauges, Task};

pub fn key(tgid: u32, start_ns: u64) -> ProcessKey {
    ProcessKey { tgid, start_ns }
}

pub fn row(tgid: u32, start_ns: u64, registrations: u64, active: i64) -> Process {
    Process {
        key: key(tgid, start_ns),
        comm: "worker".into(),
        cgroup_id: 0,
        counters: ProcessCounters {
            slots: [registrations, 0, 0, 0, 0, 0, 0],
            ..Default::default()
        },
        gauges: ProcessGauges { active, active_bytes: active * 4096, ..Default::default() },
        pinned_bytes: 0,
        live_pins: active,
    }
}

pub fn task(tgid: u32, start_ns: u64, pinned_bytes: u64, locked_bytes: u64) -> Task {
    Task {
        key: key(tgid, start_ns),
        comm: *b"worker\0\0\0\0\0\0\0\0\0\0",
        memory: Some(Memory {
            pinned_bytes,
            locked_bytes,
            page_table_bytes: 4096,
            ..Memory::default()
        }),
    }
}

pub fn by_pid(newcomer: &Newcomer<'_>) -> Labels {
    [newcomer.key.tgid.to_string(), newcomer.comm.to_owned()].into()
}

struct Told {
    ledger: Ledger,
    gone: HashSet<ProcessKey>,
    own: HashSet<(u32, u64)>,
}

impl Told {
    fn new(max_series: usize) -> Self {
        let options = LedgerOptions { max_series, ..LedgerOptions::default() };
        Self { ledger: Ledger::new(options), gone: HashSet::new(), own: HashSet::new() }
    }

    fn gone(mut self, tgid: u32, start_ns: u64) -> Self {
        self.gone.insert(key(tgid, start_ns));
        self
    }

    fn rows(&mut self, seconds: u64, rows: &[Process]) -> Vec<ProcessKey> {
        self.all(seconds, rows, None)
    }

    fn all(&mut self, seconds: u64, rows: &[Process], tasks: Option<&Tasks>) -> Vec<ProcessKey> {
        let now = Duration::from_secs(seconds);
        let (gone, own) = (&self.gone, &self.own);
        self.ledger.advance(
            &Reading { rows, tasks, gone, own, now, unowned: ProcessGauges::default() },
            &mut by_pid,
        )
    }

    /// Pids that have series.
    fn pids(&self) -> Vec<String> {
        self.ledger.view().shown.iter().map(|shown| shown.labels[0].clone()).collect()
    }

    fn registrations(&self, pid: &str) -> Option<u64> {
        let view = self.ledger.view();
        let shown = view.shown.iter().find(|shown| shown.labels[0] == pid)?;
        shown.counters.map(|counters| counters.registrations())
    }

    fn others(&self) -> Others {
        self.ledger.view().others
    }
}

fn tasks(rows: &[Task]) -> Tasks {
    Tasks { rows: rows.to_vec(), exact: true, whole: true, unread: None }
}

#[test]
fn a_process_without_a_series_counts_with_the_others_and_nothing_is_given_back() {
    let mut told = Told::new(1);
    told.rows(0, &[row(1, 10, 5, 3), row(2, 20, 7, 2)]);
    assert_eq!((told.pids(), told.registrations("1")), (vec!["1".to_owned()], Some(5)));
    assert_eq!(told.others().counters.registrations(), 7);
    assert_eq!(told.others().gauges.active, 2);

    // The owner ends and its linger passes: the other gets a series, from zero.
    let mut told = told.gone(1, 10);
    assert_eq!(told.rows(5, &[row(1, 10, 5, 0), row(2, 20, 8, 0)]), [key(1, 10)]);
    told.rows(66, &[row(2, 20, 9, 2)]);
    assert_eq!((told.pids(), told.registrations("2")), (vec!["2".to_owned()], Some(1)));
    assert_eq!(told.others().counters.registrations(), 8);
    assert_eq!(told.others().gauges.active, 0);
}

#[test]
fn a_failing_process_gets_the_free_series_before_a_large_one() {
    let mut failing = row(2, 20, 0, 0);
    failing.counters.failures[Cause::MemlockLimit as usize] = 1;
    let mut told = Told::new(1);
    told.rows(0, &[row(1, 10, 5, 300), failing]);
    assert_eq!(told.pids(), ["2"]);
}

#[test]
fn a_series_is_kept_unless_another_holds_over_twice_as_much() {
    let mut told = Told::new(1);
    told.rows(0, &[row(1, 10, 1, 10)]);
    told.rows(5, &[row(1, 10, 1, 10), row(2, 20, 1, 20)]);
    assert_eq!(told.pids(), ["1"]);
    told.rows(10, &[row(1, 10, 3, 10), row(2, 20, 2, 21)]);
    assert_eq!(told.pids(), ["2"]);
    // What the first did since it was last read has no series any more.
    assert_eq!(told.others().counters.registrations(), 1 + 2);
    assert_eq!(told.registrations("2"), Some(1));
}

#[test]
fn a_series_that_comes_back_goes_on_from_where_it_was() {
    let mut told = Told::new(1);
    told.rows(0, &[row(1, 10, 100, 1)]);
    told.rows(5, &[row(1, 10, 101, 1), row(2, 20, 1, 9)]);
    assert_eq!(told.pids(), ["2"]);
    told.rows(10, &[row(1, 10, 103, 50), row(2, 20, 1, 9)]);
    assert_eq!(told.pids(), ["1"]);
    assert_eq!(told.registrations("1"), Some(102));
    assert_eq!(told.others().counters.registrations(), 1);
}

#[test]
fn at_most_five_series_change_their_owner_in_a_minute() {
    let mut told = Told::new(10);
    let small: Vec<_> = (1..=10).map(|tgid| row(tgid, 10, 1, 1)).collect();
    let large: Vec<_> = (11..=20).map(|tgid| row(tgid, 20, 1, 100)).collect();
    told.rows(0, &small);
    let all = [small, large].concat();
    let owners = |told: &Told| {
        told.pids().iter().filter(|pid| pid.parse::<u32>().is_ok_and(|pid| pid > 10)).count()
    };
    for (second, expected) in [(1, 5), (2, 5), (60, 5), (61, 10), (62, 10)] {
        told.rows(second, &all);
        assert_eq!(owners(&told), expected, "at {second}");
        assert_eq!(told.pids().len(), 10);
    }
}

#[test]
fn a_dead_process_that_still_holds_is_kept_with_its_figures() {
    let mut told = Told::new(10).gone(1, 10);
    for seconds in [0, 100, 200] {
        assert!(told.rows(seconds, &[row(1, 10, 5, 3)]).is_empty());
        assert_eq!(told.ledger.view().shown[0].gauges.map(|g| g.active), Some(3));
    }
}

#[test]
fn a_row_that_comes_back_after_it_was_freed_counts_from_zero() {
    let mut told = Told::new(10);
    told.rows(0, &[row(1, 10, 5, 1)]);
    let mut told = told.gone(1, 10);
    told.rows(1, &[row(1, 10, 5, 0)]);
    told.gone.clear();
    told.rows(2, &[]);
    told.rows(3, &[row(1, 10, 2, 1)]);
    assert_eq!(told.registrations("1"), Some(7));
    assert_eq!(told.ledger.view().shown[0].gauges.map(|g| g.active), Some(1));
}

#[test]
fn at_the_end_gauges_go_at_once_and_counters_after_the_linger() {
    let mut told = Told::new(10);
    told.all(0, &[row(1, 10, 5, 3)], Some(&tasks(&[task(1, 10, 12288, 0)])));
    let mut told = told.gone(1, 10);
    told.all(5, &[row(1, 10, 6, 0)], Some(&tasks(&[])));
    let shown = &told.ledger.view().shown[0];
    assert_eq!(shown.counters.map(|c| c.registrations()), Some(6));
    assert_eq!((shown.gauges, shown.memory, shown.key), (None, None, None));
    told.rows(64, &[]);
    assert_eq!(told.pids().len(), 1);
    told.rows(65, &[]);
    assert!(told.pids().is_empty());
}

#[test]
fn a_free_series_goes_to_no_dead_process_with_nothing_new() {
    let mut told = Told::new(1);
    told.rows(0, &[row(1, 10, 5, 10), row(2, 20, 7, 0)]);
    let mut told = told.gone(1, 10);
    told.rows(5, &[row(1, 10, 5, 0), row(2, 20, 7, 0)]);
    assert_eq!(told.pids(), ["1"]);
    let mut told = told.gone(2, 20);
    told.rows(30, &[row(2, 20, 7, 0)]);
    told.rows(66, &[]);
    assert!(told.pids().is_empty());
}

#[test]
fn nobody_gives_up_a_series_for_a_dead_process() {
    let mut told = Told::new(1);
    let spent = |tgid, ns| {
        let mut row = row(tgid, 10, 1, 0);
        row.counters.registration_ns = ns;
        row
    };
    told.rows(0, &[spent(1, 100), spent(2, 10)]);
    assert_eq!(told.pids(), ["1"]);
    // Its last registration took long, and it has ended since.
    let mut told = told.gone(2, 10);
    told.rows(5, &[spent(1, 100), spent(2, 1000)]);
    assert_eq!(told.pids(), ["1"]);
}

#[test]
fn a_dead_process_that_only_locked_holds_no_series() {
    let mut told = Told::new(10);
    told.all(0, &[], Some(&tasks(&[task(1, 10, 0, 8192), task(2, 20, 0, 4096)])));
    assert_eq!(told.pids(), ["1", "2"]);
    let mut told = told.gone(1, 10);
    told.all(5, &[], Some(&tasks(&[task(2, 20, 0, 4096)])));
    assert_eq!(told.pids(), ["2"]);
}

#[test]
fn a_living_process_without_anything_leaves_after_the_linger_and_counts_on_when_it_returns() {
    let mut told = Told::new(10);
    told.rows(0, &[row(1, 10, 5, 0)]);
    told.rows(59, &[row(1, 10, 5, 0)]);
    assert_eq!(told.registrations("1"), Some(5));
    told.rows(60, &[row(1, 10, 5, 0)]);
    assert_eq!(told.registrations("1"), None);
    told.rows(500, &[row(1, 10, 6, 0)]);
    assert_eq!(told.registrations("1"), Some(6));
    assert_eq!(told.others().counters.registrations(), 0);
}

#[test]
fn a_reused_pid_goes_on_counting_and_shows_what_the_newer_holds() {
    let mut told = Told::new(10).gone(1, 10);
    told.rows(0, &[row(1, 10, 5, 0)]);
    told.rows(1, &[row(1, 900, 1, 1)]);
    let view = told.ledger.view();
    assert_eq!(view.shown.len(), 1);
    assert_eq!(view.shown[0].counters.map(|c| c.registrations()), Some(6));
    assert_eq!(view.shown[0].gauges.map(|g| g.active), Some(1));
    assert_eq!(view.shown[0].key.map(|key| key.start_ns), Some(900));
}

#[test]
fn of_two_owners_of_one_pid_and_name_the_newer_is_shown_and_no_byte_is_lost() {
    let mut told = Told::new(10);
    // The first of each died, but a child of it keeps its MRs. Whatever order they are met in.
    let both = |tgid| [row(tgid, 10, 5, 3), row(tgid, 900, 1, 1)];
    told.rows(0, &(1..=8).flat_map(both).collect::<Vec<_>>());
    let view = told.ledger.view();
    assert_eq!(view.shown.len(), 8);
    assert!(view.shown.iter().all(|shown| shown.gauges.is_some_and(|g| g.active == 1)));
    assert_eq!(view.others.gauges.active, 8 * 3);
}

#[test]
fn who_only_pins_or_locks_has_a_series_and_who_does_neither_is_one_of_the_others() {
    let mut told = Told::new(10);
    let seen = tasks(&[task(1, 10, 8192, 0), task(2, 20, 0, 4096), task(3, 30, 0, 0)]);
    told.all(0, &[], Some(&seen));
    assert_eq!(told.pids(), ["1", "2"]);
    // It never registered: nothing is claimed of its MRs.
    let first = &told.ledger.view().shown[0];
    assert_eq!((first.counters, first.gauges), (None, None));
    assert_eq!(told.others().memory.map(|memory| memory.page_table_bytes), Some(4096));
    // Unlocked: it leaves at once, as there is nothing to count.
    told.all(1, &[], Some(&tasks(&[task(1, 10, 8192, 0), task(2, 20, 0, 0)])));
    assert_eq!(told.pids(), ["1"]);
}

#[test]
fn without_the_list_of_processes_their_memory_is_unknown_and_not_zero() {
    let mut told = Told::new(10);
    told.all(0, &[row(1, 10, 1, 1)], Some(&tasks(&[task(1, 10, 4096, 0)])));
    assert!(told.ledger.view().shown[0].memory.is_some());
    told.all(5, &[row(1, 10, 1, 1)], None);
    let view = told.ledger.view();
    assert_eq!((view.shown[0].memory, view.others.memory), (None, None));
    assert_eq!(view.shown[0].gauges.map(|g| g.active), Some(1));
}

#[test]
fn a_list_that_knows_starts_to_the_tick_still_finds_the_process() {
    let mut told = Told::new(10);
    let seen = Tasks { exact: false, ..tasks(&[task(1, 5_000_000_000, 4096, 0)]) };
    told.all(0, &[row(1, 5_009_999_999, 1, 1)], Some(&seen));
    let view = told.ledger.view();
    assert_eq!(view.shown.len(), 1);
    assert_eq!(view.shown[0].memory.map(|memory| memory.pinned_bytes), Some(4096));
}

#[test]
fn who_was_first_seen_to_the_tick_stays_one_process_when_its_row_comes() {
    // Whatever order members are met in.
    for tgid in 1..=8 {
        let mut told = Told::new(10);
        let seen = Tasks { exact: false, ..tasks(&[task(tgid, 5_000_000_000, 0, 4096)]) };
        told.all(0, &[], Some(&seen));
        for second in 1..3 {
            told.all(second, &[row(tgid, 5_009_999_999, 1, 1)], Some(&seen));
            let view = told.ledger.view();
            assert_eq!(view.shown.len(), 1);
            assert_eq!(view.shown[0].memory.map(|memory| memory.locked_bytes), Some(4096));
            assert_eq!(view.shown[0].gauges.map(|g| g.active), Some(1));
        }
    }
}

#[test]
fn a_group_sums_its_members_and_keeps_the_events_of_the_dead() {
    let options = LedgerOptions { labels_name_one: false, ..LedgerOptions::default() };
    let mut ledger = Ledger::new(options);
    let mut group = |_: &Newcomer<'_>| -> Labels { ["job 7".to_owned()].into() };
    let mut advance = |seconds, rows: &[Process], seen: &Tasks, gone: &HashSet<ProcessKey>| {
        let now = Duration::from_secs(seconds);
        let own = &HashSet::new();
        ledger.advance(
            &Reading { rows, tasks: Some(seen), gone, own, now, unowned: ProcessGauges::default() },
            &mut group,
        );
        ledger.view().shown
    };
    let both = tasks(&[task(1, 10, 4096, 0), task(2, 20, 8192, 0)]);
    let shown = advance(0, &[row(1, 10, 5, 1), row(2, 20, 7, 2)], &both, &HashSet::new());
    assert_eq!(shown[0].counters.map(|c| c.registrations()), Some(12));
    assert_eq!(shown[0].gauges.map(|g| g.active), Some(3));
    assert_eq!(shown[0].memory.map(|memory| memory.pinned_bytes), Some(12288));
    assert_eq!(shown[0].key, None);

    let one = tasks(&[task(2, 20, 8192, 0)]);
    let gone = HashSet::from([key(1, 10)]);
    advance(5, &[row(1, 10, 6, 0), row(2, 20, 7, 2)], &one, &gone);
    let shown = advance(500, &[row(2, 20, 8, 2)], &one, &gone);
    assert_eq!(shown[0].counters.map(|c| c.registrations()), Some(14));
    assert_eq!(shown[0].gauges.map(|g| g.active), Some(2));

    // All are gone for long; another comes, and the group goes on.
    let (none, gone) = (tasks(&[]), HashSet::from([key(2, 20)]));
    advance(505, &[row(2, 20, 8, 0)], &none, &gone);
    assert!(advance(600, &[], &none, &gone).is_empty());
    let shown = advance(700, &[row(3, 30, 1, 0)], &none, &HashSet::new());
    assert_eq!(shown[0].counters.map(|c| c.registrations()), Some(15));
}

/// Locked so often, and did nothing else.
fn locker(tgid: u32, start_ns: u64, calls: u64) -> Process {
    let counters =
        ProcessCounters { lock_calls: calls, lock_ns: calls * 500, ..Default::default() };
    Process { counters, ..row(tgid, start_ns, 0, 0) }
}

#[test]
fn locks_alone_make_no_series_and_are_counted_with_the_others() {
    let mut told = Told::new(9);
    let listed = tasks(&[task(1, 10, 0, 0)]);
    told.all(0, &[locker(1, 10, 3)], Some(&listed));
    assert_eq!(told.pids(), [""; 0]);
    assert_eq!(told.others().counters.lock_calls, 3);
    // It ends without ever having held anything: there is nothing to outlive it.
    let mut told = told.gone(1, 10);
    told.all(5, &[locker(1, 10, 4)], Some(&tasks(&[])));
    assert_eq!(told.pids(), [""; 0]);
    told.all(10, &[], Some(&tasks(&[])));
    assert_eq!((told.others().counters.lock_calls, told.ledger.members.len()), (4, 0));
}

#[test]
fn who_locks_and_holds_it_shows_its_locks_and_no_registrations_and_outlives_its_end() {
    let mut told = Told::new(9);
    told.all(0, &[locker(1, 10, 3)], Some(&tasks(&[task(1, 10, 0, 4096)])));
    let shown = told.ledger.view().shown[0].clone();
    assert_eq!(shown.locks.map(|locks| (locks.lock_calls, locks.lock_ns)), Some((3, 1500)));
    assert_eq!((shown.counters, shown.gauges), (None, None));

    // It gives it back, and goes on: so does its series, for a while.
    told.all(5, &[locker(1, 10, 3)], Some(&tasks(&[task(1, 10, 0, 0)])));
    assert_eq!(told.pids(), ["1"]);
    let mut told = told.gone(1, 10);
    assert_eq!(told.all(6, &[locker(1, 10, 4)], Some(&tasks(&[]))), [key(1, 10)]);
    let locks = told.ledger.view().shown[0].locks;
    assert_eq!(locks.map(|locks| locks.lock_calls), Some(4));
    told.all(70, &[], Some(&tasks(&[])));
    assert_eq!(told.pids(), [""; 0]);
}

#[test]
fn what_is_mrscope_s_own_has_no_series_and_counts_with_the_others() {
    let mut told = Told::new(9);
    told.own.insert(key(1, 10).tick());
    told.rows(0, &[row(1, 10, 5, 3), row(2, 20, 7, 2)]);
    assert_eq!(told.pids(), ["2"]);
    assert_eq!(told.others().counters.registrations(), 5);
    assert_eq!(told.others().gauges.active, 3);
}
