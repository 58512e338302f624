//! What is found and compared, between a kernel's list and pins that the test holds in its hands.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod recorded;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mrscope::collector::{Engine, EngineOptions, Pages, SourceOptions};
use mrscope::ebpf::{EventsError, KernelEvents};
use mrscope::host::Host;
use mrscope::model::{
    Creator, DeviceTotals, Excluded, HookState, MadeBy, MrKind, Pin, PinUse, Placed, ProcessKey,
    ResourcesOptions, Snapshot, Tasks,
};
use recorded::resources::{Kernel, Listing, device, mr};
use recorded::{Listed, openers};
use tokio::runtime::Runtime;

/// Guard against a hang; nothing is judged by it.
const HANG: Duration = Duration::from_secs(30);
const PAGE: u64 = 4096;

/// The kernel's programs, as the test has them.
#[derive(Default)]
struct Programs {
    pins: Vec<Pin>,
    unknown_releases: u64,
}

struct Watched(Arc<Mutex<Programs>>);

impl KernelEvents for Watched {
    fn snapshot(&mut self, _: &[String]) -> Result<Snapshot, EventsError> {
        let unknown_releases = self.0.lock().unwrap().unknown_releases;
        let idle = DeviceTotals::idle("mlx5_0", MrKind::Host);
        let devices = vec![DeviceTotals { unknown_releases, ..idle }];
        Ok(Snapshot { counting_since_ns: Some(1), devices, ..Snapshot::default() })
    }

    fn pins(&mut self) -> Result<Vec<Pin>, EventsError> {
        Ok(self.0.lock().unwrap().pins.clone())
    }

    fn placements(&mut self) -> Result<Option<HashMap<u64, Placed>>, EventsError> {
        Ok(None)
    }

    fn forget(&mut self, _: &[ProcessKey]) {}

    fn hooks(&self) -> Vec<HookState> {
        recorded::hooks()
    }
}

/// A host of the first pid namespace; gone when dropped.
struct Ground {
    root: PathBuf,
    programs: Arc<Mutex<Programs>>,
    listing: Listing,
    runtime: Runtime,
}

