//! Counters on this machine's own kernel, by events that it counts itself, in place of those of its
//! CPUs: faults of pages, which a child can count too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::null_mut;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod recorded;

use mrscope::collector::{
    CountsTlb, Engine, EngineOptions, LiveTlb, Openers, Pages, SourceOptions,
};
use mrscope::host::perf::{Event, Group, Target, Why};
use mrscope::host::{Host, OpensInThread, ProcessCounters, Uncounted};
use mrscope::model::{Counting, ProcessKey, Snapshot, TlbEvent, TlbFigures, TlbOptions, TlbRole};
use recorded::{Listed, Recorded, openers, process, tasks};
use tokio::runtime::Runtime;

const PAGE: usize = 4096;
/// Guard against a hang; nothing is judged by it.
const HANG: Duration = Duration::from_secs(30);
/// PERF_COUNT_SW_CPU_CLOCK, _PAGE_FAULTS and _DUMMY, which never counts.
const CLOCK: Event = Event::software(0);
const FAULTS: Event = Event::software(2);
const DUMMY: Event = Event::software(9);
/// Of no kernel.
const ABSENT: Event = Event { kind: 1 << 30, config: 0 };
/// This test program as a child: see [`child`].
const ROLE: &str = "MRSCOPE_TEST_FAULTS";

/// New pages, each of which is a fault: a hugepage would be one alone.
fn pages(count: usize) -> *mut u8 {
    let length = count * PAGE;
    // SAFETY: a new mapping at a place that the kernel picks.
    let at = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(null_mut(), length, protection, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: that mapping.
    unsafe { libc::madvise(at, length, libc::MADV_NOHUGEPAGE) };
    at.cast()
}

/// Touches so many new pages.
fn touch(count: usize) {
    let at = pages(count);
    for page in 0..count {
        // SAFETY: within the mapping.
        unsafe { at.add(page * PAGE).write_volatile(1) };
    }
}

/// Has the kernel touch so many new pages.
fn have_touched(count: usize) {
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    // SAFETY: the mapping is that long, and nobody else's.
    let into = unsafe { std::slice::from_raw_parts_mut(pages(count), count * PAGE) };
    (&zeros).read_exact(into).unwrap();
}

/// Faults of this process.
fn faults() -> u64 {
    // SAFETY: all zero is a value of it, and the kernel fills it in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    usage.ru_minflt as u64
}

/// A thread that touches as many pages as it is told.
fn worker() -> (Sender<usize>, JoinHandle<()>) {
    let (tell, told) = channel();
    (tell, std::thread::spawn(move || told.into_iter().for_each(touch)))
}

/// Does what it is told by lines: `worker` starts a thread, `touch N PAGES` has the Nth touch pages,
/// `kernel PAGES` the kernel, and `join` ends all threads. What is done is answered, with the faults
/// of the whole process since `begin` by its own count; a thread may not be done by then.
fn child() {
    let mut workers = Vec::new();
    let mut begun = 0;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["worker"] => workers.push(worker()),
            ["touch", at, pages] => {
                workers[at.parse::<usize>().unwrap()].0.send(pages.parse().unwrap()).unwrap();
            }
            ["kernel", pages] => have_touched(pages.parse().unwrap()),
            ["begin"] => begun = faults(),
            ["join"] => {
                for (tell, worker) in workers.drain(..) {
                    drop(tell);
                    worker.join().unwrap();
                }
            }
            _ => panic!("{line}"),
        }
        let since = faults() - begun;
        println!("\ndone {since}");
    }
}

struct Faulter {
    child: Child,
    tell: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Faulter {
    /// Runs this very test as a child.
    fn start(test: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let tell = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, tell, answers }
    }

    /// Returns the faults since `begin`, once it is done.
    fn does(&mut self, what: &str) -> u64 {
        writeln!(self.tell, "{what}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the child ended at {what}");
            if let Some(faults) = line.trim_end().strip_prefix("done ") {
                return faults.parse().unwrap();
            }
        }
    }

    fn key(&self) -> ProcessKey {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let start: u64 =
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        ProcessKey { tgid: self.child.id(), start_ns: start * 10_000_000 }
    }
}

impl Drop for Faulter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The kernel, and what the test wants done once so many threads are open.
struct Kernel<'a>(Option<(usize, &'a mut dyn FnMut())>);

impl OpensInThread for Kernel<'_> {
    type Open = Group;

    fn open(&mut self, tid: u32, event: Event) -> Result<Group, Why> {
        let opened = Group::open(Target::Thread(tid), &[event]).map_err(|refused| refused.why);
        if let Some((left, then)) = &mut self.0 {
            *left -= 1;
            if *left == 0 {
                then();
                self.0 = None;
            }
        }
        opened
    }
}

