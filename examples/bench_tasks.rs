//! What one reading of all processes costs: the iterator in the kernel, our own reader of /proc,
//! and the procfs crate's. Usage: bench_tasks [PROCESSES]: sleeping children, 2000 if not given.
#![allow(unsafe_code)]

#[path = "beside/sleepers.rs"]
mod sleepers;

use std::error::Error;

use mrscope::ebpf::TaskIterator;
use mrscope::host::{Host, read_tasks};
use rustix::time::{ClockId, clock_gettime};
use sleepers::Sleepers;

const ROUNDS: usize = 21;

/// CPU time of this thread in milliseconds.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Reads all processes; says how many it saw.
type Reader<'a> = Box<dyn FnMut() -> Result<usize, Box<dyn Error>> + 'a>;

fn by_procfs_crate() -> Result<usize, Box<dyn Error>> {
    let statuses = procfs::process::all_processes()?.map(|process| process?.status());
    Ok(statuses.filter(|status| status.as_ref().is_ok_and(|it| it.vmpin.is_some())).count())
}

fn main() -> Result<(), Box<dyn Error>> {
    let count = std::env::args().nth(1).map_or(Ok(2000), |word| {
        word.parse().map_err(|_| format!("'{word}': expected a number of processes"))
    })?;
    let sleepers = Sleepers::start(count)?;
    let host = Host::live();
    let mut iterator = TaskIterator::start(&host)?;
    let mut readers: [(&str, Reader, Vec<f64>); 3] = [
        ("iterator", Box::new(|| Ok(iterator.read()?.rows.len())), Vec::new()),
        ("proc", Box::new(|| Ok(read_tasks(&host)?.rows.len())), Vec::new()),
        ("procfs crate", Box::new(by_procfs_crate), Vec::new()),
    ];
    for _ in 0..ROUNDS {
        for (name, read, times) in &mut readers {
            let begun = cpu_ms();
            let seen = read()?;
            times.push(cpu_ms() - begun);
            if seen < sleepers.count() {
                return Err(format!("{name} saw {seen} processes, expected {count}").into());
            }
        }
    }
    println!("{count} sleeping processes, {ROUNDS} rounds, CPU ms of one reading");
    let mut least = None;
    for (name, _, times) in &mut readers {
        times.sort_by(f64::total_cmp);
        let (p10, median) = (times[ROUNDS / 10], times[ROUNDS / 2]);
        let least = *least.get_or_insert(p10);
        println!("{name:<13} p10 {p10:8.2}  median {median:8.2}  {:6.1} x iterator", p10 / least);
    }
    Ok(())
}
