//! Registrations of 4 KiB, of 1 GiB, and of as many scattered pages as a look has steps, without and
//! with that look: the caller's own time of the call.

use std::fs;

use super::rounds::Rounds;
use crate::exporter::Exporter;
use crate::workload::{Workload, number};

/// Each takes half a minute where the guest is emulated.
const ROUNDS: usize = 5;

const CONTENDERS: [(&str, bool); 2] = [("mrscope, placement.pages off", false), ("mrscope", true)];

const FIGURES: [&str; 5] = [
    "register 4 KiB, us, median",
    "register 16 MiB of 4 KiB, scattered, us, median",
    "register 1 GiB of 4 KiB, us, median",
    "register 1 GiB of 4 KiB, scattered, us, median",
    "register 1 GiB of 2 MiB, us, median",
];

const COMMANDS: [&str; 5] = [
    "pairs rounds=1000 warmup=100 size=4K",
    "pairs rounds=50 warmup=5 size=16M touch=2",
    "pairs rounds=3 warmup=1 size=1G",
    "pairs rounds=3 warmup=1 size=1G touch=2",
    "pairs rounds=9 warmup=2 size=1G pages=2m",
];

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const PAGES: u32 = 512;

pub fn run() -> Result<(), String> {
    Rounds::run(ROUNDS, &CONTENDERS, &FIGURES, |pages| measure(*pages))?.print();
    Ok(())
}

fn measure(pages: bool) -> Result<Vec<f64>, String> {
    const FILE: &str = "/run/mrscope-bench.yaml";
    let text = format!("placement: {{pages: {pages}}}\n");
    fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"))?;
    let exporter = Exporter::start(&["--config.file", FILE])?;
    let mut workload = Workload::start()?;
    let mut figures = Vec::new();
    let pool = fs::read_to_string(POOL).map_err(|error| format!("{POOL}: {error}"))?;
    for command in COMMANDS {
        let pages = if command.contains("2m") { PAGES.to_string() } else { pool.clone() };
        fs::write(POOL, pages).map_err(|error| format!("{POOL}: {error}"))?;
        figures.push(number(&workload.ask(command)?, "reg_median_ns")? / 1e3);
    }
    fs::write(POOL, pool).map_err(|error| format!("{POOL}: {error}"))?;
    workload.end()?;
    exporter.stop()?;
    Ok(figures)
}