fn count(counters: &mut ProcessCounters<Group>, kernel: &mut Kernel, key: ProcessKey) -> u64 {
    counters.read(kernel, &Host::live(), &[key], &[true]);
    assert_eq!(counters.uncounted().get(&key), None::<&Uncounted>);
    let counts: Vec<_> = counters.counts().collect();
    assert_eq!(counts.len(), 1, "{counts:?}");
    counts[0].1[0].unwrap()
}

/// Those that were touched, and the few by which threads come and go. Of those it counts itself some
/// are the kernel's, at the end of a thread.
fn assert_counted(counted: u64, own: u64, touched: u64) {
    println!("{counted} counted, {own} by its own count, {touched} touched");
    assert!(counted >= touched, "{counted} of {touched}");
    assert!(counted <= own && own - counted <= 16, "{counted}, and {own} by its own count");
    assert!(own < touched + touched / 2, "{own} of {touched} by its own count");
}

#[test]
fn every_fault_of_every_thread_is_counted_once() {
    const NAME: &str = "every_fault_of_every_thread_is_counted_once";
    if std::env::var_os(ROLE).is_some() {
        return child();
    }
    let mut faulter = Faulter::start(NAME);
    faulter.does("worker");
    // What a first time costs more is behind it.
    faulter.does("touch 0 1");
    faulter.does("begin");
    let key = faulter.key();
    let mut counters = ProcessCounters::new(&[FAULTS], 1000);
    assert_eq!(count(&mut counters, &mut Kernel(None), key), 0);
    faulter.does("begin");
    let before = count(&mut counters, &mut Kernel(None), key);
    faulter.does("touch 0 1000");
    // Created after its creator was opened.
    faulter.does("worker");
    faulter.does("touch 1 3000");
    let own = faulter.does("join");
    let counted = count(&mut counters, &mut Kernel(None), key) - before;
    assert_counted(counted, own, 4000);
}

#[test]
fn a_thread_that_comes_while_its_process_is_opened_is_counted_once() {
    const NAME: &str = "a_thread_that_comes_while_its_process_is_opened_is_counted_once";
    if std::env::var_os(ROLE).is_some() {
        return child();
    }
    let mut faulter = Faulter::start(NAME);
    let key = faulter.key();
    let mut counters = ProcessCounters::new(&[FAULTS], 1000);
    let mut comes = || {
        faulter.does("worker");
    };
    // All are, so that it is counted with its creator.
    let threads = std::fs::read_dir(format!("/proc/{}/task", key.tgid)).unwrap().count();
    count(&mut counters, &mut Kernel(Some((threads, &mut comes))), key);
    // By the first reading after that: a later one would have doubts, and open all anew.
    faulter.does("touch 0 1000");
    faulter.does("join");
    let counted = count(&mut counters, &mut Kernel(None), key);
    assert!((1000..1500).contains(&counted), "{counted}");
}

#[test]
fn what_the_kernel_does_for_a_process_is_not_the_process_s() {
    const NAME: &str = "what_the_kernel_does_for_a_process_is_not_the_process_s";
    if std::env::var_os(ROLE).is_some() {
        return child();
    }
    let mut faulter = Faulter::start(NAME);
    let key = faulter.key();
    let mut counters = ProcessCounters::new(&[FAULTS], 1000);
    count(&mut counters, &mut Kernel(None), key);
    faulter.does("begin");
    let own = faulter.does("kernel 5000");
    let counted = count(&mut counters, &mut Kernel(None), key);
    assert!(own >= 5000 && counted < 500, "{counted} of {own}");
}

#[test]
fn a_child_process_is_not_its_parent() {
    const NAME: &str = "a_child_process_is_not_its_parent";
    if std::env::var_os(ROLE).is_some() {
        return child();
    }
    // This very process, whose child has a key of its own.
    let own_stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let start: u64 =
        own_stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    let own = ProcessKey { tgid: std::process::id(), start_ns: start * 10_000_000 };
    let mut counters = ProcessCounters::new(&[FAULTS], 1000);
    let before = count(&mut counters, &mut Kernel(None), own);
    let mut faulter = Faulter::start(NAME);
    faulter.does("worker");
    faulter.does("touch 0 100000");
    let theirs = faulter.does("join");
    let counted = count(&mut counters, &mut Kernel(None), own) - before;
    assert!(theirs > 100_000 && counted < 50_000, "{counted} of {theirs}");
    // Its end is seen.
    let key = faulter.key();
    drop(faulter);
    counters.read(&mut Kernel(None), &Host::live(), &[key], &[true]);
    assert_eq!(counters.uncounted()[&key], Uncounted::Ended);
    assert_eq!(counters.counts().count(), 0);
}

