//! What it costs to look where memory lies, and what a whole walk by numa_maps costs. Usage:
//! bench_placement [MIB]: so much memory of this process, 1024 if not given.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use mrscope::host::{Host, Processes, Rights, Sampler};
use mrscope::model::ProcessKey;
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 201;

/// CPU time of this thread in microseconds.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn report(
    what: &str,
    rounds: usize,
    mut work: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (begun, clock) = (cpu_us(), Instant::now());
        work()?;
        cpu.push(cpu_us() - begun);
        wall.push(clock.elapsed().as_secs_f64() * 1e6);
    }
    for times in [&mut cpu, &mut wall] {
        times.sort_by(f64::total_cmp);
    }
    let (tenth, half) = (rounds / 10, rounds / 2);
    println!(
        "{what:<34} CPU us p10 {:8.1} median {:8.1}  wall us p10 {:8.1} median {:8.1}",
        cpu[tenth], cpu[half], wall[tenth], wall[half]
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mib = std::env::args().nth(1).map_or(Ok(1024), |word| {
        word.parse().map_err(|_| format!("'{word}': expected a number of MiB"))
    })?;
    let memory = vec![1u8; mib << 20];
    let range = (memory.as_ptr() as u64, memory.len() as u64);
    let host = Host::live();
    let pid = std::process::id();
    let started = Processes::of(&host).started(pid).ok_or("pids of this /proc are not its own")?;
    let key = ProcessKey::of_tick(pid, started);
    let sampler = Sampler::new(&host, Rights::in_effect().for_sampling());
    let told = sampler.sample(key, &[range]).ok_or("this process has ended")?;
    println!("{mib} MiB: {told:?}");
    report("a process with one range", ROUNDS, || {
        black_box(sampler.sample(key, &[range]));
        Ok(())
    })?;
    report("a process with 100 such ranges", ROUNDS, || {
        black_box(sampler.sample(key, &[range; 100]));
        Ok(())
    })?;
    report("numa_maps, all of the process", 11, || {
        black_box(std::fs::read("/proc/self/numa_maps")?);
        Ok(())
    })
}
