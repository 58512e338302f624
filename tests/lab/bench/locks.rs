//! A lock of one page and its end, and a system call that has to do with nothing: with nothing,
//! with mrscope on each rung, with and without figures of processes, and with bpftrace.

use std::fs;
use std::process::Command;

use super::ROUNDS;
use super::rounds::Rounds;
use super::tracer::Tracer;
use crate::exporter::Exporter;
use crate::workload::{Workload, number};

/// Pairs that are made, those of the warm-up included.
const PAIRS: f64 = 11_000.0;
const LOCK_PAIRS: &str = "lock_pairs rounds=10000 warmup=1000";
const BATCHES: &str = "batches rounds=200";

/// The same /sys, but for the types of the kernel: without them no trampoline is tried.
const SYS_WITHOUT_TYPES: &str = "/run/sys";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rung {
    Fentry,
    Kprobe,
}

impl Rung {
    fn label(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
        }
    }
}

/// What runs beside the workload.
enum Beside {
    Nothing,
    Mrscope { rung: Rung, per_process: bool },
    Bpftrace(&'static str),
}

const BESIDE: [(&str, Beside); 7] = [
    ("nothing", Beside::Nothing),
    ("mrscope, fentry", Beside::Mrscope { rung: Rung::Fentry, per_process: true }),
    ("mrscope, fentry, no processes", Beside::Mrscope { rung: Rung::Fentry, per_process: false }),
    ("bpftrace, one histogram, fentry", Beside::Bpftrace(BY_FENTRY)),
    ("mrscope, kprobe", Beside::Mrscope { rung: Rung::Kprobe, per_process: true }),
    ("mrscope, kprobe, no processes", Beside::Mrscope { rung: Rung::Kprobe, per_process: false }),
    ("bpftrace, one histogram, kprobe", Beside::Bpftrace(BY_KPROBE)),
];

const FIGURES: [&str; 4] = [
    "mlock + munlock of a page, ns, p10",
    "mlock + munlock of a page, ns, median",
    "getppid, ns, p10 of batches",
    "getppid, ns, median of batches",
];

const BY_FENTRY: &str = "kfunc:__x64_sys_mlock,kfunc:__x64_sys_munlock { @start[tid] = nsecs; } \
    kretfunc:__x64_sys_mlock,kretfunc:__x64_sys_munlock /@start[tid]/ \
    { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }";

const BY_KPROBE: &str = "kprobe:__x64_sys_mlock,kprobe:__x64_sys_munlock \
    { @start[tid] = nsecs; } \
    kretprobe:__x64_sys_mlock,kretprobe:__x64_sys_munlock /@start[tid]/ \
    { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }";

pub fn run() -> Result<(), String> {
    hide_types()?;
    Rounds::run(ROUNDS, &BESIDE, &FIGURES, measure)?.print();
    Ok(())
}

fn hide_types() -> Result<(), String> {
    fs::create_dir(SYS_WITHOUT_TYPES).map_err(|error| error.to_string())?;
    let types = format!("{SYS_WITHOUT_TYPES}/kernel/btf");
    mount(&["--rbind", "/sys", SYS_WITHOUT_TYPES])?;
    mount(&["-t", "tmpfs", "tmpfs", &types])
}

fn mount(words: &[&str]) -> Result<(), String> {
    match Command::new("mount").args(words).status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("mount {words:?}: {other:?}")),
    }
}

fn measure(beside: &Beside) -> Result<Vec<f64>, String> {
    // bpftrace's event of a kprobe is the first CPU's, and a call there costs more than elsewhere.
    let mut workload = Workload::start_by(&["taskset", "-c", "1"])?;
    match *beside {
        Beside::Nothing => times(&mut workload),
        Beside::Mrscope { rung, per_process } => {
            let exporter = start(rung, per_process)?;
            let figures = times(&mut workload)?;
            saw_all(&exporter, rung, per_process)?;
            exporter.stop()?;
            Ok(figures)
        }
        Beside::Bpftrace(program) => {
            let tracer = Tracer::start(program)?;
            let figures = times(&mut workload)?;
            let seen = tracer.end()?;
            expect("calls that bpftrace counted", seen, 2.0 * PAIRS)?;
            Ok(figures)
        }
    }
}

fn times(workload: &mut Workload) -> Result<Vec<f64>, String> {
    let pairs = workload.ask(LOCK_PAIRS)?;
    let batches = workload.ask(BATCHES)?;
    let calls = number(&batches, "calls")?;
    Ok(vec![
        number(&pairs, "pair_p10_ns")?,
        number(&pairs, "pair_median_ns")?,
        number(&batches, "batch_p10_ns")? / calls,
        number(&batches, "batch_median_ns")? / calls,
    ])
}

fn start(rung: Rung, per_process: bool) -> Result<Exporter, String> {
    const FILE: &str = "/run/mrscope-bench.yaml";
    let text = format!("mlock: {{per_process: {per_process}}}\n");
    fs::write(FILE, text).map_err(|error| error.to_string())?;
    let sys = if rung == Rung::Fentry { "/sys" } else { SYS_WITHOUT_TYPES };
    Exporter::start(&["--config.file", FILE, "--path.sysfs", sys])
}

/// That it stood where it was to stand, and did there what is held against it.
fn saw_all(exporter: &Exporter, rung: Rung, per_process: bool) -> Result<(), String> {
    let page = exporter.page()?;
    for call in ["mlock", "munlock"] {
        let series = format!(
            "mrscope_program_attached{{attach=\"{}\",program=\"mlock_{call}\"}}",
            rung.label()
        );
        expect(&series, page.or_zero(&series), 1.0)?;
        let series = format!("mrscope_mlock_duration_seconds_count{{syscall=\"{call}\"}}");
        expect(&series, page.or_zero(&series), PAIRS)?;
    }
    let calls = page.starting("mrscope_process_mlock_calls_total").map(|(_, calls)| calls).sum();
    expect("calls of processes", calls, if per_process { 2.0 * PAIRS } else { 0.0 })
}

fn expect(what: &str, value: f64, expected: f64) -> Result<(), String> {
    if value == expected { Ok(()) } else { Err(format!("{what}: {value}, expected {expected}")) }
}
