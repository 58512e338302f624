//! The rounds of the write probe on a made-up host, with programs of the test in its place: what
//! comes of each answer, of none, and of ports that are to be left alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod recorded;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mrscope::collector::{CollectError, Prober, Probes};
use mrscope::host::Host;
use mrscope::model::{
    PageBytes, PortFigures, ProbeFigures, ProbeTrouble, ProcessKey, WriteProbeOptions,
};
use recorded::process;
use serde_json::{Value, json};

/// Guard against a hang; nothing is judged by it.
const HANG: Duration = Duration::from_secs(30);
/// Longer than any test.
const LONG: Duration = Duration::from_hours(1);

/// A host with one device, `rdma0`, whose port is up.
struct Ground {
    root: PathBuf,
}

impl Ground {
    fn new() -> Self {
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

    fn device(&self, device: &str, kind: &str) {
        for (file, text) in [
            ("node_type", kind),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
        ] {
            self.attribute(device, file, text);
        }
    }

    fn attribute(&self, device: &str, file: &str, text: &str) {
        let path = self.root.join("sys/class/infiniband").join(device).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // As sysfs does: whoever reads never sees half of it.
        let next = self.root.join("next");
        fs::write(&next, format!("{text}\n")).unwrap();
        fs::rename(next, path).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A program in the probe's place: a shell script, in whose folder it runs.
    fn program(&self, script: &str) -> PathBuf {
        let path = self.path("program");
        let text = format!("#!/bin/sh\ncd {}\n{script}\n", self.root.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// One that gives that answer, with that status.
    fn answering(&self, answer: &str, status: i32) -> PathBuf {
        fs::write(self.path("answer"), answer).unwrap();
        self.program(&format!("cat answer; exit {status}"))
    }

    fn start(&self, options: WriteProbeOptions) -> Prober {
        let prober = Prober::start(Host::at(&self.root), options).unwrap();
        prober.wait(Instant::now() + HANG);
        prober
    }

    /// After one round.
    fn figures(&self, program: PathBuf) -> ProbeFigures {
        self.start(options(program)).figures().unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn options(program: PathBuf) -> WriteProbeOptions {
    WriteProbeOptions {
        interval: LONG,
        timeout: HANG,
        program: Some(program),
        ..WriteProbeOptions::default()
    }
}

fn often(program: PathBuf) -> WriteProbeOptions {
    WriteProbeOptions { interval: Duration::from_millis(5), ..options(program) }
}

fn report() -> Value {
    json!({
        "result": "ok", "device": "rdma0", "port": 1, "gid_index": 3,
        "gid": "0000:0000:0000:0000:0000:ffff:0a09:0001", "gid_type": "RoCE v2",
        "mtu_bytes": 4096, "port_rate_bytes_per_second": 12_500_000_000_u64,
        "pages": "2m", "page_size_bytes": 2_097_152, "fallback": null, "numa_node": 1,
        "mr_bytes": 4_194_304, "touched": true,
        "registration_ns": 90_000, "deregistration_ns": 20_000,
        "message_bytes": 65536, "depth": 16, "writes": 3, "bytes": 196_608,
        "elapsed_ns": 19_660_800, "bandwidth_bytes_per_second": 10_000_000.0,
        "latency_message_bytes": 8, "latency_p50_ns": 1_500, "latency_p99_ns": 2_500,
        "latency_samples": 100, "tlb_accesses": null, "tlb_misses": null, "tlb_unavailable": null,
    })
}

fn failure(reason: &str) -> String {
    json!({
        "result": "error", "device": "rdma0", "port": 1, "verb": "ibv_reg_mr", "errno": 12,
        "errno_name": "ENOMEM", "reason": reason, "detail": "4194304 bytes", "remedy": "Raise it.",
    })
    .to_string()
}

fn port(figures: &ProbeFigures) -> PortFigures {
    port_of(figures, "rdma0")
}

/// With what came of its runs, and without what did not.
fn port_of(figures: &ProbeFigures, device: &str) -> PortFigures {
    let mut port = figures.ports[&(device.to_owned(), 1)].clone();
    port.runs.retain(|_, count| *count > 0);
    port
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < HANG, "{what} did not come");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_report_becomes_the_figures_of_its_port() {
    let ground = Ground::new();
    let figures = ground.figures(ground.answering(&report().to_string(), 0));
    assert_eq!(figures.trouble, None);
    let all = &figures.ports[&("rdma0".to_owned(), 1)].runs;
    assert!(all.len() > 20 && all.values().sum::<u64>() == 1, "{all:?}");
    let port = port(&figures);
    assert_eq!((port.success, port.failure, port.fallback), (Some(true), None, None));
    assert_eq!(port.runs, BTreeMap::from([("ok", 1)]));
    assert_eq!(port.rate_bytes_per_second, Some(12_500_000_000));
    assert!(port.last_run.is_some());
    let (of, measured) = port.measured.first_key_value().unwrap();
    assert_eq!((port.measured.len(), *of), (1, (2_097_152, Some(1))));
    assert!((measured.bandwidth_bytes_per_second - 1e7).abs() < 1e-3);
    assert_eq!((measured.latency_p50_ns, measured.latency_p99_ns), (1_500, 2_500));
    assert_eq!(measured.registration_ns, 90_000);
}

#[test]
fn every_reason_that_a_failure_tells_is_counted_by_its_word() {
    for reason in mrscope::probe::Reason::ALL {
        let ground = Ground::new();
        let figures = ground.figures(ground.answering(&failure(reason.word()), 1));
        let port = port(&figures);
        assert_eq!(port.runs, BTreeMap::from([(reason.word(), 1)]));
        assert_eq!((port.success, port.measured.len()), (Some(false), 0));
        let (word, why) = port.failure.unwrap();
        assert_eq!(word, reason.word());
        assert_eq!(why, "ibv_reg_mr (ENOMEM): 4194304 bytes; Raise it.");
    }
}

#[test]
fn what_is_no_answer_is_garbage_and_says_how_it_ended() {
    let whole = report().to_string();
    let mut other = report();
    other["device"] = json!("rdma1");
    let mut absurd = report();
    absurd["bandwidth_bytes_per_second"] = json!(1e12);
    for (script, says) in [
        (String::new(), "it ended with status 0"),
        ("echo no; echo usage >&2; exit 2".to_owned(), "it ended with status 2 (usage)"),
        (format!("printf '%s' '{}'", &whole[..whole.len() / 2]), "it ended with status 0"),
        (format!("echo '{whole}' '{whole}'"), "trailing characters"),
        ("while :; do echo more and more and more; done".to_owned(), "more than 65536 bytes"),
        ("kill -SEGV $$".to_owned(), "it ended by a signal"),
        (format!("echo '{other}'"), "it tells of rdma1 port 1"),
        (format!("echo '{absurd}'"), "the bandwidth is not that of its bytes and time"),
    ] {
        let ground = Ground::new();
        let figures = ground.figures(ground.program(&script));
        let port = port(&figures);
        assert_eq!(port.runs, BTreeMap::from([("garbage", 1)]), "{script}");
        let (_, why) = port.failure.unwrap();
        assert!(why.contains(says), "{script}: {why}");
        assert!(why.ends_with(", expected one JSON object"), "{script}: {why}");
    }
}

#[test]
fn a_child_that_stops_or_sleeps_is_killed_and_is_a_timeout() {
    for script in ["kill -STOP $$", "exec sleep 1000"] {
        let ground = Ground::new();
        let program = ground.program(&format!("echo $$ >pid; {script}"));
        let short = WriteProbeOptions { timeout: Duration::from_secs(1), ..options(program) };
        let prober = ground.start(short);
        let port = port(&prober.figures().unwrap());
        assert_eq!(port.runs, BTreeMap::from([("timeout", 1)]), "{script}");
        assert_eq!(port.failure.unwrap().1, "it was killed after 1 s");
        let pid = fs::read_to_string(ground.path("pid")).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "{script}: it is still there");
    }
}

#[test]
fn what_can_t_be_started_is_unsupported_and_says_what_was_missing() {
    let ground = Ground::new();
    let missing = ground.path("no-such-program");
    let loader =
        ground.program("echo 'program: error while loading shared libraries: x' >&2; exit 127");
    for (program, says) in [
        (missing, "no-such-program: No such file or directory"),
        (loader, "shared libraries: x; install libibverbs1 and ibverbs-providers"),
    ] {
        let figures = ground.figures(program);
        assert_eq!(port(&figures).runs, BTreeMap::from([("not_started", 1)]));
        let Some(ProbeTrouble::Unsupported(why)) = figures.trouble else {
            panic!("{:?}", figures.trouble);
        };
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn ports_that_are_down_excluded_or_of_another_kind_are_skipped() {
    let ground = Ground::new();
    for (device, kind) in [("iwarp0", "4: RNIC"), ("mlx5_bond_0", "1: CA"), ("none_up", "1: CA")] {
        ground.device(device, kind);
    }
    ground.attribute("none_up", "ports/1/state", "1: DOWN");
    // Asked of the driver, which an excluded device's is not.
    fs::remove_file(ground.path("sys/class/infiniband/mlx5_bond_0/ports/1/state")).unwrap();
    let program = ground.program("echo \"$@\" >>asked; cat answer");
    fs::write(ground.path("answer"), report().to_string()).unwrap();
    let exclude = vec!["mlx5_*".to_owned()];
    let prober = ground.start(WriteProbeOptions { exclude, ..options(program) });
    let figures = prober.figures().unwrap();
    assert_eq!(figures.trouble, None);
    for (device, result) in [
        ("iwarp0", "skipped_unsupported"),
        ("mlx5_bond_0", "skipped_excluded"),
        ("none_up", "skipped_port_down"),
        ("rdma0", "ok"),
    ] {
        let port = port_of(&figures, device);
        assert_eq!(port.runs, BTreeMap::from([(result, 1)]), "{device}");
        assert_eq!(port.success, (result == "ok").then_some(true), "{device}");
    }
    let asked = fs::read_to_string(ground.path("asked")).unwrap();
    assert_eq!(asked.lines().count(), 1, "{asked}");
}

#[test]
fn a_port_with_traffic_is_left_alone_and_one_with_little_is_not() {
    // 100 Gb/s are 12.5 GB/s; the kernel counts words of 4 bytes.
    for (words_a_step, result) in [(u64::MAX / 1_000_000, "skipped_busy"), (0, "ok")] {
        let ground = Ground::new();
        let program = ground.answering(&report().to_string(), 0);
        ground.attribute("rdma0", "ports/1/counters/port_rcv_data", "0");
        ground.attribute("rdma0", "ports/1/counters/port_xmit_data", "0");
        let over = std::sync::atomic::AtomicBool::new(false);
        let figures = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sent = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    sent += words_a_step;
                    let text = (sent / 4).to_string();
                    ground.attribute("rdma0", "ports/1/counters/port_xmit_data", &text);
                    std::thread::park_timeout(Duration::from_millis(1));
                }
            });
            let figures = ground.figures(program);
            over.store(true, Ordering::Relaxed);
            figures
        });
        assert_eq!(port(&figures).runs, BTreeMap::from([(result, 1)]));
    }
}

#[test]
fn page_sizes_take_turns_within_the_bytes_that_are_allowed() {
    let ground = Ground::new();
    fs::write(ground.path("answer"), report().to_string()).unwrap();
    let program = ground.program("echo \"$@\" >>asked; cat answer");
    ground.attribute("rdma0", "device/numa_node", "1");
    let page_sizes = vec![PageBytes::Huge2M, PageBytes::Base, PageBytes::Huge1G];
    let options = WriteProbeOptions { page_sizes, max_bytes: 4 << 20, ..often(program) };
    let prober = ground.start(options);
    wait_for("five runs", || port(&prober.figures().unwrap()).runs["ok"] >= 5);
    drop(prober);
    let asked = fs::read_to_string(ground.path("asked")).unwrap();
    let after = |line: &str, flag: &str| {
        let mut words = line.split(' ').skip_while(|word| *word != flag);
        words.nth(1).unwrap_or("not given").to_owned()
    };
    let pages: Vec<_> = asked.lines().map(|line| after(line, "--pages")).collect();
    assert_eq!(pages[..5], ["2m", "base", "1g", "2m", "base"]);
    for line in asked.lines() {
        assert_eq!(after(line, "--device"), "rdma0");
        assert_eq!(after(line, "--numa-node"), "1");
        assert_eq!(after(line, "--parent"), std::process::id().to_string());
        assert_eq!(after(line, "--max-bytes"), "4194304");
        // With 16 that warm up, and the small ones: what 4 MiB have room for.
        assert_eq!(after(line, "--count"), "47");
        assert_eq!(line.contains("--fallback base"), !line.contains("--pages base"));
    }
}

#[test]
fn a_child_gets_nothing_of_the_environment() {
    let ground = Ground::new();
    let figures = ground.figures(ground.program(r"tr '\0' '\n' </proc/$$/environ >said"));
    assert_eq!(port(&figures).runs, BTreeMap::from([("garbage", 1)]));
    let said = fs::read_to_string(ground.path("said")).unwrap();
    let names: Vec<_> = said.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert_eq!(names, ["PATH"]);
}

#[test]
fn after_failures_a_port_is_left_out_for_ever_longer_and_one_success_ends_that() {
    let ground = Ground::new();
    let program =
        ground.program("echo >>ran; if [ $(wc -l <ran) -le 5 ]; then exit 3; else cat answer; fi");
    fs::write(ground.path("answer"), report().to_string()).unwrap();
    let prober = ground.start(often(program));
    let runs = || port(&prober.figures().unwrap()).runs;
    wait_for("three successes", || runs().get("ok").is_some_and(|ok| *ok >= 3));
    let runs = runs();
    assert_eq!(runs["garbage"], 5);
    // 1, 3, 7, and then always 15 rounds.
    assert_eq!(runs["skipped_back_off"], 1 + 3 + 7 + 15 + 15);
}

#[test]
fn what_went_loses_its_gauges_and_keeps_its_counters_and_returns() {
    let ground = Ground::new();
    let prober = ground.start(often(ground.answering(&report().to_string(), 0)));
    let now = || port(&prober.figures().unwrap());
    wait_for("figures", || !now().measured.is_empty());
    let away = ground.path("away");
    fs::rename(ground.path("sys/class/infiniband/rdma0"), &away).unwrap();
    wait_for("its end", || !now().present);
    let gone = now();
    assert!(gone.measured.is_empty() && gone.success.is_none());
    assert!(gone.runs["ok"] >= 1);
    fs::rename(&away, ground.path("sys/class/infiniband/rdma0")).unwrap();
    wait_for("its return", || now().success == Some(true));
    assert!(now().runs["ok"] > gone.runs["ok"]);
}

#[test]
fn figures_that_are_too_old_are_dropped_and_success_is_what_it_was() {
    let ground = Ground::new();
    let program = ground.answering(&report().to_string(), 0);
    let timeout = Duration::from_secs(1);
    let prober = ground.start(WriteProbeOptions { timeout, ..often(program) });
    let now = || port(&prober.figures().unwrap());
    wait_for("figures", || !now().measured.is_empty());
    ground.attribute("rdma0", "ports/1/state", "1: DOWN");
    wait_for("their end", || now().measured.is_empty());
    assert_eq!(now().success, Some(true));
    assert!(now().runs["skipped_port_down"] > 0);
}

#[test]
fn a_port_that_failed_and_is_down_now_is_down_and_no_failure() {
    let ground = Ground::new();
    let prober = ground.start(often(ground.program("exit 3")));
    let now = || port(&prober.figures().unwrap());
    wait_for("a failure", || now().failure.is_some());
    ground.attribute("rdma0", "ports/1/state", "1: DOWN");
    wait_for("that to be over", || now().failure.is_none());
    assert_eq!(now().success, Some(false));
    assert!(now().runs["skipped_port_down"] > 0);
}

#[test]
fn base_pages_are_said_to_be_what_was_not_asked_for() {
    let ground = Ground::new();
    let mut answer = report();
    answer["fallback"] = json!("0 of 2 hugepages of 2097152 bytes are there");
    answer["page_size_bytes"] = json!(4096);
    answer["pages"] = json!("base");
    let port = port(&ground.figures(ground.answering(&answer.to_string(), 0)));
    assert_eq!(port.success, Some(true));
    assert_eq!(port.fallback.unwrap(), "0 of 2 hugepages of 2097152 bytes are there");
    assert!(port.measured.contains_key(&(4096, Some(1))));
}

#[test]
fn the_thread_s_end_is_its_child_s_end() {
    let ground = Ground::new();
    let program = ground.program("echo $$ >pid.new; mv pid.new pid; exec sleep 1000");
    let prober = Prober::start(Host::at(&ground.root), options(program)).unwrap();
    assert!(matches!(prober.figures(), Err(CollectError::NoData(_))));
    wait_for("the child", || ground.path("pid").exists());
    let pid = fs::read_to_string(ground.path("pid")).unwrap();
    drop(prober);
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn a_registration_is_looked_for_from_the_start_of_a_run_until_after_its_report() {
    let ground = Ground::new();
    fs::write(ground.path("answer"), report().to_string()).unwrap();
    let program = ground
        .program("echo $$ >pid.new; mv pid.new pid; while [ ! -e go ]; do :; done; cat answer");
    for (in_time, late, missed) in [(true, false, 0), (false, true, 0), (false, false, 1)] {
        let _ = (fs::remove_file(ground.path("go")), fs::remove_file(ground.path("pid")));
        let prober = Prober::start(Host::at(&ground.root), options(program.clone())).unwrap();
        wait_for("the child", || ground.path("pid").exists());
        let pid: u32 = fs::read_to_string(ground.path("pid")).unwrap().trim().parse().unwrap();
        wait_for("its start", || !prober.processes().is_empty());
        let own = prober.processes();
        assert_eq!(own.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [pid]);
        let (_, ticks) = own.into_iter().next().unwrap();
        let mut row = process(pid, "probe", 1);
        row.key = ProcessKey { tgid: pid, start_ns: ticks * 10_000_000 + 7 };
        let rows = [row];
        // A row is there while the child runs, and is freed, or comes in the last reading alone.
        assert!(prober.judge(Instant::now(), if in_time { &rows } else { &[] }).is_empty());
        fs::write(ground.path("go"), "").unwrap();
        prober.wait(Instant::now() + HANG);
        let unseen = prober.judge(Instant::now(), if late { &rows } else { &[] });
        assert_eq!(unseen.len(), missed, "{in_time} {late}");
        assert_eq!(port(&prober.figures().unwrap()).unseen, missed as u64);
        assert!(prober.judge(Instant::now(), &[]).is_empty(), "it is judged once");
    }
}

#[test]
fn runs_from_before_registrations_were_watched_are_not_looked_for() {
    let ground = Ground::new();
    let prober = ground.start(options(ground.answering(&report().to_string(), 0)));
    assert_eq!(prober.processes().len(), 1);
    prober.settle();
    assert!(prober.judge(Instant::now(), &[]).is_empty());
    assert_eq!(port(&prober.figures().unwrap()).unseen, 0);
}

#[test]
fn what_can_t_be_started_is_unsupported_while_its_port_is_left_out() {
    let ground = Ground::new();
    let prober = ground.start(often(ground.path("no-such-program")));
    wait_for("a round that leaves it out", || {
        port(&prober.figures().unwrap()).runs.contains_key("skipped_back_off")
    });
    let trouble = prober.figures().unwrap().trouble;
    assert!(matches!(trouble, Some(ProbeTrouble::Unsupported(_))), "{trouble:?}");
    ground.program("cat answer");
    fs::write(ground.path("answer"), report().to_string()).unwrap();
    fs::rename(ground.path("program"), ground.path("no-such-program")).unwrap();
    wait_for("it to be measured", || port(&prober.figures().unwrap()).success == Some(true));
    assert_eq!(prober.figures().unwrap().trouble, None);
}

#[test]
fn no_child_is_left_waiting_to_be_reaped() {
    let ground = Ground::new();
    let prober = ground.start(often(ground.program("echo $$ >>pids; exit 3")));
    wait_for("a few runs", || port(&prober.figures().unwrap()).runs["garbage"] >= 3);
    drop(prober);
    let pids = fs::read_to_string(ground.path("pids")).unwrap();
    for pid in pids.lines() {
        assert!(!Path::new("/proc").join(pid).exists(), "{pid} is still there");
    }
}
