//! Threads of a /proc that the test writes, with counters that it holds.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use super::*;
use crate::host::perf::Reading;

const ACCESS: Event = Event::cache(3, 0, 0);
const MISS: Event = Event::cache(3, 0, 1);
const BOTH: [bool; 2] = [true, true];

/// A /proc with one process, 7, that started at tick 100.
struct Proc(PathBuf);

impl Proc {
    fn new(name: &str, tids: &[u32]) -> Self {
        let root = format!("mrscope-threads-{name}-{}", std::process::id());
        let root = std::env::temp_dir().join(root);
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("proc/self/ns")).unwrap();
        std::os::unix::fs::symlink("pid:[4026531836]", root.join("proc/self/ns/pid")).unwrap();
        let proc = Self(root);
        proc.write("7/stat", &stat(100));
        for tid in tids {
            proc.thread(*tid, 100);
        }
        proc
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join("proc").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn thread(&self, tid: u32, start: u64) {
        self.write(&format!("7/task/{tid}/stat"), &stat(start));
    }

    fn ends(&self, tid: u32) {
        std::fs::remove_dir_all(self.0.join(format!("proc/7/task/{tid}"))).unwrap();
    }

    fn host(&self) -> Host {
        Host::at(&self.0)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn stat(start: u64) -> String {
    format!(
        "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 2 0 {start} 1000 10 \
         18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    )
}

const KEY: ProcessKey = ProcessKey { tgid: 7, start_ns: 1_000_000_000 };

/// What the test moves: the counter of a thread and event.
#[derive(Clone, Default)]
struct Held(Rc<RefCell<Reading>>);

impl ReadsCounters for Held {
    fn read(&self) -> std::io::Result<Option<Reading>> {
        Ok(Some(self.0.borrow().clone()))
    }
}

impl Held {
    fn counts(&self, count: u64) {
        let mut reading = self.0.borrow_mut();
        let old = reading.counts.first().copied().unwrap_or_default();
        reading.counts = vec![old + count];
        reading.enabled_ns += 10;
        reading.running_ns += 10;
    }
}

/// Opens what it is asked for, after it has done what the test wants done by then.
struct Opener<'a> {
    open: Vec<(u32, Event, Held)>,
    before: &'a dyn Fn(usize, u32) -> Result<(), Why>,
    calls: Cell<usize>,
}

impl OpensInThread for Opener<'_> {
    type Open = Held;

    fn open(&mut self, tid: u32, event: Event) -> Result<Held, Why> {
        let call = self.calls.get();
        self.calls.set(call + 1);
        (self.before)(call, tid)?;
        let held = Held::default();
        held.counts(0);
        self.open.push((tid, event, held.clone()));
        Ok(held)
    }
}

impl<'a> Opener<'a> {
    fn new(before: &'a dyn Fn(usize, u32) -> Result<(), Why>) -> Self {
        Self { open: Vec::new(), before, calls: Cell::new(0) }
    }

    /// Those that are held by the counters too.
    fn live(&mut self) -> Vec<(u32, Event)> {
        self.open.retain(|(_, _, held)| Rc::strong_count(&held.0) > 1);
        let mut live: Vec<_> = self.open.iter().map(|(tid, event, _)| (*tid, *event)).collect();
        live.sort_by_key(|(tid, event)| (*tid, event.config));
        live
    }

