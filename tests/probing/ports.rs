//! Ports that come, go, fail, are busy or too many.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mrscope::collector::Probes;
use mrscope::model::{DeviceLimit, Excluded, ProbeFigures, WriteProbeOptions};
use serde_json::{Value, json};

use crate::ground::*;

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
    let prober = ground.start(WriteProbeOptions { exclude: Excluded(exclude), ..options(program) });
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
    // 100 Gb/s are 12.5 GB/s, of which half is too much; the kernel counts words of 4 bytes.
    for (bytes_per_second, result) in [(25e9, "skipped_busy"), (2.5e9, "ok"), (0.0, "ok")] {
        let ground = Ground::new();
        let program = ground.answering(&report().to_string(), 0);
        ground.attribute("rdma0", "ports/1/counters/port_rcv_data", "0");
        ground.attribute("rdma0", "ports/1/counters/port_xmit_data", "0");
        let over = std::sync::atomic::AtomicBool::new(false);
        let figures = std::thread::scope(|scope| {
            scope.spawn(|| {
                let begun = Instant::now();
                while !over.load(Ordering::Relaxed) {
                    let words = (begun.elapsed().as_secs_f64() * bytes_per_second / 4.0) as u64;
                    let text = words.to_string();
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
fn after_failures_a_port_is_left_out_for_ever_longer_and_one_success_ends_that() {
    let ground = Ground::new();
    let program =
        ground.program("echo >>ran; n=$(wc -l <ran); if [ $n -le 5 ] || [ $n = 7 ]; then exit 3; else cat answer; fi");
    fs::write(ground.path("answer"), report().to_string()).unwrap();
    let prober = ground.start(often(program));
    let runs = || port(&prober.figures().unwrap()).runs;
    wait_for("three successes", || runs().get("ok").is_some_and(|ok| *ok >= 3));
    let runs = runs();
    assert_eq!(runs["garbage"], 6);
    // 1, 3, 7, and then always 15 rounds; 1 again for the first failure after a success.
    assert_eq!(runs["skipped_back_off"], 1 + 3 + 7 + 15 + 15 + 1);
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
    let timeout = Duration::from_secs(3);
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
fn a_port_that_is_down_is_not_left_out_for_what_it_failed_before() {
    let ground = Ground::new();
    let program = ground.program("if [ -e well ]; then cat answer; else exit 3; fi");
    fs::write(ground.path("answer"), report().to_string()).unwrap();
    let prober = ground.start(often(program));
    let now = || port(&prober.figures().unwrap());
    wait_for("its third failure", || now().runs.get("garbage") == Some(&3));
    ground.attribute("rdma0", "ports/1/state", "1: DOWN");
    wait_for("its end", || now().runs.contains_key("skipped_port_down"));
    let left_out = now().runs["skipped_back_off"];
    assert!(left_out < 1 + 3 + 7, "{left_out}");
    fs::write(ground.path("well"), "").unwrap();
    ground.attribute("rdma0", "ports/1/state", "4: ACTIVE");
    wait_for("its success", || now().success == Some(true));
    assert_eq!(now().runs["skipped_back_off"], left_out);
}

#[test]
fn a_device_that_failed_and_went_is_no_failure_and_starts_anew() {
    let ground = Ground::new();
    let prober = ground.start(often(ground.program("exit 3")));
    let now = || port(&prober.figures().unwrap());
    wait_for("two failures", || now().runs.get("garbage") == Some(&2));
    fs::rename(ground.path("sys/class/infiniband/rdma0"), ground.path("away")).unwrap();
    wait_for("its end", || !now().present);
    let gone = now();
    assert_eq!((gone.failure, gone.success, gone.last_run), (None, None, None));
    assert_eq!(gone.rate_bytes_per_second, None);
}

#[test]
fn a_port_that_can_t_be_read_is_told_and_hides_no_other() {
    let ground = Ground::new();
    ground.attribute("rdma0", "ports/2/rate", "100 Gb/sec (4X EDR)");
    let figures = ground.figures(ground.answering(&report().to_string(), 0));
    assert_eq!(figures.trouble, None);
    assert_eq!(port(&figures).success, Some(true));
    let second = &figures.ports[&("rdma0".to_owned(), 2)];
    assert_eq!(second.runs["skipped_unreadable"], 1);
    let (word, why) = second.failure.clone().unwrap();
    assert!(word == "skipped_unreadable" && why.contains("ports/2/state"), "{word}: {why}");
}

#[test]
fn of_devices_that_come_and_go_the_latest_are_remembered() {
    let ground = Ground::new();
    let prober = ground.start(often(ground.answering(&report().to_string(), 0)));
    let now = || prober.figures().unwrap().ports;
    for number in 0..70 {
        let device = format!("soft{number}");
        ground.device(&device, "4: RNIC");
        wait_for("its turn", || now().contains_key(&(device.clone(), 1)));
        fs::rename(ground.path("sys/class/infiniband").join(&device), ground.path("away")).unwrap();
        wait_for("its end", || !now().get(&(device.clone(), 1)).is_some_and(|port| port.present));
        fs::remove_dir_all(ground.path("away")).unwrap();
    }
    let kept = now();
    assert_eq!(kept.len(), 1 + 64);
    assert!(kept.contains_key(&("soft69".to_owned(), 1)));
    assert!(!kept.contains_key(&("soft0".to_owned(), 1)));
}

#[test]
fn many_ports_whose_round_takes_longer_than_their_interval_keep_their_figures() {
    let ground = Ground::new();
    for number in 1..8 {
        ground.device(&format!("rdma{number}"), "1: CA");
    }
    fs::write(ground.path("answer"), report().to_string()).unwrap();
    let program = ground.program("sleep 0.3; sed \"s/rdma0/$2/\" answer");
    let timeout = Duration::from_millis(600);
    let prober = ground.start(WriteProbeOptions { timeout, ..often(program) });
    let runs = |figures: &ProbeFigures| port(figures).runs.get("ok").copied();
    wait_for("three rounds", || runs(&prober.figures().unwrap()) == Some(3));
    for (name, port) in prober.figures().unwrap().ports {
        assert_eq!(port.measured.len(), 1, "{name:?}");
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
fn limits_of_a_device_are_those_of_its_newest_run_and_go_with_it() {
    let ground = Ground::new();
    let answer = |max_mr: Value, max_mr_size: Value| {
        let mut report = report();
        (report["max_mr"], report["max_mr_size"]) = (max_mr, max_mr_size);
        fs::write(ground.path("next"), report.to_string()).unwrap();
        fs::rename(ground.path("next"), ground.path("answer")).unwrap();
    };
    answer(json!(7), json!(u64::MAX));
    let prober = ground.start(often(ground.program("cat answer")));
    let now = || prober.figures().unwrap().limits;
    let limit =
        |max_mr, max_mr_size| vec![DeviceLimit { device: "rdma0".to_owned(), max_mr, max_mr_size }];
    assert_eq!(now(), limit(7, u64::MAX));
    answer(json!(9), json!(4096));
    wait_for("those of the next run", || now() == limit(9, 4096));
    answer(Value::Null, Value::Null);
    wait_for("a run that tells none", || now().is_empty());
    answer(json!(9), json!(4096));
    wait_for("their return", || now() == limit(9, 4096));
    fs::rename(ground.path("sys/class/infiniband/rdma0"), ground.path("away")).unwrap();
    wait_for("their end", || now().is_empty());
}