/// An engine with events that this kernel counts, and one process that holds MRs.
fn engine(events: Vec<(TlbEvent, Vec<Event>)>, key: ProcessKey) -> (Runtime, Pages) {
    let mut row = process(key.tgid, "faulter", 1);
    row.key = key;
    let snapshot = Snapshot { processes: vec![row], ..Snapshot::default() };
    let mut list = tasks();
    list.rows.truncate(1);
    list.rows[0].key = key;
    let asked = events.into_iter().map(|(event, events)| (event, Ok(events))).collect();
    let openers = Openers {
        tlb: Box::new(|host| Box::new(LiveTlb::open_events(host, asked, true, false))),
        ..openers(|| Ok(Box::new(Recorded(snapshot))), Listed(list))
    };
    let tlb = TlbOptions { per_process: true, ..TlbOptions::default() };
    let sources = SourceOptions { tlb, ..SourceOptions::default() };
    let options = EngineOptions { sources, ..EngineOptions::default() };
    let (pages, _engine) = Engine::start(Host::live(), options, openers).unwrap();
    (tokio::runtime::Builder::new_current_thread().build().unwrap(), pages)
}

fn page(runtime: &Runtime, pages: &Pages) -> String {
    let page = runtime.block_on(pages.get(pages.choose(&["tlb"]).unwrap())).unwrap();
    String::from_utf8(page.to_vec()).unwrap()
}

fn value(page: &str, series: &str) -> Option<u64> {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(line.parse::<f64>().unwrap() as u64)
}