    fn counts(&self, tid: u32, event: Event, count: u64) {
        for (_, _, held) in self.open.iter().filter(|(at, what, _)| (*at, *what) == (tid, event)) {
            held.counts(count);
        }
    }
}

const FINE: &dyn Fn(usize, u32) -> Result<(), Why> = &|_, _| Ok(());

fn counters() -> ProcessCounters<Held> {
    ProcessCounters::new(&[ACCESS, MISS], 100)
}

fn counts(counters: &ProcessCounters<Held>) -> Vec<Vec<Option<u64>>> {
    counters
        .counts()
        .map(|(key, counts)| {
            assert_eq!(key, KEY);
            counts
        })
        .collect()
}

#[test]
fn every_thread_is_counted_and_a_process_is_the_sum() {
    let (proc, mut opener, mut counters) =
        (Proc::new("sum", &[7, 8]), Opener::new(FINE), counters());
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(opener.live(), [(7, ACCESS), (7, MISS), (8, ACCESS), (8, MISS)]);
    assert_eq!(counts(&counters), [[Some(0), Some(0)]]);
    opener.counts(7, ACCESS, 100);
    opener.counts(8, ACCESS, 20);
    opener.counts(8, MISS, 3);
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(counts(&counters), [[Some(120), Some(3)]]);
    // Its counter stands for the threads that it had created.
    proc.ends(8);
    opener.counts(8, MISS, 4);
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(counts(&counters), [[Some(120), Some(7)]]);
    assert_eq!(opener.live().len(), 4);
}

#[test]
fn a_thread_that_came_while_others_were_opened_has_all_opened_anew() {
    let proc = Proc::new("came", &[7]);
    let before = |call, _| {
        if call == 0 {
            proc.thread(9, 100);
        }
        Ok(())
    };
    let (mut opener, mut counters) = (Opener::new(&before), counters());
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(opener.live(), [(7, ACCESS), (7, MISS), (9, ACCESS), (9, MISS)], "each once");
}

#[test]
fn a_process_that_never_stands_still_is_not_counted_by_halves() {
    let proc = Proc::new("restless", &[7]);
    let before = |call, tid| {
        if tid == 7 {
            proc.thread(1000 + call as u32, 100);
        }
        Ok(())
    };
    let (mut opener, mut counters) = (Opener::new(&before), counters());
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(counters.uncounted()[&KEY], Uncounted::Restless);
    assert_eq!((counts(&counters).len(), opener.live().len()), (0, 0));
}

#[test]
fn a_thread_that_was_under_way_has_the_process_opened_anew() {
    let proc = Proc::new("clone", &[7]);
    let (mut opener, mut counters) = (Opener::new(FINE), counters());
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    opener.counts(7, MISS, 5);
    // It shows only now, and is not younger than the opening.
    proc.thread(8, 100);
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(opener.live().len(), 4);
    opener.counts(7, MISS, 1);
    opener.counts(8, MISS, 1);
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(counts(&counters), [[Some(0), Some(7)]]);

    // One that is younger is counted with its creator.
    let young = Proc::new("young", &[7]);
    let (mut opener, mut counters) = (Opener::new(FINE), self::counters());
    counters.read(&mut opener, &young.host(), &[KEY], &BOTH);
    young.thread(8, now_ticks() + 2 * YOUNG_TICKS);
    counters.read(&mut opener, &young.host(), &[KEY], &BOTH);
    assert_eq!(opener.live().len(), 2);
}

#[test]
fn doubts_come_to_an_end() {
    let proc = Proc::new("doubts", &[7]);
    let (mut opener, mut counters) = (Opener::new(FINE), counters());
    for round in 0..6 {
        counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
        proc.thread(8 + round, 100);
    }
    // Opened anew twice, and never after that.
    assert_eq!(opener.live().len(), 2 * 3);
    assert_eq!(opener.calls.get(), 2 + 4 + 6);
}

#[test]
fn a_leader_that_has_ended_is_listed_and_can_t_be_opened() {
    let proc = Proc::new("leader", &[7, 8]);
    let before = |_, tid| if tid == 7 { Err(Why::ThreadGone) } else { Ok(()) };
    let (mut opener, mut counters) = (Opener::new(&before), counters());
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(opener.live(), [(8, ACCESS), (8, MISS)]);
    assert_eq!(counts(&counters), [[Some(0), Some(0)]]);
}

#[test]
fn a_process_that_is_asked_for_again_goes_on_where_it_was() {
    let (proc, mut opener, mut counters) =
        (Proc::new("again", &[7]), Opener::new(FINE), counters());
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    opener.counts(7, MISS, 5);
    counters.read(&mut opener, &proc.host(), &[], &BOTH);
    assert_eq!((counts(&counters).len(), opener.live().len()), (0, 0));
    counters.read(&mut opener, &proc.host(), &[KEY], &[false, true]);
    assert_eq!(opener.live(), [(7, MISS)], "what is not wanted is not open");
    opener.counts(7, MISS, 2);
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(counts(&counters), [[Some(0), Some(7)]]);
}

#[test]
fn a_pid_that_is_another_s_is_another_process() {
    let (proc, mut opener, mut counters) =
        (Proc::new("reused", &[7]), Opener::new(FINE), counters());
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    opener.counts(7, MISS, 5);
    proc.write("7/stat", &stat(101));
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(counters.uncounted()[&KEY], Uncounted::Ended);
    let other = ProcessKey { start_ns: 1_010_000_000, ..KEY };
    counters.read(&mut opener, &proc.host(), &[other], &BOTH);
    assert_eq!(counters.counts().collect::<Vec<_>>(), [(other, vec![Some(0), Some(0)])]);
    // Another one may come while it is opened.
    let before = |_, _| {
        proc.write("7/stat", &stat(102));
        Ok(())
    };
    let (mut opener, mut counters) = (Opener::new(&before), self::counters());
    counters.read(&mut opener, &proc.host(), &[other], &BOTH);
    assert_eq!(counters.uncounted()[&other], Uncounted::Ended);
    assert!(opener.live().is_empty());
}

#[test]
fn what_can_t_be_opened_is_told() {
    let proc = Proc::new("refused", &[7, 8]);
    let refused = |_, _| Err(Why::Denied);
    let (mut opener, mut counters) = (Opener::new(&refused), counters());
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(counters.uncounted()[&KEY], Uncounted::Refused(Why::Denied));

    let (mut opener, mut counters) = (Opener::new(FINE), ProcessCounters::new(&[ACCESS, MISS], 3));
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(counters.uncounted()[&KEY], Uncounted::Files);
    assert_eq!(opener.calls.get(), 0);

    std::fs::remove_file(proc.0.join("proc/self/ns/pid")).unwrap();
    let mut counters = self::counters();
    counters.read(&mut opener, &proc.host(), &[KEY], &BOTH);
    assert_eq!(counters.uncounted()[&KEY], Uncounted::Hidden);
}
