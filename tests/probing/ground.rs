//! A made-up host, and programs in the probe's place.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mrscope::collector::{Prober, Probes};
use mrscope::host::Host;
use mrscope::model::{PortFigures, ProbeFigures, WriteProbeOptions};
use serde_json::{Value, json};

/// Guard against a hang; nothing is judged by it.
pub const HANG: Duration = Duration::from_secs(30);
/// Longer than any test.
pub const LONG: Duration = Duration::from_hours(1);

/// A host with one device, `rdma0`, whose port is up.
pub struct Ground {
    pub root: PathBuf,
}

impl Ground {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("mrscope-probing-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(root.join("sys/class/infiniband")).unwrap();
        symlink("/proc", root.join("proc")).unwrap();
        let ground = Self { root };
        ground.device("rdma0", "1: CA");
        ground
    }

    pub fn device(&self, device: &str, kind: &str) {
        for (file, text) in [
            ("node_type", kind),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
        ] {
            self.attribute(device, file, text);
        }
    }

    pub fn attribute(&self, device: &str, file: &str, text: &str) {
        let path = self.root.join("sys/class/infiniband").join(device).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // As sysfs does: whoever reads never sees half of it.
        let next = self.root.join("next");
        fs::write(&next, format!("{text}\n")).unwrap();
        fs::rename(next, path).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A program in the probe's place: a shell script, which runs in this folder. It is sourced by
    /// one that nobody ever writes: a file that another test's child inherited while it was open for
    /// writing can't be executed.
    pub fn program(&self, script: &str) -> PathBuf {
        fs::write(self.path("script"), script).unwrap();
        let path = self.path("program");
        if !path.exists() {
            symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/probe.sh"), &path)
                .unwrap();
        }
        path
    }

    /// One that gives that answer, with that status.
    pub fn answering(&self, answer: &str, status: i32) -> PathBuf {
        fs::write(self.path("answer"), answer).unwrap();
        self.program(&format!("cat answer; exit {status}"))
    }

    pub fn start(&self, options: WriteProbeOptions) -> Prober {
        let prober = Prober::start(Host::at(&self.root), options).unwrap();
        prober.wait(Instant::now() + HANG);
        prober
    }

    /// After one round.
    pub fn figures(&self, program: PathBuf) -> ProbeFigures {
        self.start(options(program)).figures().unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

pub fn options(program: PathBuf) -> WriteProbeOptions {
    WriteProbeOptions {
        interval: LONG,
        timeout: HANG,
        program: Some(program),
        ..WriteProbeOptions::default()
    }
}

pub fn often(program: PathBuf) -> WriteProbeOptions {
    WriteProbeOptions { interval: Duration::from_millis(5), ..options(program) }
}

pub fn report() -> Value {
    json!({
        "result": "ok", "device": "rdma0", "port": 1, "gid_index": 3,
        "gid": "0000:0000:0000:0000:0000:ffff:0a09:0001", "gid_type": "RoCE v2",
        "mtu_bytes": 4096, "port_rate_bytes_per_second": 12_500_000_000_u64,
        "max_mr": 524_287, "max_mr_size": u64::MAX,
        "pages": "2m", "page_size_bytes": 2_097_152, "fallback": null, "numa_node": 1,
        "mr_bytes": 4_194_304, "touched": true,
        "registration_ns": 90_000, "deregistration_ns": 20_000,
        "message_bytes": 65536, "depth": 16, "writes": 3, "bytes": 196_608,
        "elapsed_ns": 19_660_800, "bandwidth_bytes_per_second": 10_000_000.0,
        "latency_message_bytes": 8, "latency_p50_ns": 1_500, "latency_p99_ns": 2_500,
        "latency_samples": 100, "tlb_accesses": null, "tlb_misses": null, "tlb_unavailable": null,
    })
}

pub fn failure(reason: &str) -> String {
    json!({
        "result": "error", "device": "rdma0", "port": 1, "verb": "ibv_reg_mr", "errno": 12,
        "errno_name": "ENOMEM", "reason": reason, "detail": "4194304 bytes", "remedy": "Raise it.",
    })
    .to_string()
}

pub fn port(figures: &ProbeFigures) -> PortFigures {
    port_of(figures, "rdma0")
}

/// With what came of its runs, and without what did not.
pub fn port_of(figures: &ProbeFigures, device: &str) -> PortFigures {
    let mut port = figures.ports[&(device.to_owned(), 1)].clone();
    port.runs.retain(|_, count| *count > 0);
    port
}

pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < HANG, "{what} did not come");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
