//! What a page costs: CPU time of one scrape with so many processes replayed through ledger, page
//! and encoder, at the default limit of series and without one. Prints; judges nothing.
//!
//! `cargo run --release --example bench_page`

use std::collections::HashMap;

use mrscope::collector::{CollectError, CountsTlb, Engine, EngineOptions, ListsTasks, Openers};
use mrscope::ebpf::{EventsError, KernelEvents};
use mrscope::host::Host;
use mrscope::ledger::LedgerOptions;
use mrscope::model::{
    Attach, DeviceTotals, HookState, Memory, MrKind, Pin, Placed, Process, ProcessCounters,
    ProcessGauges, ProcessKey, Snapshot, Task, Tasks, TlbFigures,
};
use mrscope::nldev::LiveResources;
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 21;

/// A kernel in which every process registers between any two readings.
struct Busy(Snapshot);

impl KernelEvents for Busy {
    fn snapshot(&mut self, _: &[String]) -> Result<Snapshot, EventsError> {
        for process in &mut self.0.processes {
            process.counters.slots[0] += 1;
            process.counters.registration_ns += 10_000;
        }
        Ok(self.0.clone())
    }

    fn pins(&mut self) -> Result<Vec<Pin>, EventsError> {
        Ok(Vec::new())
    }

    fn placements(&mut self) -> Result<Option<HashMap<u64, Placed>>, EventsError> {
        Ok(None)
    }

    fn forget(&mut self, _: &[ProcessKey]) {}

    fn hooks(&self) -> Vec<HookState> {
        ["verbs_reg_mr", "umem_get", "umem_release"]
            .map(|hook| HookState { hook, symbol: hook, attach: Attach::Kprobe, trouble: None })
            .to_vec()
    }
}

struct Listed(Tasks);

impl ListsTasks for Listed {
    fn list(&mut self) -> Result<(Tasks, HookState), CollectError> {
        let attach = Attach::Iterator;
        let hook = HookState { hook: "tasks", symbol: "iter/task", attach, trouble: None };
        Ok((self.0.clone(), hook))
    }
}

fn key(index: u32) -> ProcessKey {
    ProcessKey { tgid: 1000 + index, start_ns: u64::from(index) * 1_000_000 }
}

fn snapshot(processes: u32) -> Snapshot {
    let process = |index| Process {
        key: key(index),
        comm: "trainer".into(),
        cgroup_id: 1,
        counters: ProcessCounters::default(),
        gauges: ProcessGauges { active: 8, active_bytes: 1 << 20, largest_bytes: 1 << 17 },
        pinned_bytes: 1 << 20,
        live_pins: 8,
    };
    Snapshot {
        devices: (0..8)
            .map(|nic| DeviceTotals::idle(&format!("mlx5_{nic}"), MrKind::Host))
            .collect(),
        processes: (0..processes).map(process).collect(),
        ..Snapshot::default()
    }
}

fn tasks(processes: u32) -> Tasks {
    let memory = Memory { pinned_bytes: 1 << 20, page_table_bytes: 4096, ..Memory::default() };
    let task =
        |index| Task { key: key(index), comm: *b"trainer\0\0\0\0\0\0\0\0\0", memory: Some(memory) };
    Tasks { rows: (0..processes).map(task).collect(), exact: true, whole: true, unread: None }
}

struct Uncounted;

impl CountsTlb for Uncounted {
    fn count(&mut self, _: &[ProcessKey]) -> Result<TlbFigures, CollectError> {
        Ok(TlbFigures::default())
    }
}

/// CPU milliseconds of all threads of this process.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 * 1e-6
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("CPU of one scrape, ms, {ROUNDS} scrapes; every process registered since the last");
    println!("{:>10}{:>10}{:>10}{:>10}{:>12}", "processes", "limit", "p10", "median", "page, kB");
    for max_series in [LedgerOptions::default().max_series, usize::MAX] {
        for processes in [100, 1000, 10_000] {
            let ledger = LedgerOptions { max_series, ..LedgerOptions::default() };
            // Figures of ports and devices are few, and nothing is computed for them at a scrape.
            let off = vec!["write_probe", "resources"];
            let options = EngineOptions { ledger, off, ..EngineOptions::default() };
            let (pages, engine) = Engine::start(
                Host::live(),
                options,
                Openers {
                    events: Box::new(move |_| Ok(Box::new(Busy(snapshot(processes))))),
                    tasks: Box::new(move |_| Box::new(Listed(tasks(processes)))),
                    tlb: Box::new(|_| Box::new(Uncounted)),
                    resources: Box::new(|host| Box::new(LiveResources::of(host))),
                    write_probe: Box::new(|_| Err(std::io::ErrorKind::Unsupported.into())),
                },
            )?;
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            let everything = pages.choose(&[""; 0])?;
            let mut bytes = 0;
            let mut times = Vec::new();
            for round in 0..ROUNDS + 2 {
                let before = cpu_ms();
                bytes = runtime.block_on(pages.get(everything.clone()))?.len();
                if round >= 2 {
                    times.push(cpu_ms() - before);
                }
            }
            drop(pages);
            engine.join().map_err(|_| "the engine panicked")?;
            times.sort_by(f64::total_cmp);
            let limit =
                if max_series == usize::MAX { "none".into() } else { max_series.to_string() };
            let (p10, median) = (times[ROUNDS / 10], times[ROUNDS / 2]);
            println!("{processes:>10}{limit:>10}{p10:>10.2}{median:>10.2}{:>12}", bytes / 1000);
        }
    }
    Ok(())
}
