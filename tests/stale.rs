//! A source that hangs: a file of sysfs that is a FIFO, which nobody writes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod recorded;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mrscope::collector::{Engine, EngineOptions, Pages};
use mrscope::host::Host;
use recorded::{Listed, Recorded, openers, snapshot, tasks};
use tokio::runtime::Runtime;

/// Guard against a hang; nothing is judged by it.
const HANG: Duration = Duration::from_secs(30);
const INFO: &str = "mrscope_rdma_device_info{device=\"mlx5_7\"";

fn state(state: &str) -> String {
    format!("mrscope_collector_state{{collector=\"devices\",state=\"{state}\"}} 1\n")
}

/// A host with two devices, gone when dropped.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        let at = std::env::temp_dir().join(format!("mrscope-stale-{}", std::process::id()));
        for device in ["mlx5_7", "mlx5_8"] {
            std::fs::create_dir_all(at.join("sys/class/infiniband").join(device)).unwrap();
        }
        Self(at)
    }

    fn attribute(&self) -> PathBuf {
        self.0.join("sys/class/infiniband/mlx5_7/fw_ver")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mkfifo(at: &Path) {
    assert!(Command::new("mkfifo").arg(at).status().unwrap().success());
}

/// Asks again and again, not without a break, until it holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < HANG, "waited in vain: {what}");
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

fn page(runtime: &Runtime, pages: &Pages) -> String {
    let everything = pages.choose(&[""; 0]).unwrap();
    let page = runtime.block_on(async { tokio::time::timeout(HANG, pages.get(everything)).await });
    String::from_utf8(page.expect("a page came").unwrap().to_vec()).unwrap()
}

#[test]
fn a_device_that_hangs_costs_no_page_and_is_stale_until_it_answers() {
    let tree = Tree::new();
    std::fs::write(tree.attribute(), "1.0\n").unwrap();
    let (pages, _engine) = Engine::start(
        Host::at(&tree.0),
        EngineOptions::default(),
        openers(|| Ok(Box::new(Recorded(snapshot()))), Listed(tasks())),
    )
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let first = page(&runtime, &pages);
    assert!(first.contains(INFO) && first.contains(&state("ok")), "{first}");

    std::fs::remove_file(tree.attribute()).unwrap();
    mkfifo(&tree.attribute());
    // What was known serves for a while; then it is dropped.
    let mut stale = String::new();
    wait_for("it to turn stale", || {
        let page = page(&runtime, &pages);
        if page.contains(&state("stale")) {
            stale = page;
            return true;
        }
        assert!(page.contains(INFO) && page.contains(&state("ok")), "{page}");
        false
    });
    assert!(!stale.contains(INFO), "{stale}");
    // The other device, and what the kernel's programs say of this one, are there all the same.
    assert!(stale.contains("mrscope_rdma_device_info{device=\"mlx5_8\""), "{stale}");
    for device in ["mlx5_7", "mlx5_8"] {
        let idle = format!("mrscope_mr_active{{device=\"{device}\",kind=\"host\"}} 0\n");
        assert!(stale.contains(&idle), "{stale}");
    }
    for collector in ["mr", "process", "exporter"] {
        let ok = format!("mrscope_collector_state{{collector=\"{collector}\",state=\"ok\"}} 1\n");
        assert!(stale.contains(&ok), "{stale}");
    }

    // It answers at last: the next reading is a good one.
    std::fs::OpenOptions::new()
        .write(true)
        .open(tree.attribute())
        .unwrap()
        .write_all(b"2\n")
        .unwrap();
    std::fs::remove_file(tree.attribute()).unwrap();
    std::fs::write(tree.attribute(), "2.0\n").unwrap();
    wait_for("its new answer", || page(&runtime, &pages).contains("fw=\"2.0\""));
}
