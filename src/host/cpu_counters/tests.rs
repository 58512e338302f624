//! Counters against hardware that the test holds, and the kernel's own by software events.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::host::perf::{MOST_EVENTS, Target};
use crate::host::{Host, online_cpus, raise_open_files};

/// PERF_COUNT_SW_* of the kernel's interface.
const CPU_CLOCK: u32 = 0;
const CONTEXT_SWITCHES: u32 = 3;

/// CPUs whose counters the test moves.
#[derive(Default)]
pub struct Hardware {
    /// What is open, on which CPU.
    counters: Vec<(u32, Rc<RefCell<Opened>>)>,
    /// What each event is refused with, on one CPU or on all of them.
    pub refuses: Vec<(Option<u32>, Event, Why)>,
    /// Events that can't be opened together.
    pub parted: bool,
    pub offline: Vec<u32>,
    /// All that was ever counted, by event.
    pub counted: BTreeMap<u64, u64>,
    pub opened: usize,
}

/// One open group.
#[derive(Default)]
pub struct Opened {
    events: Vec<Event>,
    reading: Reading,
    dead: bool,
    /// How it can be read.
    reads: Reads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reads {
    #[default]
    Well,
    Nothing,
    Fails,
}

pub struct Handle(Rc<RefCell<Opened>>);

impl ReadsCounters for Handle {
    fn read(&self) -> io::Result<Option<Reading>> {
        let opened = self.0.borrow();
        match opened.reads {
            Reads::Well => Ok(Some(opened.reading.clone())),
            Reads::Nothing => Ok(None),
            Reads::Fails => Err(io::Error::from_raw_os_error(5)),
        }
    }
}

impl OpensOnCpu for Hardware {
    type Open = Handle;

    fn open(&mut self, cpu: u32, events: &[Event]) -> Result<Handle, Refused> {
        if self.offline.contains(&cpu) {
            return Err(Refused { at: 0, why: Why::CpuGone });
        }
        for (at, event) in events.iter().enumerate() {
            let here = |(on, refused, _): &&(Option<u32>, Event, Why)| {
                refused == event && on.is_none_or(|on| on == cpu)
            };
            if let Some((.., why)) = self.refuses.iter().find(here) {
                return Err(Refused { at, why: *why });
            }
            if at > 0 && self.parted {
                return Err(Refused { at, why: Why::Other(22) });
            }
        }
        self.opened += 1;
        let reading = Reading { counts: vec![0; events.len()], ..Reading::default() };
        let opened = Opened { events: events.to_vec(), reading, ..Opened::default() };
        let opened = Rc::new(RefCell::new(opened));
        self.counters.push((cpu, Rc::clone(&opened)));
        Ok(Handle(opened))
    }
}

impl Hardware {
    /// So much time passes on a CPU, and each event happens so often, with the counters on or not.
    pub fn passes(&mut self, cpu: u32, ns: u64, events: u64, running: bool) {
        self.counters.retain(|(_, opened)| Rc::strong_count(opened) > 1);
        for (_, opened) in self.counters.iter().filter(|(on, _)| *on == cpu) {
            let mut opened = opened.borrow_mut();
            if opened.dead {
                continue;
            }
            opened.reading.enabled_ns += ns;
            if running {
                opened.reading.running_ns += ns;
                let Opened { events: kinds, reading, .. } = &mut *opened;
                for (count, event) in reading.counts.iter_mut().zip(kinds) {
                    *count += events;
                    *self.counted.entry(event.config).or_default() += events;
                }
            }
        }
    }

    /// What has just passed had so many less of an event.
    fn undo(&mut self, event: Event, events: u64) {
        for (_, opened) in &self.counters {
            let Opened { events: kinds, reading, .. } = &mut *opened.borrow_mut();
            for (count, _) in
                reading.counts.iter_mut().zip(kinds).filter(|(_, kind)| **kind == event)
            {
                *count -= events;
            }
        }
    }

    /// A CPU goes offline: what is open on it counts no more, whoever comes back.
    pub fn goes(&mut self, cpu: u32, reads: Reads) {
        for (_, opened) in self.counters.iter().filter(|(on, _)| *on == cpu) {
            opened.borrow_mut().dead = true;
        }
        self.read_as(cpu, reads);
        if !self.offline.contains(&cpu) {
            self.offline.push(cpu);
        }
    }

    pub fn comes(&mut self, cpu: u32) {
        self.offline.retain(|offline| *offline != cpu);
    }

    pub fn restarts(&mut self, cpu: u32) {
        for (_, opened) in self.counters.iter().filter(|(on, _)| *on == cpu) {
            let reading = &mut opened.borrow_mut().reading;
            *reading = Reading { counts: vec![0; reading.counts.len()], ..Reading::default() };
        }
    }

