//! What watching mlock by tracepoints costs a lock of one page and its end, and a system call that
//! has to do with nothing. As root, with bpftrace; where functions can be watched, the lab's own
//! measurement tells more: `cargo test --release --test lab -- --bench mlock`.
//!
//! `cargo build --release && cargo run --release --example bench_mlock`
#![allow(unsafe_code)]

#[path = "beside/rounds.rs"]
mod rounds;
#[path = "beside/served.rs"]
mod served;
#[path = "beside/tracefs.rs"]
mod tracefs;
#[path = "beside/tracer.rs"]
mod tracer;

use std::error::Error;
use std::io::Error as SystemError;
use std::ptr::null_mut;
use std::time::Instant;

use rounds::Rounds;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use served::Served;
use tracefs::mount_tracefs;
use tracer::Tracer;

const ROUNDS: usize = 21;
const WARMUP: usize = 2000;
const PAIRS: usize = 20_000;
const BATCHES: usize = 1000;
const BATCH_CALLS: usize = 1000;

/// What runs beside the calls.
enum Beside {
    Nothing,
    Mrscope { per_process: bool },
    Bpftrace { program: &'static str, counts: bool },
}

const BESIDE: [(&str, Beside); 5] = [
    ("nothing", Beside::Nothing),
    ("mrscope", Beside::Mrscope { per_process: true }),
    ("mrscope, no processes", Beside::Mrscope { per_process: false }),
    ("bpftrace, one histogram", Beside::Bpftrace { program: HISTOGRAM, counts: true }),
    ("bpftrace, programs without content", Beside::Bpftrace { program: EMPTY, counts: false }),
];

const HISTOGRAM: &str = "tracepoint:syscalls:sys_enter_mlock,tracepoint:syscalls:sys_enter_munlock \
    { @start[tid] = nsecs; } \
    tracepoint:syscalls:sys_exit_mlock,tracepoint:syscalls:sys_exit_munlock /@start[tid]/ \
    { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }";

const EMPTY: &str = "tracepoint:syscalls:sys_enter_mlock,tracepoint:syscalls:sys_enter_munlock { } \
    tracepoint:syscalls:sys_exit_mlock,tracepoint:syscalls:sys_exit_munlock { }";

const FIGURES: [&str; 4] = [
    "mlock + munlock of a page, ns, p10",
    "mlock + munlock of a page, ns, median",
    "getppid, ns, p10 of batches",
    "getppid, ns, median of batches",
];

/// One page that is there.
struct Page(*mut libc::c_void);

const PAGE_BYTES: usize = 4096;

impl Page {
    fn new() -> Result<Self, SystemError> {
        // SAFETY: a mapping of its own; a byte of it is written so that the page is there.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            match libc::mmap(null_mut(), PAGE_BYTES, rights, flags, -1, 0) {
                libc::MAP_FAILED => Err(SystemError::last_os_error()),
                start => Ok(Self(start)),
            }
        }
    }

    /// Nanoseconds of a lock and its end.
    fn lock_pair(&self) -> Result<f64, SystemError> {
        let begun = Instant::now();
        // SAFETY: the page is mapped for as long as this lives.
        let status = unsafe { libc::mlock(self.0, PAGE_BYTES) | libc::munlock(self.0, PAGE_BYTES) };
        let ns = begun.elapsed().as_nanos() as f64;
        if status == 0 { Ok(ns) } else { Err(SystemError::last_os_error()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and nobody has it any longer.
        unsafe { libc::munmap(self.0, PAGE_BYTES) };
    }
}

/// Nanoseconds of one getppid, over a batch.
fn batch() -> f64 {
    let begun = Instant::now();
    for _ in 0..BATCH_CALLS {
        // SAFETY: reads a number.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    begun.elapsed().as_nanos() as f64 / BATCH_CALLS as f64
}

fn p10_and_median(mut times: Vec<f64>) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [times[times.len() / 10], times[times.len() / 2]]
}

fn times() -> Result<Vec<f64>, Box<dyn Error>> {
    let page = Page::new()?;
    for _ in 0..WARMUP {
        page.lock_pair()?;
    }
    let pairs = (0..PAIRS).map(|_| page.lock_pair()).collect::<Result<_, _>>()?;
    let batches = (0..BATCHES).map(|_| batch()).collect();
    Ok([p10_and_median(pairs), p10_and_median(batches)].concat())
}

fn measure(beside: &Beside) -> Result<Vec<f64>, Box<dyn Error>> {
    let calls = (2 * (WARMUP + PAIRS)) as f64;
    match beside {
        Beside::Nothing => times(),
        Beside::Mrscope { per_process } => {
            let mut served = Served::mrscope(&format!(
                "mlock: {{tracepoints: true, per_process: {per_process}}}\n"
            ))?;
            let times = times()?;
            let page = served.page("/metrics")?;
            expect("mrscope", sum(&page, "mrscope_mlock_duration_seconds_count{"), calls)?;
            let of_processes = if *per_process { calls } else { 0.0 };
            expect("processes", sum(&page, "mrscope_process_mlock_calls_total{"), of_processes)?;
            Ok(times)
        }
        Beside::Bpftrace { program, counts } => {
            let tracer = Tracer::start(program)?;
            let times = times()?;
            expect("bpftrace", tracer.end()?, if *counts { calls } else { 0.0 })?;
            Ok(times)
        }
    }
}

fn sum(page: &str, series: &str) -> f64 {
    let lines = page.lines().filter(|line| line.starts_with(series));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// Somebody else may have locked something meanwhile.
fn expect(who: &str, counted: f64, calls: f64) -> Result<(), String> {
    let right = if calls > 0.0 { counted >= calls } else { counted == 0.0 };
    if right { Ok(()) } else { Err(format!("{who} counted {counted} calls, expected {calls}")) }
}

/// bpftrace opens the perf event of a tracepoint on the first CPU, and its programs let each call
/// go on to that: there it costs a half more than on all others.
fn stay_on_last_cpu() -> Result<(), Box<dyn Error>> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).ok_or("no CPU")?;
    let mut alone = CpuSet::new();
    alone.set(last);
    Ok(sched_setaffinity(None, &alone)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    mount_tracefs()?;
    stay_on_last_cpu()?;
    Rounds::run(ROUNDS, &BESIDE, &FIGURES, measure)?.print();
    Ok(())
}