#[test]
fn a_page_shows_what_a_process_and_the_host_have_counted() {
    const NAME: &str = "a_page_shows_what_a_process_and_the_host_have_counted";
    if std::env::var_os(ROLE).is_some() {
        return child();
    }
    let mut faulter = Faulter::start(NAME);
    faulter.does("worker");
    faulter.does("touch 0 1");
    let key = faulter.key();
    let events = vec![
        (TlbEvent::DataLoad, vec![CLOCK, FAULTS]),
        (TlbEvent::DataStore, vec![ABSENT, FAULTS]),
    ];
    let (runtime, pages) = engine(events, key);
    let labels = format!("{{comm=\"faulter\",op=\"load\",pid=\"{}\",tlb=\"data\"}}", key.tgid);
    let misses = format!("mrscope_process_tlb_misses_total{labels}");
    let begun = Instant::now();
    // First it has to be known, then to be opened.
    let before = loop {
        let page = page(&runtime, &pages);
        if value(&page, &misses).is_some() {
            break page;
        }
        assert!(begun.elapsed() < HANG, "no series {misses}: {page}");
        std::thread::park_timeout(Duration::from_millis(20));
    };
    faulter.does("begin");
    let first = page(&runtime, &pages);
    faulter.does("touch 0 2000");
    let own = faulter.does("join");
    let second = page(&runtime, &pages);
    let counted = value(&second, &misses).unwrap() - value(&first, &misses).unwrap();
    assert_counted(counted, own, 2000);

    let host = "mrscope_tlb_misses_total{numa_node=\"0\",op=\"load\",tlb=\"data\"}";
    let host = value(&second, host).unwrap() - value(&first, host).unwrap();
    assert!(host >= counted, "{host} of the host, {counted} of the process");
    let accesses = value(&second, &misses.replace("misses", "accesses")).unwrap();
    assert!(accesses >= value(&before, &misses.replace("misses", "accesses")).unwrap());
    for (series, expected) in [
        ("mrscope_tlb_event_counted{event=\"access\",op=\"load\",tlb=\"data\"}", 1),
        ("mrscope_tlb_event_counted{event=\"miss\",op=\"load\",tlb=\"data\"}", 1),
        ("mrscope_tlb_event_counted{event=\"access\",op=\"store\",tlb=\"data\"}", 0),
        ("mrscope_tlb_event_counted{event=\"miss\",op=\"store\",tlb=\"data\"}", 1),
        ("mrscope_collector_state{collector=\"tlb\",state=\"ok\"}", 1),
    ] {
        assert_eq!(value(&second, series), Some(expected), "{series}: {second}");
    }
    assert!(
        !second.contains("mrscope_tlb_accesses_total{numa_node=\"0\",op=\"store\""),
        "{second}"
    );
    let enabled = "mrscope_tlb_enabled_seconds_total{numa_node=\"0\",op=\"store\",tlb=\"data\"} ";
    assert!(second.contains(enabled), "{second}");

    // With the process its series go.
    drop(faulter);
    let begun = Instant::now();
    while value(&page(&runtime, &pages), &misses).is_some() {
        assert!(begun.elapsed() < HANG, "{misses} is there still");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// What counters say after a few readings, and what was logged. They run on a thread of their own,
/// which gives up its rights.
fn figures(events: Vec<(TlbEvent, Vec<Event>)>) -> (TlbFigures, String) {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let into = log.clone();
    let figures = std::thread::spawn(move || {
        let subscriber = tracing_subscriber::fmt().with_writer(move || into.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let asked = events.into_iter().map(|(event, events)| (event, Ok(events))).collect();
            let mut tlb = LiveTlb::open_events(Host::live(), asked, false, false);
            (0..3).map(|_| tlb.count(&[]).unwrap()).last().unwrap()
        })
    });
    let figures = figures.join().unwrap();
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    (figures, log)
}

#[test]
fn what_is_absent_is_logged_once_while_others_are_counted() {
    let (said, log) = figures(vec![(TlbEvent::DataLoad, vec![ABSENT, CLOCK])]);
    let counting: Vec<_> =
        said.counters.iter().map(|counter| (counter.role, &counter.counting)).collect();
    assert!(matches!(counting[0], (TlbRole::Access, Counting::Unsupported(_))), "{counting:?}");
    assert_eq!(counting[1], (TlbRole::Miss, &Counting::Counted));
    let lines: Vec<&str> = log.lines().collect();
    assert!(matches!(&lines[..], [line] if line.contains("not counted: ")), "{log}");

    let (said, log) = figures(vec![(TlbEvent::DataLoad, vec![ABSENT, ABSENT])]);
    assert!(said.counters.iter().all(|counter| counter.nodes.is_empty()));
    assert_eq!(log, "", "the state of the collector says it");
}

#[test]
fn misses_of_accesses_that_count_nothing_are_not_shown_nor_parts_of_page_walks() {
    let states =
        |event, events| {
            let (said, _) = figures(vec![(event, events)]);
            let nodes = said.counters.iter().map(|counter| counter.nodes.len());
            assert!(nodes.zip(&said.counters).all(|(nodes, counter)| {
                (nodes > 0) == (counter.counting == Counting::Counted)
            }));
            said.counters.into_iter().map(|counter| counter.counting).collect::<Vec<_>>()
        };
    let silent = |counting: &Counting| matches!(counting, Counting::NoData(_));
    let pair = states(TlbEvent::InstructionLoad, vec![DUMMY, CLOCK]);
    assert!(pair.iter().all(silent), "{pair:?}");
    // Misses may well be none.
    let pair = states(TlbEvent::InstructionLoad, vec![CLOCK, DUMMY]);
    assert!(pair[0] == Counting::Counted && silent(&pair[1]), "{pair:?}");
    let walks = states(TlbEvent::PageWalk, vec![CLOCK, CLOCK, DUMMY]);
    assert!(walks.iter().all(silent), "{walks:?}");
    let walks = states(TlbEvent::PageWalk, vec![CLOCK, CLOCK, CLOCK]);
    assert_eq!(walks, [const { Counting::Counted }; 3]);
}

/// Capabilities of the calling thread: permitted, in effect.
fn capabilities() -> [u64; 2] {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    ["CapPrm:", "CapEff:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    })
}

#[test]
fn a_thread_that_counts_keeps_what_opening_takes_and_nothing_for_good_if_so_chosen() {
    const PERFMON: u64 = 1 << 38;
    const SYS_ADMIN: u64 = 1 << 21;
    let kept = |events: [Event; 2], permanent_drop| {
        let thread = std::thread::spawn(move || {
            let asked = vec![(TlbEvent::DataLoad, Ok(events.to_vec()))];
            let mut tlb = LiveTlb::open_events(Host::live(), asked, false, permanent_drop);
            let kept = capabilities();
            // Reading takes none.
            let figures = tlb.count(&[]).unwrap();
            assert_eq!(capabilities(), kept);
            (kept, figures.counters.iter().all(|counter| counter.counting == Counting::Counted))
        });
        thread.join().unwrap()
    };
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    let more = if paranoid.trim().parse::<i32>().unwrap() >= 3 { SYS_ADMIN } else { 0 };
    assert_eq!(kept([CLOCK, CLOCK], false), ([PERFMON | more, 0], true));
    assert_eq!(kept([CLOCK, CLOCK], true), ([0, 0], true));
    // Where there is nothing to open there is nothing to keep.
    assert_eq!(kept([ABSENT, ABSENT], false), ([0, 0], false));
}