impl Ground {
    fn new(name: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("mrscope-accounts-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("proc/self/ns")).unwrap();
        symlink("pid:[4026531836]", root.join("proc/self/ns/pid")).unwrap();
        fs::write(root.join("proc/self/mountinfo"), "").unwrap();
        let ground = Self {
            root,
            programs: Arc::default(),
            listing: Listing::default(),
            runtime: tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap(),
        };
        ground.device("mlx5_0");
        ground.kernel(|kernel| kernel.devices = vec![device(3, "mlx5_0")]);
        ground
    }

    fn device(&self, name: &str) -> PathBuf {
        let at = self.root.join("sys/class/infiniband").join(name);
        fs::create_dir_all(&at).unwrap();
        at
    }

    /// A process with one thread, that started at tick 500.
    fn process(&self, tgid: u32) {
        let at = self.root.join(format!("proc/{tgid}"));
        fs::create_dir_all(&at).unwrap();
        let stat = format!(
            "{tgid} (x) S 1 7 7 0 -1 0 1 0 0 0 1 1 0 0 20 0 1 0 500 1000 10 18446744073709551615 1 1 \
             0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        );
        fs::write(at.join("stat"), stat).unwrap();
        let status = format!("Name:\tx\nState:\tS (sleeping)\nTgid:\t{tgid}\nThreads:\t1\n");
        fs::write(at.join("status"), status).unwrap();
    }

    fn kernel<T>(&self, change: impl FnOnce(&mut Kernel) -> T) -> T {
        change(&mut self.listing.0.lock().unwrap())
    }

    fn programs<T>(&self, change: impl FnOnce(&mut Programs) -> T) -> T {
        change(&mut self.programs.lock().unwrap())
    }

    fn start(&self, exclude: &str, interval: Duration) -> Running<'_> {
        let (events, listing) = (Watched(Arc::clone(&self.programs)), self.listing.clone());
        let tasks = Tasks { exact: true, whole: true, ..Tasks::default() };
        let mut openers = openers(move || Ok(Box::new(events)), Listed(tasks));
        openers.resources = Box::new(move |_| Box::new(listing));
        let sources = SourceOptions {
            excluded: Excluded(vec![exclude.to_owned()]),
            resources: ResourcesOptions { interval },
            ..SourceOptions::default()
        };
        let options = EngineOptions { sources, ..EngineOptions::default() };
        let (pages, engine) = Engine::start(Host::at(&self.root), options, openers).unwrap();
        Running { ground: self, pages, engine }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

struct Running<'a> {
    ground: &'a Ground,
    pages: Pages,
    engine: JoinHandle<()>,
}

impl Running<'_> {
    /// Pages until one is as it should be.
    fn wait_for(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let page = self.page();
            if holds(&page) {
                return page;
            }
            assert!(begun.elapsed() < HANG, "waited in vain for {what}: {page}");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    fn page(&self) -> String {
        let everything = self.pages.choose(&[""; 0]).unwrap();
        let page = async { tokio::time::timeout(HANG, self.pages.get(everything)).await };
        String::from_utf8(self.ground.runtime.block_on(page).unwrap().unwrap().to_vec()).unwrap()
    }
}

/// A series' value.
fn value(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

fn pin(umem: u64, tgid: u32, bytes: u64) -> Pin {
    Pin {
        umem,
        born_ns: umem,
        owner: Some(ProcessKey { tgid, start_ns: 5_001_234_567 }),
        device: "mlx5_0".into(),
        kind: MrKind::Host,
        pin_use: PinUse::Mr,
        made_by: MadeBy::Registration,
        committed: true,
        address: umem,
        length_bytes: bytes,
        pinned_bytes: bytes.next_multiple_of(PAGE),
    }
}

const ACTIVE: &str = "mrscope_mr_active{device=\"mlx5_0\",kind=\"host\"}";
const FOUND: &str = "mrscope_mr_found{device=\"mlx5_0\"}";
const BEYOND_NLDEV: &str = "mrscope_ledger_difference_bytes{against=\"nldev\",device=\"mlx5_0\"}";
const BEYOND_PAGES: &str =
    "mrscope_ledger_difference_bytes{against=\"reg_pages\",device=\"mlx5_0\"}";
const OK: &str = "mrscope_collector_state{collector=\"resources\",state=\"ok\"} 1\n";
const FAILED: &str = "mrscope_collector_state{collector=\"resources\",state=\"failed\"} 1\n";

#[test]
fn the_first_page_has_what_was_there_before_and_each_later_page_what_is_left_of_it() {
    let ground = Ground::new("first");
    ground.process(70);
    ground.process(71);
    let all = (0..400).map(|mrn| mr(mrn, 8192, Creator::Thread(70 + mrn % 2))).collect();
    ground.kernel(|kernel| _ = kernel.mrs.insert(3, all));
    let running = ground.start("none", Duration::from_hours(1));
    let of = |pid| format!("mrscope_process_mr_active{{comm=\"\",pid=\"{pid}\"}}");
    let page = running.page();
    assert_eq!(value(&page, ACTIVE), Some(400.0));
    assert_eq!(value(&page, FOUND), Some(400.0));
    assert_eq!(value(&page, &of(70)), Some(200.0));
    assert_eq!(
        value(&page, "mrscope_mr_active_bytes{device=\"mlx5_0\",kind=\"host\"}"),
        Some(3_276_800.0)
    );
    assert_eq!(
        value(&page, "mrscope_umem_pinned_bytes{device=\"mlx5_0\",use=\"mr\"}"),
        Some(3_276_800.0)
    );

    // Nothing is asked again while nothing unknown is released.
    let asked = ground.kernel(|kernel| kernel.asked.len());
    ground.kernel(|kernel| kernel.mrs.get_mut(&3).unwrap().retain(|mr| mr.mrn >= 300));
    assert_eq!(value(&running.page(), ACTIVE), Some(400.0));
    assert_eq!(ground.kernel(|kernel| kernel.asked.len()), asked);
    for (left, release) in [(100.0, 1), (1.0, 99), (0.0, 1)] {
        ground.programs(|programs| programs.unknown_releases += release);
        let page = running.page();
        assert_eq!((value(&page, ACTIVE), value(&page, FOUND)), (Some(left), Some(left)));
        let next = if left > 1.0 { 399 } else { 400 };
        ground.kernel(|kernel| kernel.mrs.get_mut(&3).unwrap().retain(|mr| mr.mrn >= next));
    }
    let page = running.page();
    assert_eq!(value(&page, &of(70)), None);
    assert!(page.contains(OK), "{page}");
}

#[test]
fn pages_that_a_driver_counts_agree_though_its_count_wraps() {
    const TIB: u64 = 1 << 40;
    let ground = Ground::new("pages");
    let at = ground.device("mlx5_0").join("reg_pages");
    let pinned = [pin(1, 70, 6 * TIB), pin(2, 70, 3 * TIB + 1)];
    ground.programs(|programs| programs.pins = pinned.to_vec());
    let list = [mr(1, 6 * TIB, Creator::Gone), mr(2, 3 * TIB + 1, Creator::Gone)];
    ground.kernel(|kernel| _ = kernel.mrs.insert(3, list.to_vec()));
    // 9 TiB and a page, in 32 bits with a sign.
    let pages = (9 * TIB / PAGE + 1) as i32;
    assert!(pages < 0);
    for beyond in [0, 5, -3] {
        fs::write(&at, format!("{}\n", pages + beyond)).unwrap();
        let page = ground.start("none", Duration::from_hours(1)).page();
        assert_eq!(value(&page, BEYOND_PAGES), Some(f64::from(beyond) * PAGE as f64));
        assert_eq!(value(&page, BEYOND_NLDEV), Some(0.0));
        assert_eq!(value(&page, FOUND), Some(0.0));
        // Their process is not in /proc.
        let orphaned = "mrscope_mr_orphaned_bytes{device=\"mlx5_0\"}";
        assert_eq!(value(&page, orphaned), Some((9 * TIB + 1) as f64));
    }
}

#[test]
fn a_device_whose_file_gives_an_error_harms_no_other() {
    let ground = Ground::new("einval");
    // What the kernel really answers EINVAL to.
    symlink("/sys/class/net/lo/speed", ground.device("mlx5_0").join("reg_pages")).unwrap();
    // A device that is no InfiniBand and tells next to nothing.
    let iwarp = ground.device("irdma0");
    fs::create_dir_all(iwarp.join("ports/1")).unwrap();
    fs::write(iwarp.join("node_type"), "4: RNIC\n").unwrap();
    fs::write(ground.device("mlx5_1").join("reg_pages"), "2\n").unwrap();
    ground.kernel(|kernel| {
        kernel.devices = ["mlx5_0", "mlx5_1", "irdma0"]
            .iter()
            .zip(3..)
            .map(|(name, index)| device(index, name))
            .collect();
        for index in 3..6 {
            kernel.mrs.insert(index, vec![mr(1, 8192, Creator::Gone)]);
        }
    });
    let page = ground.start("none", Duration::from_hours(1)).page();
    assert!(page.contains(FAILED), "{page}");
    assert_eq!(value(&page, BEYOND_PAGES), None);
    for name in ["mlx5_0", "mlx5_1", "irdma0"] {
        assert_eq!(value(&page, &format!("mrscope_mr_found{{device=\"{name}\"}}")), Some(1.0));
        let nldev =
            format!("mrscope_ledger_difference_bytes{{against=\"nldev\",device=\"{name}\"}}");
        assert_eq!(value(&page, &nldev), Some(0.0));
        assert!(page.contains(&format!("mrscope_rdma_device_info{{device=\"{name}\"")), "{page}");
    }
    let other = "mrscope_ledger_difference_bytes{against=\"reg_pages\",device=\"mlx5_1\"}";
    assert_eq!(value(&page, other), Some(0.0));
    assert!(page.contains("mrscope_collector_state{collector=\"devices\",state=\"ok\"} 1\n"));
}

#[test]
fn an_excluded_device_is_never_touched() {
    let ground = Ground::new("excluded");
    let untouched = ground.device("mlx5_bond_0");
    // Who opens one of them waits for ever.
    fs::create_dir_all(untouched.join("ports/1")).unwrap();
    for file in ["fw_ver", "reg_pages", "node_type", "ports/1/link_layer", "ports/1/state"] {
        assert!(Command::new("mkfifo").arg(untouched.join(file)).status().unwrap().success());
    }
    ground.kernel(|kernel| {
        kernel.devices = vec![device(3, "mlx5_0"), device(4, "mlx5_bond_0")];
        kernel.mrs.insert(3, vec![mr(1, 8192, Creator::Gone)]);
        kernel.mrs.insert(4, vec![mr(1, 8192, Creator::Gone)]);
    });
    let page = ground.start("*_bond_*", Duration::from_hours(1)).page();
    assert!(page.contains(OK), "{page}");
    assert!(page.contains("mrscope_collector_state{collector=\"devices\",state=\"ok\"} 1\n"));
    let asked = ground.kernel(|kernel| kernel.asked.clone());
    assert!(asked.contains(&3) && !asked.contains(&4), "{asked:?}");
    // The write probe's figures here are a recording.
    let names = |line: &&str| line.contains("mlx5_bond_0");
    assert_eq!(page.lines().find(names), None);

    // Not excluded, its files are what a page waits for in vain.
    fs::remove_file(untouched.join("reg_pages")).unwrap();
    let page = ground.start("none", Duration::from_hours(1)).page();
    assert!(page.contains("mrscope_collector_state{collector=\"devices\",state=\"stale\"} 1\n"));
    assert!(ground.kernel(|kernel| kernel.asked.contains(&4)));
}

#[test]
fn what_is_lost_is_a_difference_and_never_found() {
    let ground = Ground::new("lost");
    ground.process(70);
    let running = ground.start("none", Duration::ZERO);
    assert_eq!(value(&running.page(), FOUND), Some(0.0));
    // Two were registered; the map had room for one.
    let list = vec![mr(1, 8192, Creator::Thread(70)), mr(2, 4096, Creator::Thread(70))];
    ground.kernel(|kernel| _ = kernel.mrs.insert(3, list));
    ground.programs(|programs| programs.pins = vec![pin(1, 70, 8192)]);
    // Lists take a hundredth of the time at most.
    let differs = |bytes: f64| {
        running.wait_for("a difference", |page| value(page, BEYOND_NLDEV) == Some(bytes));
    };
    differs(4096.0);
    assert_eq!(value(&running.page(), FOUND), Some(0.0));
    ground.kernel(|kernel| _ = kernel.mrs.get_mut(&3).unwrap().pop());
    differs(0.0);
}

#[test]
fn what_was_found_stays_while_the_kernel_gives_no_answer() {
    let ground = Ground::new("silent");
    ground.process(70);
    ground.kernel(|kernel| _ = kernel.mrs.insert(3, vec![mr(1, 8192, Creator::Thread(70))]));
    let running = ground.start("none", Duration::from_hours(1));
    assert_eq!(value(&running.page(), ACTIVE), Some(1.0));
    ground.kernel(|kernel| kernel.fails = true);
    let page = running.wait_for("the failure to be told", |page| page.contains(FAILED));
    assert_eq!(value(&page, ACTIVE), Some(1.0));
    ground.kernel(|kernel| kernel.fails = false);
    let page = running.wait_for("an answer", |page| page.contains(OK));
    assert_eq!((value(&page, ACTIVE), value(&page, FOUND)), (Some(1.0), Some(1.0)));
    // It began to search anew for nothing.
    assert_eq!(ground.kernel(|kernel| kernel.asked.iter().filter(|it| **it == 3).count()), 4);
}

#[test]
fn of_a_list_that_is_cut_nothing_is_found_or_compared() {
    let ground = Ground::new("cut");
    ground.kernel(|kernel| {
        kernel.cut = true;
        kernel.mrs.insert(3, vec![mr(1, 8192, Creator::Gone)]);
    });
    let running = ground.start("none", Duration::ZERO);
    let page = running.page();
    assert!(page.contains(FAILED), "{page}");
    assert_eq!((value(&page, FOUND), value(&page, BEYOND_NLDEV)), (None, None));
    ground.kernel(|kernel| kernel.cut = false);
    let page = running.wait_for("a whole list", |page| page.contains(OK));
    assert_eq!(value(&page, FOUND), Some(1.0));
    // Who made it has ended, and its process may live on.
    assert_eq!(value(&page, "mrscope_mr_orphaned{device=\"mlx5_0\"}"), Some(0.0));
}

#[test]
fn what_was_seen_under_an_older_name_is_not_found_under_a_newer() {
    let ground = Ground::new("renamed");
    ground.process(70);
    ground.programs(|programs| programs.pins = vec![pin(1, 70, 8192)]);
    ground.kernel(|kernel| _ = kernel.mrs.insert(3, vec![mr(1, 8192, Creator::Thread(70))]));
    let running = ground.start("none", Duration::ZERO);
    assert_eq!(value(&running.page(), FOUND), Some(0.0));
    ground.kernel(|kernel| kernel.devices = vec![device(3, "mlx5_x")]);
    let of = |name: &str| format!("mrscope_{name}{{device=\"mlx5_x\"}}");
    let compared = of("ledger_compared_timestamp_seconds");
    let mut last = None;
    for _ in 0..4 {
        let page = running.wait_for("the next comparison", |page| {
            value(page, &compared).is_some_and(|at| Some(at) != last)
        });
        last = value(&page, &compared);
        assert_eq!(value(&page, &of("mr_found")), Some(0.0));
    }
}

#[test]
fn what_was_seen_under_a_name_that_was_never_listed_is_not_found() {
    let ground = Ground::new("renamed-before");
    ground.process(70);
    ground.programs(|programs| programs.pins = vec![pin(1, 70, 8192)]);
    ground.kernel(|kernel| {
        kernel
            .mrs
            .insert(3, vec![mr(1, 8192, Creator::Thread(70)), mr(2, 4096, Creator::Thread(70))]);
        kernel.devices = vec![device(3, "mlx5_x")];
    });
    let running = ground.start("none", Duration::ZERO);
    let of = |name: &str| format!("mrscope_{name}{{device=\"mlx5_x\"}}");
    let page = running.wait_for("a comparison", |page| {
        value(page, &of("ledger_compared_timestamp_seconds")).is_some()
    });
    // One that no pin explains is found all the same.
    assert_eq!(value(&page, &of("mr_found")), Some(1.0));
}

#[test]
fn an_end_waits_for_no_answer_of_the_kernel() {
    let ground = Ground::new("end");
    let running = ground.start("none", Duration::ZERO);
    running.page();
    // Who is asked now waits for the test.
    let held = ground.listing.0.lock().unwrap();
    running.page();
    let Running { pages, engine, .. } = running;
    drop(pages);
    let (say, ended) = channel();
    std::thread::spawn(move || say.send(engine.join().is_ok()));
    assert!(ended.recv_timeout(HANG).unwrap());
    drop(held);
}
