//! What one reading of the host's memory costs. Usage: bench_memory [ROOT]: a captured host, this
//! machine if not given.

use mrscope::host::{Host, MemoryReader};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 201;

/// CPU time of this thread in microseconds.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn main() {
    let root = std::env::args().nth(1).unwrap_or_else(|| "/".into());
    let mut reader = MemoryReader::new(Host::at(&root));
    let first = cpu_us();
    let memory = reader.read();
    let first = cpu_us() - first;
    let mut costs: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = cpu_us();
            std::hint::black_box(reader.read());
            cpu_us() - begun
        })
        .collect();
    costs.sort_by(f64::total_cmp);
    println!(
        "{root}: {} sizes, {} pools, {} limited cgroups shown, {} troubles",
        memory.sizes.len(),
        memory.pools.len(),
        memory.cgroups.len(),
        memory.troubles.len()
    );
    println!(
        "first reading {first:.0} us of CPU time, then {:.0} us (median of {ROUNDS})",
        costs[ROUNDS / 2]
    );
}