    pub fn read_as(&self, cpu: u32, reads: Reads) {
        for (_, opened) in self.counters.iter().filter(|(on, _)| *on == cpu) {
            opened.borrow_mut().reads = reads;
        }
    }

    fn open_now(&self) -> usize {
        self.counters.iter().filter(|(_, opened)| Rc::strong_count(opened) > 1).count()
    }
}

const ACCESS: Event = Event::cache(3, 0, 0);
const MISS: Event = Event::cache(3, 0, 1);
const SECOND: u64 = 1_000_000_000;

fn cpus(numbers: impl IntoIterator<Item = u32>) -> BTreeMap<u32, u32> {
    numbers.into_iter().map(|cpu| (cpu, cpu / 2)).collect()
}

fn pair() -> CpuCounters<Handle> {
    CpuCounters::new(&[ACCESS, MISS])
}

fn counts(counters: &CpuCounters<Handle>, event: usize) -> Vec<(u32, u64)> {
    counters.totals(event).iter().map(|(node, total)| (*node, total.count)).collect()
}

#[test]
fn counts_are_summed_by_node_and_by_event() {
    let (mut hardware, mut counters, online) = (Hardware::default(), pair(), cpus(0..3));
    counters.read(&mut hardware, &online);
    assert_eq!(hardware.open_now(), 3, "one group of two on each CPU");
    assert_eq!([0, 1].map(|event| counters.verdict(event)), [Verdict::Silent, Verdict::Silent]);
    for (cpu, events) in [(0, 5), (1, 7), (2, 100)] {
        hardware.passes(cpu, SECOND, events, true);
    }
    counters.read(&mut hardware, &online);
    assert_eq!(counts(&counters, 0), [(0, 12), (1, 100)]);
    assert_eq!(counts(&counters, 1), [(0, 12), (1, 100)]);
    let total = NodeTotal { count: 12, enabled_ns: 2 * SECOND, running_ns: 2 * SECOND };
    assert_eq!(counters.totals(1)[&0], total);
    assert_eq!([0, 1].map(|event| counters.verdict(event)), [Verdict::Counted, Verdict::Counted]);
}

#[test]
fn an_absent_event_leaves_the_other_counted_and_is_not_asked_for_again() {
    let (mut hardware, mut counters, online) = (Hardware::default(), pair(), cpus(0..2));
    hardware.refuses = vec![(None, ACCESS, Why::Absent)];
    counters.read(&mut hardware, &online);
    for cpu in 0..2 {
        hardware.passes(cpu, SECOND, 3, true);
    }
    let opened = hardware.opened;
    counters.read(&mut hardware, &online);
    assert_eq!(counters.verdict(0), Verdict::Refused { cpu: 0, why: Why::Absent });
    assert_eq!(counters.verdict(1), Verdict::Counted);
    assert_eq!((counts(&counters, 0), counts(&counters, 1)), (vec![], vec![(0, 6)]));
    hardware.refuses.clear();
    hardware.passes(0, SECOND, 3, true);
    hardware.passes(1, SECOND, 3, true);
    counters.read(&mut hardware, &online);
    assert_eq!(hardware.opened, opened);
}

#[test]
fn one_cpu_that_refuses_leaves_no_sum_of_the_others() {
    for why in [Why::Denied, Why::NoFiles, Why::Other(16)] {
        let (mut hardware, mut counters, online) = (Hardware::default(), pair(), cpus(0..4));
        hardware.refuses = vec![(Some(3), MISS, why)];
        counters.read(&mut hardware, &online);
        assert_eq!(counters.verdict(1), Verdict::Refused { cpu: 3, why });
        let all = matches!(why, Why::Denied | Why::NoFiles);
        assert_eq!(counters.verdict(0) != Verdict::Silent, all, "{why:?}");
        assert_eq!(hardware.open_now(), if all { 0 } else { 4 }, "{why:?}");

        // It may be had later.
        hardware.refuses.clear();
        counters.read(&mut hardware, &online);
        assert_eq!(hardware.open_now(), 4);
        for cpu in 0..4 {
            hardware.passes(cpu, SECOND, 1, true);
        }
        counters.read(&mut hardware, &online);
        assert_eq!([0, 1].map(|event| counters.verdict(event)), [const { Verdict::Counted }; 2]);
    }
}

#[test]
fn events_that_no_cpu_counts_together_are_counted_apart() {
    let (mut hardware, mut counters, online) = (Hardware::default(), pair(), cpus(0..2));
    hardware.parted = true;
    counters.read(&mut hardware, &online);
    assert_eq!(hardware.open_now(), 4);
    hardware.passes(1, SECOND, 9, true);
    hardware.passes(0, SECOND, 1, true);
    counters.read(&mut hardware, &online);
    assert_eq!((counts(&counters, 0), counts(&counters, 1)), (vec![(0, 10)], vec![(0, 10)]));
    assert_eq!([0, 1].map(|event| counters.verdict(event)), [const { Verdict::Counted }; 2]);
}

#[test]
fn a_cpu_that_went_and_came_back_is_counted_on_again() {
    for reads in [Reads::Well, Reads::Nothing] {
        let (mut hardware, mut counters) = (Hardware::default(), pair());
        let (both, one) = (cpus(0..2), cpus(0..1));
        let mut reading = |hardware: &mut Hardware, events, online| {
            hardware.passes(0, SECOND, 0, true);
            hardware.passes(1, SECOND, events, true);
            counters.read(hardware, online);
            (counters.verdict(0), counts(&counters, 0))
        };
        let counted = |count| (Verdict::Counted, vec![(0, count)]);
        reading(&mut hardware, 0, &both);
        assert_eq!(reading(&mut hardware, 5, &both), counted(5));
        // Between two readings, so that the list of CPUs is the same in both.
        hardware.goes(1, reads);
        hardware.comes(1);
        assert_eq!(reading(&mut hardware, 100, &both), counted(5), "{reads:?}");
        assert_eq!(reading(&mut hardware, 6, &both), counted(11), "{reads:?}");

        // For long: first with a list from before that.
        hardware.goes(1, reads);
        assert_eq!(reading(&mut hardware, 100, &both), counted(11), "{reads:?}");
        for _ in 0..3 {
            assert_eq!(reading(&mut hardware, 100, &one), counted(11), "{reads:?}");
        }
        hardware.comes(1);
        assert_eq!(reading(&mut hardware, 100, &both), counted(11), "{reads:?}");
        assert_eq!(reading(&mut hardware, 7, &both), counted(18), "{reads:?}");
    }
}

#[test]
fn what_was_counted_before_a_cpu_went_is_not_lost() {
    let (mut hardware, mut counters) = (Hardware::default(), pair());
    counters.read(&mut hardware, &cpus(0..2));
    hardware.passes(1, SECOND, 5, true);
    hardware.goes(1, Reads::Well);
    counters.read(&mut hardware, &cpus(0..1));
    assert_eq!(counts(&counters, 1), [(0, 5)]);
}

#[test]
fn counters_that_can_t_be_read_or_stand_still_are_no_zero() {
    for (reads, what) in [
        (Reads::Nothing, "a reading gives nothing"),
        (Reads::Fails, "Input/output error (os error 5)"),
        (Reads::Well, "their clock stands still"),
    ] {
        let (mut hardware, mut counters, online) = (Hardware::default(), pair(), cpus(0..2));
        counters.read(&mut hardware, &online);
        for round in 0..4 {
            hardware.passes(0, SECOND, 5, true);
            hardware.read_as(1, reads);
            counters.read(&mut hardware, &online);
            // They are opened anew once before they are given up.
            let broken = Verdict::Broken { cpu: 1, what: what.into() };
            let expected = if round == 0 { Verdict::Counted } else { broken };
            assert_eq!(counters.verdict(1), expected, "{reads:?}, {round}");
        }
        hardware.passes(0, SECOND, 5, true);
        hardware.passes(1, SECOND, 5, true);
        counters.read(&mut hardware, &online);
        assert_eq!(counters.verdict(1), Verdict::Counted, "{reads:?}");
        assert_eq!(counts(&counters, 1), [(0, 30)]);
    }
}

#[test]
fn counters_that_never_get_their_turn_are_starved_by_their_own_clock() {
    let (mut hardware, mut counters, online) = (Hardware::default(), pair(), cpus(0..2));
    counters.read(&mut hardware, &online);
    let mut passes = |on_1: bool, ns| {
        hardware.passes(0, ns, 8, true);
        hardware.passes(1, ns, 8, on_1);
        counters.read(&mut hardware, &online);
        (counters.verdict(0), counts(&counters, 0)[0].1)
    };
    assert_eq!(passes(true, SECOND), (Verdict::Counted, 16));
    assert_eq!(passes(false, 9 * SECOND), (Verdict::Counted, 24));
    assert_eq!(passes(false, SECOND), (Verdict::Starved { cpu: 1 }, 32));
    // What happened on CPU 1 meanwhile is not guessed: that is 8 for it, not 8 times 12.
    assert_eq!(passes(true, SECOND), (Verdict::Counted, 48));
    // But a pause that is short is: twice 8.
    assert_eq!(passes(false, SECOND), (Verdict::Counted, 56));
    assert_eq!(passes(true, SECOND), (Verdict::Counted, 80));
}

#[test]
fn counters_that_run_and_count_nothing_are_not_believed() {
    let (mut hardware, mut counters, online) = (Hardware::default(), pair(), cpus(0..2));
    counters.read(&mut hardware, &online);
    let mut passes = |events, ns| {
        for cpu in 0..2 {
            hardware.passes(cpu, ns, events, true);
        }
        counters.read(&mut hardware, &online);
        let [access, miss] = [0, 1].map(|event| counters.verdict(event));
        assert_eq!(access, miss);
        miss
    };
    // The time of one CPU, not the sum over all.
    assert_eq!(passes(0, 59 * SECOND), Verdict::Silent);
    assert_eq!(passes(0, SECOND), Verdict::CountsNothing);
    assert_eq!(passes(1, SECOND), Verdict::Counted);
    // Counters that worked may do so no more, as in a guest that moved.
    assert_eq!(passes(0, 59 * SECOND), Verdict::Counted);
    assert_eq!(passes(0, SECOND), Verdict::CountsNothing);
}

#[test]
fn misses_may_pause_while_accesses_go_on_but_have_to_come_first() {
    for (asked, alone) in [(vec![ACCESS, MISS], false), (vec![MISS], true)] {
        let (mut hardware, online) = (Hardware::default(), cpus(0..1));
        let mut counters = CpuCounters::new(&asked);
        let miss = asked.len() - 1;
        counters.read(&mut hardware, &online);
        let mut passes = |misses: u64, ns| {
            hardware.passes(0, ns, 5, true);
            // The other event of the group did not happen as often.
            hardware.undo(MISS, 5 - misses);
            counters.read(&mut hardware, &online);
            counters.verdict(miss)
        };
        assert_eq!(passes(0, 59 * SECOND), Verdict::Silent);
        assert_eq!(passes(0, SECOND), Verdict::CountsNothing, "never yet");
        assert_eq!(passes(1, SECOND), Verdict::Counted);
        let paused = if alone { Verdict::CountsNothing } else { Verdict::Counted };
        assert_eq!(passes(0, 60 * SECOND), paused);
    }
}

/// The kernel's own counters, where CPU n of the test is CPU n % real.
struct Folded(u32);

impl OpensOnCpu for Folded {
    type Open = Group;

