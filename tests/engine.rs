//! The engine between sources that the test holds in its hands: who is buried when, and who shares
//! which reading.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod recorded;

use std::collections::HashMap;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mrscope::collector::{CollectError, Engine, EngineOptions, ListsTasks, Pages};
use mrscope::ebpf::{EventsError, KernelEvents};
use mrscope::host::Host;
use mrscope::model::{Attach, HookState, Pin, Placed, Process, ProcessKey, Snapshot, Tasks};
use recorded::{openers, process, snapshot, tasks};
use tokio::runtime::Runtime;

/// Guard against a hang; nothing is judged by it.
const HANG: Duration = Duration::from_secs(30);

/// What the kernel says and was told.
#[derive(Default)]
struct Kernel {
    rows: Vec<Process>,
    pins: Vec<Pin>,
    fails: bool,
    readings: usize,
    forgotten: Vec<ProcessKey>,
}

struct Scripted(Arc<Mutex<Kernel>>);

impl KernelEvents for Scripted {
    fn snapshot(&mut self, _: &[String]) -> Result<Snapshot, EventsError> {
        let mut kernel = self.0.lock().unwrap();
        kernel.readings += 1;
        if kernel.fails {
            return Err(EventsError::Map { map: "calls", source: std::io::Error::other("a test") });
        }
        Ok(Snapshot { processes: kernel.rows.clone(), ..snapshot() })
    }

    fn pins(&mut self) -> Result<Vec<Pin>, EventsError> {
        Ok(self.0.lock().unwrap().pins.clone())
    }

    fn placements(&mut self) -> Result<Option<HashMap<u64, Placed>>, EventsError> {
        Ok(None)
    }

    fn forget(&mut self, gone: &[ProcessKey]) {
        self.0.lock().unwrap().forgotten.extend(gone);
    }

    fn hooks(&self) -> Vec<HookState> {
        recorded::hooks()
    }
}

/// Waits for the test to give it the next list.
struct Gated(Receiver<Tasks>);

impl ListsTasks for Gated {
    fn list(&mut self) -> Result<(Tasks, HookState), CollectError> {
        let tasks = self.0.recv().map_err(|_| CollectError::Failed("the test is over".into()))?;
        let attach = Attach::Iterator;
        Ok((tasks, HookState { hook: "tasks", symbol: "iter/task", attach, trouble: None }))
    }
}

struct Told {
    kernel: Arc<Mutex<Kernel>>,
    lists: Sender<Tasks>,
    pages: Pages,
    runtime: Runtime,
    root: PathBuf,
}

