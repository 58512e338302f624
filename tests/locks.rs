//! Calls that lock memory on this machine's own kernel, by tracepoints where nothing else is to be
//! had, against what this process itself locked and how long that took it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::float_cmp)]

mod common;

use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use common::Served;
use rustix::io::Errno;
use rustix::mm::{
    MapFlags, MlockAllFlags, MlockFlags, ProtFlags, mlock, mlock_with, mlockall, mmap_anonymous,
    munlock, munlockall, munmap,
};

const MIB: usize = 1 << 20;
const SYSCALLS: [&str; 5] = ["mlock", "mlock2", "mlockall", "munlock", "munlockall"];

/// A mrscope that has a tracefs where tracepoints are looked for, in a mount namespace of its own.
fn served(test: &str, config: &str) -> Served {
    let name = format!("mrscope-locks-{}-{test}.yaml", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, config).unwrap();
    let script = "mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
                  exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script, "sh", env!("CARGO_BIN_EXE_mrscope")]);
    command.args(["--web.listen-address", "127.0.0.1:0", "--config.file"]).arg(&file);
    let served = Served::spawn(command, 1);
    std::fs::remove_file(file).unwrap();
    served
}

fn value(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(line.parse().unwrap())
}

/// A counter of this process.
fn own(page: &str, metric: &str) -> f64 {
    let pid = std::process::id();
    let of_us = |line: &&str| line.contains(&format!("pid=\"{pid}\"")) && line.starts_with(metric);
    let line = page.lines().find(of_us);
    line.map_or(0.0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

#[test]
#[allow(unsafe_code)]
fn what_a_process_locks_is_counted_to_the_call() {
    let served = served("exact", "mlock: {tracepoints: true}\n");
    let page = || served.get("/metrics").1;
    let state = "mrscope_collector_state{collector=\"mlock\",state=\"ok\"} 1\n";
    assert!(page().contains(state), "{}", page());

    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, which is used here alone and unmapped at the end.
    let at = unsafe { mmap_anonymous(null_mut(), 4 * MIB, rights, MapFlags::PRIVATE) }.unwrap();
    // SAFETY: as above. What is held gives this process its series.
    unsafe { mlock(at, 1) }.unwrap();
    let before = page();
    let begun = Instant::now();
    // SAFETY: as above; the last two ranges are nobody's.
    unsafe {
        mlock(at, 3 * MIB).unwrap();
        mlock_with(at, 5000, MlockFlags::ONFAULT).unwrap();
        mlockall(MlockAllFlags::CURRENT).unwrap();
        munlock(at, MIB).unwrap();
        munlockall().unwrap();
        mlock(at, 2 * MIB).unwrap();
        assert_eq!(mlock(null_mut(), 4096), Err(Errno::NOMEM));
        assert_eq!(munlock(null_mut(), 4096), Err(Errno::NOMEM));
    }
    let took = begun.elapsed();
    let after = page();

    let moved = |series: &str| {
        value(&after, series).unwrap_or_else(|| panic!("{series} is absent"))
            - value(&before, series).unwrap()
    };
    // Others may lock too: of the host it is at least that much.
    for (syscall, calls) in SYSCALLS.into_iter().zip([2.0, 1.0, 1.0, 1.0, 1.0]) {
        let of = |metric: &str| moved(&format!("mrscope_mlock_{metric}{{syscall=\"{syscall}\"}}"));
        assert!(of("duration_seconds_count") >= calls, "{syscall}");
        assert!(of("duration_seconds_sum") > 0.0, "{syscall}");
    }
    let bytes = moved("mrscope_mlock_bytes_total{syscall=\"mlock\"}");
    assert!(bytes >= 5.0 * MIB as f64, "{bytes}");
    assert!(moved("mrscope_mlock_bytes_total{syscall=\"mlock2\"}") >= 5000.0);
    for syscall in ["mlock", "munlock"] {
        let failed =
            format!("mrscope_mlock_failures_total{{errno=\"ENOMEM\",syscall=\"{syscall}\"}}");
        assert!(moved(&failed) >= 1.0);
    }
    // Of this process it is exactly that.
    let calls = "mrscope_process_mlock_calls_total{";
    assert_eq!(own(&after, calls) - own(&before, calls), 6.0);
    let seconds = "mrscope_process_mlock_seconds_total{";
    let seconds = own(&after, seconds) - own(&before, seconds);
    assert!(seconds > 0.0 && Duration::from_secs_f64(seconds) <= took, "{seconds}");
    assert_eq!(own(&after, "mrscope_process_locked_bytes{"), 2.0 * MIB as f64);

    // SAFETY: nothing uses it any more.
    unsafe { munmap(at, 4 * MIB) }.unwrap();
    let unmapped = page();
    assert_eq!(own(&unmapped, "mrscope_process_locked_bytes{"), 0.0);
    assert_eq!(own(&unmapped, calls), own(&after, calls), "nobody called to unlock it");
}

#[test]
fn figures_of_single_processes_can_be_left_out() {
    let served = served("host", "mlock: {tracepoints: true, per_process: false}\n");
    let (_, page) = served.get("/metrics");
    assert!(page.contains("mrscope_mlock_duration_seconds_count{syscall=\"mlock\"}"), "{page}");
    assert!(!page.contains("mrscope_process_mlock_"), "{page}");
}

/// Where the functions themselves can be watched, as on most kernels, that is how; nothing else
/// falls back on what slows down every system call.
#[test]
fn without_being_asked_it_uses_no_tracepoint() {
    let served = served("usual", "mlock: {enabled: true}\n");
    let (_, page) = served.get("/metrics");
    assert!(!page.contains("attach=\"tracepoint\""), "{page}");
    let watched = ["fentry", "kprobe"].iter().any(|attach| {
        page.contains(&format!(
            "mrscope_program_attached{{attach=\"{attach}\",program=\"mlock_mlock\"}} 1\n"
        ))
    });
    let ok = page.contains("mrscope_collector_state{collector=\"mlock\",state=\"ok\"} 1\n");
    assert_eq!(watched, ok, "{page}");
    // What is not watched has no zeros.
    assert_eq!(watched, page.contains("mrscope_mlock_duration_seconds_count{"), "{page}");
}