    fn open(&mut self, cpu: u32, events: &[Event]) -> Result<Group, Refused> {
        Group::open(Target::Cpu(cpu % self.0), events)
    }
}

#[test]
fn software_events_are_counted_on_256_cpus_in_3_groups_of_2() {
    let files = raise_open_files();
    assert!(files > 256 * 6 + 64, "{files} open files");
    let real = online_cpus(&Host::live()).unwrap();
    assert!(real.keys().copied().eq(0..real.len() as u32), "{real:?} are not in a row");
    let events = [Event::software(CPU_CLOCK), Event::software(CONTEXT_SWITCHES)];
    let online = cpus(0..256);
    let mut opener = Folded(real.len() as u32);
    let mut groups = [(); 3].map(|()| CpuCounters::new(&events));
    // Other tests open and close files of their own meanwhile.
    let open_counters = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.filter(|link| link.as_os_str() == "anon_inode:[perf_event]").count()
    };
    for counters in &mut groups {
        counters.read(&mut opener, &online);
    }
    assert!(open_counters() >= 256 * 6, "{}", open_counters());
    let mut last = [0; 3];
    for _ in 0..2 {
        // Somebody has to run, and to give way, for there to be something to count.
        for _ in 0..100 {
            std::thread::spawn(|| ()).join().unwrap();
        }
        for (counters, last) in groups.iter_mut().zip(&mut last) {
            counters.read(&mut opener, &online);
            for event in 0..2 {
                assert_eq!(counters.verdict(event), Verdict::Counted);
                assert_eq!(counters.totals(event).len(), 128, "nodes");
            }
            let clock = counters.totals(0).values().map(|total| total.count).sum::<u64>();
            assert!(clock > *last, "{clock} after {last}");
            *last = clock;
        }
    }
}

#[test]
fn a_cpu_that_is_not_there_is_told_from_an_event_that_is_not() {
    let clock = Event::software(CPU_CLOCK);
    // Beyond the kernel's NR_CPUS numbers are invalid; before, they are CPUs that are offline.
    let absent = Group::open(Target::Cpu(1 << 20), &[clock]).unwrap_err();
    assert_eq!(absent, Refused { at: 0, why: Why::Other(Errno::INVAL.raw_os_error()) });
    let group = [clock, Event { kind: 1 << 30, config: 0 }];
    let absent = Group::open(Target::Cpu(0), &group).unwrap_err();
    assert_eq!(absent, Refused { at: 1, why: Why::Absent });
    assert!(Group::open(Target::Cpu(0), &[clock; MOST_EVENTS + 1]).is_err());
    let none = Group::open(Target::Thread(u32::MAX >> 1), &[clock]).unwrap_err();
    assert_eq!(none, Refused { at: 0, why: Why::ThreadGone });
}
