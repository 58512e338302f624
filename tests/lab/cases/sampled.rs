//! Where memory lies, by samples: against numa_maps and smaps of processes that were told which pages
//! to take, and on which node.

use std::fs;

use mrscope::host::{Host, Processes, Rights, Sampler};
use mrscope::model::{Place, ProcessKey};

use super::groups::Cgroup;
use super::write_probe::{kinds, largest_mapping, transparent_bytes};
use crate::cases::*;
use crate::workload::Workload;

pub const CASES: &[OnceCase] = &[(
    "samples_tell_the_size_and_the_node_of_every_kind_of_page",
    samples_tell_the_size_and_the_node_of_every_kind_of_page,
)];

/// A cgroup whose processes take memory of one node alone, for its lifetime.
fn on_node(node: u32) -> Result<Cgroup, String> {
    let write =
        |path: &str, text: &str| fs::write(path, text).map_err(|error| format!("{path}: {error}"));
    write("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset")?;
    let cgroup = Cgroup::make("sampled")?;
    write("/sys/fs/cgroup/sampled/cpuset.mems", &node.to_string())?;
    Ok(cgroup)
}

fn samples_tell_the_size_and_the_node_of_every_kind_of_page() -> Outcome {
    let host = Host::live();
    let sampler = Sampler::new(&host, Rights::in_effect().for_sampling());
    for (pages, page_bytes, node) in kinds()? {
        let cgroup = on_node(node)?;
        let mut workload = Workload::start_in(cgroup.0)?;
        let (word, bytes) = match pages {
            "base" => ("4k", 64 << 20),
            "1g" => ("1g", 1 << 30),
            other => (other, 64 << 20),
        };
        workload.ask(&format!("reg count=1 size={bytes} pages={word}"))?;
        let pid = workload.pid;
        let (address, kernel_page, nodes) = largest_mapping(pid)?;
        let thp = transparent_bytes(pid, &address)?;
        let huge = if pages == "thp" { bytes as f64 } else { 0.0 };
        equal(&format!("{pages}: bytes of transparent hugepages"), thp, huge)?;
        if pages != "thp" {
            equal(&format!("{pages}: bytes of a page"), kernel_page, page_bytes)?;
        }
        if nodes != [node] {
            return Err(format!("{pages} on node {node}: numa_maps says {nodes:?}"));
        }
        let started = Processes::of(&host).started(pid).ok_or("it does not run")?;
        let start = u64::from_str_radix(&address, 16).map_err(|error| error.to_string())?;
        let told = sampler.sample(ProcessKey::of_tick(pid, started), &[(start, bytes)]);
        let told = told.ok_or("it has ended")?;
        let places: Vec<_> = told.placements.iter().flat_map(|of| of.iter()).collect();
        let place = Place { page_bytes: Some(page_bytes as u64), node: Some(node) };
        if places != [(place, bytes)] || told.no_sizes.is_some() || told.no_nodes.is_some() {
            return Err(format!("{pages} on node {node}: {told:?}"));
        }
        println!("{pages} on node {node}: {places:?}");
        workload.end()?;
    }
    Ok(())
}
