//! What a scrape costs: mrscope with all its collectors beside Debian's node exporter with those
//! that tell of memory, processes and counters of the CPU, asked in turn over HTTP as Prometheus
//! asks. As root, with prometheus-node-exporter. Usage: bench_scrape [PROCESSES]: sleeping
//! children, none if not given.
//!
//! `cargo build --release && cargo run --release --example bench_scrape -- 5000`
//!
//! In a sandbox that keeps its first process from the kernel's iterator mrscope reads /proc instead.
//! What it would take elsewhere is seen where that process is hidden from /proc too:
//! `unshare --mount sh -c 'mount -t tmpfs tmpfs /proc/1 && exec "$@"' sh COMMAND`.
#![allow(unsafe_code)]

#[path = "beside/rounds.rs"]
mod rounds;
#[path = "beside/served.rs"]
mod served;
#[path = "beside/sleepers.rs"]
mod sleepers;
#[path = "beside/tracefs.rs"]
mod tracefs;

use std::cell::RefCell;
use std::error::Error;

use rounds::Rounds;
use served::{Served, child};
use sleepers::Sleepers;
use tracefs::mount_tracefs;

const ROUNDS: usize = 21;
/// A round of one exporter, and the same where each scrape takes long.
const SCRAPES: [usize; 2] = [50, 10];
const MANY: usize = 1000;

const CONFIG: &str = "mlock: {tracepoints: true}\n";

/// Those that stand beside what mrscope tells, and nothing else.
const NODE: [&str; 6] =
    ["disable-defaults", "meminfo", "meminfo_numa", "vmstat", "processes", "perf"];

fn start_node() -> Result<Served, Box<dyn Error>> {
    let mut command = child("prometheus-node-exporter");
    command.arg("--web.listen-address=127.0.0.1:0");
    command.args(NODE.map(|collector| format!("--collector.{collector}")));
    Served::start(&mut command, "TLS is disabled")
}

/// How each collector stands, and how long it took, by the exporter's own word.
fn print_collectors(page: &str, prefix: &str) {
    let of = |figure: &str| format!("{prefix}_scrape_collector_{figure}{{collector=\"");
    for (figure, unit, scale) in [("success", "", 1.0), ("duration_seconds", " ms", 1e3)] {
        let rows = page.lines().filter_map(|line| {
            let (collector, value) = line.strip_prefix(&of(figure))?.split_once("\"} ")?;
            Some(format!("{collector} {:.3}{unit}", value.parse::<f64>().ok()? * scale))
        });
        println!("  {figure}: {}", rows.collect::<Vec<_>>().join(", "));
    }
    let series = page.lines().filter(|line| !line.starts_with('#')).count();
    println!("  {} bytes, {series} series", page.len());
    let told = |line: &&str| {
        line.contains("_collector_state{") && line.ends_with(" 1")
            || line.contains("_attached{") && line.contains("\"tasks\"")
    };
    for line in page.lines().filter(told) {
        println!("  {line}");
    }
}

/// Whether every collector gave what it has, and did so before the page was written: mrscope waits
/// half a second for a source, and answers meanwhile with what that said before.
fn was_whole(page: &str) -> Result<(), String> {
    const LATE_SECONDS: f64 = 0.5;
    for line in page.lines().filter(|line| line.contains("_scrape_collector_")) {
        let value = line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
        let failed = line.contains("_success{") && value != Some(1.0);
        let late = line.starts_with("mrscope_scrape_collector_duration_seconds{")
            && value > Some(LATE_SECONDS);
        if failed || late {
            return Err(format!("no scrape of all that is held against the other: {line}"));
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args().nth(1).map_or(Ok(0), |word| {
        word.parse().map_err(|_| format!("'{word}': expected a number of processes"))
    })?;
    let scrapes = SCRAPES[usize::from(count >= MANY)];
    mount_tracefs()?;
    let sleepers = Sleepers::start(count)?;
    let node = RefCell::new(start_node()?);
    let scope = RefCell::new(Served::mrscope(CONFIG)?);
    let host = "/metrics?collect[]=process&collect[]=hugepages&collect[]=tlb";
    let asked = [
        ("node exporter", (&node, "/metrics")),
        ("mrscope, all collectors", (&scope, "/metrics")),
        ("mrscope, process, hugepages and tlb alone", (&scope, host)),
    ];
    let figures = ["CPU of a scrape, ms"];
    let rounds = Rounds::run(ROUNDS, &asked, &figures, |(exporter, path)| {
        let mut exporter = exporter.borrow_mut();
        exporter.reconnect()?;
        for _ in 0..scrapes / 5 {
            exporter.scrape(path)?;
        }
        let begun = exporter.cpu_ms()?;
        for _ in 0..scrapes {
            exporter.scrape(path)?;
        }
        let cpu_ms = (exporter.cpu_ms()? - begun) / scrapes as f64;
        was_whole(&exporter.page("/metrics")?)?;
        Ok::<_, Box<dyn Error>>(vec![cpu_ms])
    })?;
    rounds.print();
    println!("{scrapes} scrapes a round; {} sleeping processes", sleepers.count());
    for (name, exporter, prefix) in
        [("node exporter", &node, "node"), ("mrscope", &scope, "mrscope")]
    {
        println!("{name}, one page:");
        print_collectors(&exporter.borrow_mut().page("/metrics")?, prefix);
    }
    Ok(())
}