impl Told {
    /// A host in the first pid namespace, whose /proc has no process at all.
    fn start(name: &str, rows: Vec<Process>) -> Self {
        let root =
            std::env::temp_dir().join(format!("mrscope-engine-{}-{name}", std::process::id()));
        std::fs::create_dir_all(root.join("proc/self/ns")).unwrap();
        symlink("pid:[4026531836]", root.join("proc/self/ns/pid")).unwrap();
        std::fs::write(root.join("proc/stat"), "btime 1700000000\n").unwrap();
        let kernel = Arc::new(Mutex::new(Kernel { rows, ..Kernel::default() }));
        let (lists, gate) = channel();
        // One while all is attached, one for the first page.
        for _ in 0..2 {
            lists.send(all()).unwrap();
        }
        let events = Scripted(Arc::clone(&kernel));
        let (pages, _engine) = Engine::start(
            Host::at(&root),
            EngineOptions::default(),
            openers(move || Ok(Box::new(events)), Gated(gate)),
        )
        .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let told = Self { kernel, lists, pages, runtime, root };
        let begun = Instant::now();
        while !told.pages.ready() {
            assert!(begun.elapsed() < HANG, "it was never ready");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        told
    }

    fn page(&self) -> String {
        let page = async {
            let everything = self.pages.choose(&[""; 0]).unwrap();
            tokio::time::timeout(HANG, self.pages.get(everything)).await
        };
        String::from_utf8(self.runtime.block_on(page).unwrap().unwrap().to_vec()).unwrap()
    }

    fn forgotten(&self) -> Vec<ProcessKey> {
        self.kernel.lock().unwrap().forgotten.clone()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn all() -> Tasks {
    tasks()
}

fn without(tgid: u32) -> Tasks {
    let mut tasks = tasks();
    tasks.rows.retain(|task| task.key.tgid != tgid);
    tasks
}

const FIRST: u32 = 4_194_305;
const BORN: u32 = 4_194_309;

#[test]
fn who_is_missing_on_a_newer_list_is_freed_once() {
    const LIVES: &str = "mrscope_process_start_time_seconds{comm=\"first\"";
    let told = Told::start("freed", vec![process(FIRST, "first", 1)]);
    told.lists.send(all()).unwrap();
    assert!(told.page().contains(LIVES));
    told.kernel.lock().unwrap().rows[0].live_pins = 0;
    told.lists.send(without(FIRST)).unwrap();
    told.page();
    // The maps can't be read now: the row that was freed does not come back from memory.
    told.kernel.lock().unwrap().rows.clear();
    told.kernel.lock().unwrap().fails = true;
    for _ in 0..3 {
        told.lists.send(without(FIRST)).unwrap();
        assert!(!told.page().contains(LIVES));
    }
    assert_eq!(told.forgotten(), [ProcessKey { tgid: FIRST, start_ns: 1 }]);
}

#[test]
fn who_still_holds_is_not_freed_with_its_end() {
    let told = Told::start("holds", vec![process(FIRST, "first", 1)]);
    for _ in 0..3 {
        told.lists.send(without(FIRST)).unwrap();
        told.page();
    }
    assert_eq!(told.forgotten(), []);
}

#[test]
fn a_list_that_hangs_buries_nobody_who_was_born_since() {
    let told = Told::start("hangs", vec![]);
    // No newer list comes: that of the start serves on, and does not know the newcomer.
    let mut born = process(BORN, "born", 1);
    born.live_pins = 0;
    told.kernel.lock().unwrap().rows.push(born);
    for _ in 0..3 {
        assert!(told.page().contains("comm=\"born\",pid=\"4194309\""));
    }
    assert_eq!(told.forgotten(), []);
}

#[test]
fn who_asks_while_a_page_is_made_shares_the_next_one() {
    let told = Told::start("shares", vec![]);
    let everything = told.pages.choose(&[""; 0]).unwrap();
    let before = told.kernel.lock().unwrap().readings;
    // The engine waits for the kernel, which the test holds; the others come meanwhile.
    let held = told.kernel.lock().unwrap();
    let ask = || {
        let (pages, everything) = (told.pages.clone(), everything.clone());
        told.runtime.spawn(async move { pages.get(everything).await })
    };
    let first = ask();
    let rest: Vec<_> = (0..20).map(|_| ask()).collect();
    // All have asked: a task that is spawned runs when the runtime does.
    told.runtime.block_on(tokio::task::yield_now());
    drop(held);
    told.runtime.block_on(async {
        let first = first.await.unwrap().unwrap();
        for page in rest {
            let page = page.await.unwrap().unwrap();
            assert!(!page.is_empty() && !first.is_empty());
        }
    });
    let readings = told.kernel.lock().unwrap().readings - before;
    // One for who came first, one for all who came meanwhile; a tick may come between.
    assert!(readings <= 3, "{readings} readings");
}

#[test]
fn the_status_is_that_of_the_newest_reading_and_looking_at_it_asks_no_source() {
    const LOOKS: usize = 10_000;
    let told = Told::start("status", vec![]);
    let first = told.pages.status().unwrap();
    let failures = first.failures.as_ref().unwrap();
    let pids: Vec<u32> = failures.iter().map(|failure| failure.pid).collect();
    assert_eq!(pids, snapshot().last_failures.iter().map(|row| row.tgid).collect::<Vec<_>>());
    let before = told.kernel.lock().unwrap().readings;
    for _ in 0..LOOKS {
        assert!(told.pages.status().is_some());
    }
    // A tick may come between, and a few on a slow machine.
    let readings = told.kernel.lock().unwrap().readings - before;
    assert!(readings < LOOKS / 100, "{readings} readings");

    told.kernel.lock().unwrap().fails = true;
    told.page();
    let status = told.pages.status().unwrap();
    let mr = status.collectors.iter().find(|it| it.collector == "mr").unwrap();
    assert_eq!(mr.state, "failed");
    assert_eq!(status.failures.as_ref(), Err(&mr.reason));
    assert!(status.at >= first.at);
}
