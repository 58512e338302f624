//! Whatever comes, goes, dies, is reused or grouped: counters rise, and all adds up.

use proptest::prelude::*;

use super::tests::{by_pid, key, row, task};
use super::*;
use crate::model::{ProcessGauges, Task};

/// What happens between two readings.
#[derive(Debug, Clone)]
enum Step {
    /// A process (by slot of the world) registers, fails and locks so often, and then holds so much.
    Acts { slot: usize, registers: u64, fails: u64, locks: u64, holds: i64 },
    /// It ends; its MRs go with it, or are kept by a child.
    Ends { slot: usize, kept: bool },
    /// What a child kept is given back.
    Released { slot: usize },
    /// Another process takes the slot's pid, if the last one ended.
    Starts { slot: usize },
    /// Time passes, and a reading is taken; with a list of processes that is exact, or to the tick
    /// only, or without any.
    Reads { seconds: u64, list: Option<bool> },
}

fn step() -> impl Strategy<Value = Step> {
    let slot = 0..8usize;
    prop_oneof![
        4 => (slot.clone(), 0..5u64, 0..3u64, 0..2u64, 0..40i64).prop_map(
            |(slot, registers, fails, locks, holds)| {
                Step::Acts { slot, registers, fails, locks, holds }
            }
        ),
        1 => (slot.clone(), any::<bool>()).prop_map(|(slot, kept)| Step::Ends { slot, kept }),
        1 => slot.clone().prop_map(|slot| Step::Released { slot }),
        2 => slot.prop_map(|slot| Step::Starts { slot }),
        4 => (0..40u64, prop::option::weighted(0.9, prop::bool::weighted(0.8)))
            .prop_map(|(seconds, list)| Step::Reads { seconds, list }),
    ]
}

/// The kernel's side: rows, and who lives.
struct World {
    rows: Vec<Process>,
    dead: HashSet<ProcessKey>,
    /// The present life of each pid.
    lives: [u64; 8],
    events: ProcessCounters,
}

impl World {
    fn key(&self, slot: usize) -> ProcessKey {
        // Each life in a tick of its own.
        key(slot as u32 + 1, self.lives[slot] * 10_000_000 + 3)
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Acts { slot, registers, fails, locks, holds } => {
                let key = self.key(slot);
                if self.dead.contains(&key) {
                    return;
                }
                if !self.rows.iter().any(|row| row.key == key) {
                    self.rows.push(row(key.tgid, key.start_ns, 0, 0));
                }
                for row in self.rows.iter_mut().filter(|row| row.key == key) {
                    for counters in [&mut row.counters, &mut self.events] {
                        counters.slots[0] += registers;
                        counters.repeats += registers / 2;
                        counters.repeat_ns += registers * 300;
                        counters.failures[2] += fails;
                        counters.lock_calls += locks;
                        counters.lock_ns += locks * 500;
                    }
                    row.gauges.active = holds;
                    row.gauges.active_bytes = holds * 4096;
                    row.live_pins = holds;
                }
            }
            Step::Ends { slot, kept } => {
                let key = self.key(slot);
                self.dead.insert(key);
                if !kept {
                    self.release(key);
                }
            }
            Step::Released { slot } => {
                let released: Vec<_> =
                    self.dead.iter().filter(|key| key.tgid == slot as u32 + 1).copied().collect();
                for key in released {
                    self.release(key);
                }
            }
            Step::Starts { slot } => {
                if self.dead.contains(&self.key(slot)) {
                    self.lives[slot] += 1;
                }
            }
            Step::Reads { .. } => {}
        }
    }

    fn release(&mut self, key: ProcessKey) {
        for row in self.rows.iter_mut().filter(|row| row.key == key) {
            row.gauges = ProcessGauges::default();
            row.live_pins = 0;
        }
    }

    /// Every living process, with what it pins; one that holds nothing is listed too.
    fn tasks(&self, exact: bool) -> Tasks {
        let living = (0..8).map(|slot| self.key(slot)).filter(|key| !self.dead.contains(key));
        let pins = |key: &ProcessKey| {
            let row = self.rows.iter().find(|row| row.key == *key);
            row.map_or(0, |row| row.live_pins as u64 * 4096)
        };
        let rows: Vec<Task> = living
            .map(|key| {
                let listed = if exact { key } else { key.rounded() };
                task(listed.tgid, listed.start_ns, pins(&key), 0)
            })
            .collect();
        Tasks { rows, exact, whole: true, unread: None }
    }
}

/// A scraper that looks at every page: what each series rose by in all.
#[derive(Default)]
struct Scraper {
    last: HashMap<Labels, ProcessCounters>,
    last_other: ProcessCounters,
    increases: ProcessCounters,
}

