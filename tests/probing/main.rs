//! The rounds of the write probe on a made-up host, with programs of the test in its place: what
//! comes of each answer, of none, and of ports that are to be left alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ground;
mod ports;
#[path = "../recorded/mod.rs"]
mod recorded;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ground::*;
use mrscope::collector::{CollectError, Prober, Probes};
use mrscope::host::Host;
use mrscope::model::{PageBytes, ProbeTrouble, ProcessKey, WriteProbeOptions};
use recorded::process;
use serde_json::json;

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
        let short = WriteProbeOptions { timeout: Duration::from_secs(3), ..options(program) };
        let prober = ground.start(short);
        let port = port(&prober.figures().unwrap());
        assert_eq!(port.runs, BTreeMap::from([("timeout", 1)]), "{script}");
        assert_eq!(port.failure.unwrap().1, "it was killed after 3 s");
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
        // Before it is killed after 30 s.
        assert_eq!(after(line, "--guard-ms"), "27000");
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
fn a_driver_that_hangs_makes_it_stale_and_keeps_nobody_from_ending() {
    let ground = Ground::new();
    let state = ground.path("sys/class/infiniband/rdma0/ports/1/state");
    fs::remove_file(&state).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&state).status().unwrap().success());
    let timeout = Duration::from_secs(1);
    let options = WriteProbeOptions { timeout, ..often(ground.program("exit 3")) };
    let prober = Prober::start(Host::at(&ground.root), options).unwrap();
    let mut said = None;
    wait_for("its state", || {
        said = prober.figures().err();
        matches!(said, Some(CollectError::Stale(_)))
    });
    assert_eq!(prober.figures().err(), said, "it is told once");
    drop(prober);
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
        let before_its_report = Instant::now();
        fs::write(ground.path("go"), "").unwrap();
        prober.wait(Instant::now() + HANG);
        assert!(prober.judge(before_its_report, &[]).is_empty());
        let unseen = prober.judge(Instant::now(), if late { &rows } else { &[] });
        assert_eq!(unseen.len(), missed, "{in_time} {late}");
        assert_eq!(port(&prober.figures().unwrap()).unseen, missed as u64);
        assert!(prober.judge(Instant::now(), &[]).is_empty(), "it is judged once");
    }
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
