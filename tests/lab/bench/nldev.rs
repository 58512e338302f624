//! What listing the MRs of one process costs, beside iproute2's `rdma`: both walk the same table in
//! the kernel, which counts its way from the beginning for each part.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mrscope::host::{Host, Processes};
use mrscope::nldev::{Budget, Dump, End, Netlink, NldevError, owners};

use super::ROUNDS;
use super::rounds::Rounds;
use crate::workload::Workload;

/// So many more are registered each time.
const STEPS: [u32; 3] = [100, 900, 9_000];
const FIGURES: [&str; 3] = ["of 100 MRs, ms", "of 1,000 MRs, ms", "of 10,000 MRs, ms"];
/// Once, as their registration takes a while.
const MANY: u32 = 100_000;
/// For a guest that is emulated.
const BUDGET: Budget = Budget { bytes: 64 << 20, time: Duration::from_mins(1) };

enum Reader {
    Iproute2,
    Dump,
    Owners,
}

const READERS: [(&str, Reader); 3] = [
    ("rdma resource show mr", Reader::Iproute2),
    ("mrscope, MRs", Reader::Dump),
    ("mrscope, MRs and their owners", Reader::Owners),
];

pub fn run() -> Result<(), String> {
    Rounds::run(ROUNDS, &READERS, &FIGURES, measure)?.print();
    let mut workload = Workload::start()?;
    workload.ask(&format!("reg count={MANY} size=4096"))?;
    for (name, reader) in &READERS {
        println!("{name:<44}{:>12.1} ms, once, of {MANY} MRs", read(reader, MANY)?);
    }
    let mut netlink = open()?;
    let dump = netlink.memory_regions(0, &BUDGET).map_err(|error| error.to_string())?;
    println!("{} bytes in {} datagrams", dump.bytes, dump.datagrams);
    workload.end()
}

fn measure(reader: &Reader) -> Result<Vec<f64>, String> {
    let mut workload = Workload::start()?;
    let mut all = 0;
    let figures = STEPS.map(|more| {
        workload.ask(&format!("reg count={more} size=4096"))?;
        all += more;
        read(reader, all)
    });
    workload.end()?;
    figures.into_iter().collect()
}

fn open() -> Result<Netlink, String> {
    let netlink = Netlink::open(&Host::live()).map_err(|error| error.to_string())?;
    let mut netlink = netlink.ok_or("no RDMA in this kernel")?;
    // Parts grow with the room of what was read before, as they do for whoever reads again.
    whole(netlink.devices(&Budget::default()), 1)?;
    Ok(netlink)
}

/// Milliseconds of one reading, which has to be whole.
fn read(reader: &Reader, count: u32) -> Result<f64, String> {
    let mut netlink = open()?;
    let begun = Instant::now();
    match reader {
        Reader::Iproute2 => {
            let words = ["resource", "show", "mr"];
            let status = Command::new("rdma").args(words).stdout(Stdio::null()).status();
            if !status.map_err(|error| format!("rdma: {error}"))?.success() {
                return Err("rdma failed".to_owned());
            }
        }
        Reader::Dump => {
            whole(netlink.memory_regions(0, &BUDGET), count)?;
        }
        Reader::Owners => {
            let budget = Budget::default();
            let mrs = whole(netlink.memory_regions(0, &BUDGET), count)?;
            let pds = whole(netlink.protection_domains(0, &budget), 2)?;
            let contexts = netlink.contexts(0, &budget).map_err(|error| error.to_string())?;
            let contexts = contexts.map_or(Ok(Vec::new()), |dump| whole(Ok(dump), 1))?;
            let host = Host::live();
            let processes = Processes::of(&host);
            let owners = owners(&mrs, &pds, &contexts, |tid| processes.of_thread(tid));
            if owners.len() != mrs.len() {
                return Err("an MR without a verdict".to_owned());
            }
        }
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

fn whole<T>(dump: Result<Dump<T>, NldevError>, count: u32) -> Result<Vec<T>, String> {
    let dump = dump.map_err(|error| error.to_string())?;
    if dump.end == End::Whole && dump.entries.len() == count as usize {
        Ok(dump.entries)
    } else {
        Err(format!("{} entries, expected {count}; {:?}", dump.entries.len(), dump.end))
    }
}