impl Scraper {
    fn scrape(
        &mut self,
        view: &View,
        known: &HashSet<Labels>,
        groups: bool,
    ) -> Result<(), TestCaseError> {
        for shown in &view.shown {
            let before = self.last.get(&shown.labels).copied().unwrap_or_default();
            self.rise(&before, &counted(shown))?;
        }
        self.rise(&self.last_other.clone(), &view.others.counters)?;
        self.last_other = view.others.counters;
        // The series of a process that is gone and forgotten may begin anew; a group's may not.
        self.last.retain(|labels, _| groups || known.contains(labels));
        for shown in &view.shown {
            self.last.insert(Labels::clone(&shown.labels), counted(shown));
        }
        Ok(())
    }

    fn rise(&mut self, from: &ProcessCounters, to: &ProcessCounters) -> Result<(), TestCaseError> {
        prop_assert!(to.slots.iter().zip(from.slots).all(|(to, from)| *to >= from));
        prop_assert!(to.repeats >= from.repeats && to.repeat_ns >= from.repeat_ns);
        prop_assert!(to.lock_calls >= from.lock_calls && to.lock_ns >= from.lock_ns);
        prop_assert!(to.failures.iter().zip(from.failures).all(|(to, from)| *to >= from));
        self.increases = self.increases.plus(&to.since(from));
        Ok(())
    }
}

/// Registrations and locks, of which a series may show the one without the other.
fn counted(shown: &Shown) -> ProcessCounters {
    let locks = shown.locks.unwrap_or_default();
    ProcessCounters {
        lock_calls: locks.lock_calls,
        lock_ns: locks.lock_ns,
        ..shown.counters.unwrap_or_default()
    }
}

fn holds(
    steps: &[Step],
    options: &LedgerOptions,
    label: fn(&Newcomer<'_>) -> Labels,
) -> Result<(), TestCaseError> {
    let mut world = World {
        rows: Vec::new(),
        dead: HashSet::new(),
        lives: [1; 8],
        events: ProcessCounters::default(),
    };
    let mut ledger = Ledger::new(options.clone());
    let mut scraper = Scraper::default();
    let mut now = Duration::ZERO;
    for step in steps {
        world.apply(step);
        let Step::Reads { seconds, list } = step else { continue };
        now += Duration::from_secs(*seconds);
        let tasks = list.map(|exact| world.tasks(exact));
        let (rows, gone, own) = (&world.rows, &world.dead, &HashSet::new());
        let reading = Reading {
            rows,
            tasks: tasks.as_ref(),
            gone,
            own,
            now,
            unowned: ProcessGauges::default(),
        };
        let freed = ledger.advance(&reading, &mut { label });
        let view = ledger.view();

        prop_assert!(view.shown.len() <= options.max_series);
        let known = ledger.series.keys().map(Labels::clone).collect();
        scraper.scrape(&view, &known, !options.labels_name_one)?;
        prop_assert_eq!(scraper.increases, world.events);

        let held = view.shown.iter().filter_map(|shown| shown.gauges).map(|g| g.active);
        let all: i64 = world.rows.iter().map(|row| row.gauges.active).sum();
        prop_assert_eq!(held.sum::<i64>() + view.others.gauges.active, all);
        if let Some(tasks) = &tasks {
            let sum = |of: fn(&Memory) -> u64| {
                let shown = view.shown.iter().filter_map(|shown| shown.memory.as_ref());
                shown.chain(&view.others.memory).map(of).sum::<u64>()
            };
            let host = |of: fn(&Memory) -> u64| {
                tasks.rows.iter().filter_map(|task| task.memory.as_ref()).map(of).sum::<u64>()
            };
            prop_assert_eq!(sum(|m| m.pinned_bytes), host(|m| m.pinned_bytes));
            prop_assert_eq!(sum(|m| m.page_table_bytes), host(|m| m.page_table_bytes));
        }
        world.rows.retain(|row| !freed.contains(&row.key));
        let freed_in_time = |row: &Process| row.live_pins > 0 || !world.dead.contains(&row.key);
        prop_assert!(world.rows.iter().all(freed_in_time));
    }
    Ok(())
}

fn by_parity(newcomer: &Newcomer<'_>) -> Labels {
    [format!("job {}", newcomer.key.tgid % 3)].into()
}

proptest! {
    #[test]
    fn series_of_processes_rise_and_add_up(
        steps in prop::collection::vec(step(), 1..120),
        max_series in 0..6usize,
    ) {
        holds(&steps, &LedgerOptions { max_series, ..LedgerOptions::default() }, by_pid)?;
    }

    #[test]
    fn series_of_groups_rise_and_add_up(
        steps in prop::collection::vec(step(), 1..120),
        max_series in 0..4usize,
    ) {
        let options =
            LedgerOptions { max_series, labels_name_one: false, ..LedgerOptions::default() };
        holds(&steps, &options, by_parity)?;
    }
}
