//! What mrscope costs a registration: paired rounds in one guest, with nothing, with mrscope on
//! each rung, and with a one-line bpftrace histogram of the pin alone. Prints; judges nothing.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::cases::Mode;
use crate::exporter::{Exporter, signal, wait_for};
use crate::workload::{Workload, number};

const ROUNDS: usize = 11;
const PAIRS: &str = "pairs rounds=4000 size=4096 warmup=400";

/// What runs beside the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// p10 and median of a register + deregister pair, in nanoseconds.
type Figures = (f64, f64);

pub fn run() -> Result<(), String> {
    let mut rounds: Vec<Vec<Figures>> = Vec::new();
    for round in 0..ROUNDS {
        let mut figures = Vec::new();
        for (_, beside) in BESIDE {
            figures.push(measure(beside)?);
        }
        println!("round {}: {figures:?}", round + 1);
        rounds.push(figures);
    }
    println!("{ROUNDS} rounds; register + deregister of 4 KiB, ns; ratios are of the same round");
    println!("{:<26}{:>10}{:>10}{:>12}{:>14}", "", "p10", "median", "p10 ratio", "median ratio");
    for (index, (name, _)) in BESIDE.iter().enumerate() {
        let column = |pick: fn(&Figures) -> f64| median(rounds.iter().map(|r| pick(&r[index])));
        let ratio = |pick: fn(&Figures) -> f64| {
            median(rounds.iter().map(|r| pick(&r[index]) / pick(&r[0])))
        };
        println!(
            "{name:<26}{:>10.0}{:>10.0}{:>12.3}{:>14.3}",
            column(|f| f.0),
            column(|f| f.1),
            ratio(|f| f.0),
            ratio(|f| f.1),
        );
    }
    memory()
}

fn measure(beside: Beside) -> Result<Figures, String> {
    let mut workload = Workload::start()?;
    let mut pairs = move || {
        let reply = workload.ask(PAIRS)?;
        Ok::<_, String>((number(&reply, "pair_p10_ns")?, number(&reply, "pair_median_ns")?))
    };
    match beside {
        Beside::Nothing => pairs(),
        Beside::Mrscope(mode) => {
            let exporter = Exporter::start(mode.flags())?;
            let figures = pairs()?;
            exporter.stop()?;
            Ok(figures)
        }
        Beside::Bpftrace => {
            let mut tracer = bpftrace()?;
            let figures = pairs();
            signal(tracer.id(), "INT")?;
            tracer.wait().map_err(|error| error.to_string())?;
            figures
        }
    }
}

fn bpftrace() -> Result<Child, String> {
    const PROGRAM: &str = "kprobe:ib_umem_get { @start[tid] = nsecs; } \
        kretprobe:ib_umem_get /@start[tid]/ \
        { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }";
    let tracer = Command::new("bpftrace")
        .args(["-e", PROGRAM])
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("bpftrace: {error}"))?;
    wait_for("bpftrace's probes", || {
        let list = std::fs::read_to_string("/sys/kernel/debug/kprobes/list");
        Ok(list.map_err(|error| error.to_string())?.matches("ib_umem_get+").count() >= 2)
    })?;
    Ok(tracer)
}

/// The time of a start; resident memory and map memory after 100,000 registrations and with 10,000
/// live MRs.
fn memory() -> Result<(), String> {
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

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
