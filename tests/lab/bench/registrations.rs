//! A registration and its end: with nothing, with mrscope on each rung, and with a one-line
//! bpftrace histogram of the pin alone. And what mrscope takes for itself.

use std::time::Instant;

use super::ROUNDS;
use super::rounds::Rounds;
use super::tracer::Tracer;
use crate::cases::Mode;
use crate::exporter::Exporter;
use crate::workload::{Workload, number};

const PAIRS: &str = "pairs rounds=4000 size=4096 warmup=400";

/// What runs beside the workload.
enum Beside {
    Nothing,
    Mrscope(Mode),
    Bpftrace,
}

const BESIDE: [(&str, Beside); 4] = [
    ("nothing", Beside::Nothing),
    ("mrscope, kprobe", Beside::Mrscope(Mode::Auto)),
    ("mrscope, fentry", Beside::Mrscope(Mode::Fentry)),
    ("bpftrace, one histogram", Beside::Bpftrace),
];

const FIGURES: [&str; 2] =
    ["register + deregister of 4 KiB, ns, p10", "register + deregister of 4 KiB, ns, median"];

const PROGRAM: &str = "kprobe:ib_umem_get { @start[tid] = nsecs; } \
    kretprobe:ib_umem_get /@start[tid]/ \
    { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }";

pub fn run() -> Result<(), String> {
    Rounds::run(ROUNDS, &BESIDE, &FIGURES, measure)?.print();
    Ok(())
}

/// p10 and median of a pair.
pub fn pairs(workload: &mut Workload) -> Result<Vec<f64>, String> {
    let reply = workload.ask(PAIRS)?;
    Ok(vec![number(&reply, "pair_p10_ns")?, number(&reply, "pair_median_ns")?])
}

fn measure(beside: &Beside) -> Result<Vec<f64>, String> {
    let mut workload = Workload::start()?;
    match beside {
        Beside::Nothing => pairs(&mut workload),
        Beside::Mrscope(mode) => {
            let exporter = Exporter::start(mode.flags())?;
            let figures = pairs(&mut workload)?;
            exporter.stop()?;
            Ok(figures)
        }
        Beside::Bpftrace => {
            let tracer = Tracer::start(PROGRAM)?;
            let figures = pairs(&mut workload)?;
            tracer.end()?;
            Ok(figures)
        }
    }
}

/// The time of a start; resident memory and map memory after 100,000 registrations and with 10,000
/// live MRs.
pub fn memory() -> Result<(), String> {
    let begun = Instant::now();
    let exporter = Exporter::start(&[])?;
    println!("start to ready, all programs attached: {} ms", begun.elapsed().as_millis());
    let mut workload = Workload::start()?;
    workload.ask("churn threads=8 rounds=12500 size=8192")?;
    workload.ask("reg count=10000 size=4096")?;
    let page = exporter.page()?;
    let maps: f64 = page.starting("mrscope_map_memory_bytes").map(|(_, bytes)| bytes).sum();
    let status = std::fs::read_to_string(format!("/proc/{}/status", exporter.pid()))
        .map_err(|error| error.to_string())?;
    let resident = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("VmRSS: ?");
    println!("after 100,000 registrations, 10,000 live: {resident}; maps {maps} bytes");
    workload.end()?;
    exporter.stop().map(|_| ())
}
