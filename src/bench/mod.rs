//! `mrscope bench`: what registration and writes cost on each kind of page, on each node, on this
//! host. Owns the choice of the port and of the rows, the rounds, and the words; the write probe
//! measures. Takes only what is free, and nothing is left when it ends.

mod outcome;
mod plan;
mod run;
mod table;
mod units;
mod verdict;

use std::os::fd::BorrowedFd;
use std::path::Path;

pub use outcome::Outcome;
pub use run::Progress;
pub use table::text;

use crate::host::{
    Host, HostError, MemoryReader, Port, device_names, device_node, memory_nodes, ports,
};
use crate::model::BenchOptions;
use crate::probe::call;
use plan::Facts;
use run::{Common, Ran};

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("this host has no RDMA device")]
    NoDevices,
    #[error("no RDMA device is called {name:?}, expected one of {}", known.join(", "))]
    NoSuchDevice { name: String, known: Vec<String> },
    #[error("{device} has no port {port}, expected one of {}", known.join(", "))]
    NoSuchPort { device: String, port: u8, known: Vec<String> },
    #[error("port {port} of {device} is not active")]
    PortDown { device: String, port: u8 },
    #[error("no port is active of {}", .0.join(", "))]
    NoActivePort(Vec<String>),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("{0}")]
    Probe(String),
}

/// Measures all rows that this host has. Ends its child, and then itself, as soon as `stop` can be
/// read. The calling thread is the one without which the child ends.
///
/// # Errors
/// See [`BenchError`].
pub fn run(
    host: &Host,
    program: &Path,
    options: &BenchOptions,
    stop: BorrowedFd<'_>,
    progress: impl FnMut(&Progress),
) -> Result<Outcome, BenchError> {
    let (device, port) = choose(host, options)?;
    let near = device_node(host, &device);
    let memory = MemoryReader::new(host.clone()).read();
    let facts = Facts::of(&memory, memory_nodes(host)?, near);
    let plan = plan::choose(&facts, options.mr_bytes);
    let common = Common {
        device,
        port: port.number,
        mr_bytes: options.mr_bytes,
        rounds: options.rounds,
        base_page_bytes: facts.base_page_bytes,
        parent: i32::try_from(std::process::id()).ok(),
    };
    let ask = |asked: &_, timeout| call(program, asked, timeout, stop, |_| ());
    let Ran { rows, ended } =
        run::run(&common, &plan.rows, ask, progress).map_err(BenchError::Probe)?;

    let mut notes = vec![
        "bandwidth and latency are those of the NIC to itself, not of the cable".to_owned(),
        "TLB misses are the CPU's in a walk over the MR, in random order; the NIC's are not counted"
            .to_owned(),
    ];
    if near.is_none() && facts.nodes.len() > 1 {
        let device = &common.device;
        notes.push(format!("{device} does not tell its node, so that none is near or far"));
    }
    if let Some(why) = rows.iter().find_map(|row| row.tlb_unavailable.as_ref()) {
        notes.push(format!("TLB misses were not counted: {why} (in virtual machines it is usual)"));
    }
    notes.extend(memory.troubles.iter().map(ToString::to_string));
    let complete = ended.is_none()
        && !rows.is_empty()
        && rows.iter().all(|row| row.rounds == options.rounds as usize);
    notes.extend(ended);
    Ok(Outcome {
        mrscope_version: env!("CARGO_PKG_VERSION"),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        message_bytes: common.message_bytes(),
        device: common.device,
        port: port.number,
        device_numa_node: near,
        port_rate_bytes_per_second: port.rate_bytes_per_second,
        mr_bytes: options.mr_bytes,
        rounds: options.rounds,
        complete,
        suggestions: verdict::suggest(&rows),
        rows,
        left_out: plan.left_out,
        notes,
    })
}

/// The port that was asked for, or the first active one.
fn choose(host: &Host, options: &BenchOptions) -> Result<(String, Port), BenchError> {
    let known = device_names(host)?;
    if known.is_empty() {
        return Err(BenchError::NoDevices);
    }
    if let Some(name) = &options.device
        && !known.contains(name)
    {
        return Err(BenchError::NoSuchDevice { name: name.clone(), known });
    }
    let asked: Vec<&String> = match &options.device {
        Some(name) => vec![name],
        None => known.iter().collect(),
    };
    let mut down = Vec::new();
    for device in asked {
        let ports = ports(host, device)?;
        let known: Vec<_> = ports.iter().map(|port| port.number.to_string()).collect();
        let fits = |port: &Port| options.port.is_none_or(|number| port.number == number);
        let fitting: Vec<Port> = ports.into_iter().filter(fits).collect();
        let (device, port) = (device.clone(), options.port);
        match (fitting.iter().find(|port| port.active), port) {
            (Some(port), _) => return Ok((device, port.clone())),
            (None, Some(port)) if options.device.is_some() && fitting.is_empty() => {
                return Err(BenchError::NoSuchPort { device, port, known });
            }
            (None, Some(port)) if options.device.is_some() => {
                return Err(BenchError::PortDown { device, port });
            }
            (None, _) => down.push(device),
        }
    }
    Err(BenchError::NoActivePort(down))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn asked(device: Option<&str>, port: Option<u8>) -> BenchOptions {
        BenchOptions { device: device.map(str::to_owned), port, ..BenchOptions::default() }
    }

    #[test]
    fn the_first_active_port_is_taken_or_the_one_that_is_named() {
        let root = std::env::temp_dir().join(format!("mrscope-bench-{}", std::process::id()));
        let host = Host::at(&root);
        let choose = |device, port| {
            let chosen = choose(&host, &asked(device, port));
            chosen.map(|(device, port)| (device, port.number)).map_err(|error| error.to_string())
        };
        assert_eq!(choose(None, None), Err("this host has no RDMA device".into()));
        let class = root.join("sys/class/infiniband");
        let state = |device: &str, port: u8, state: &str| {
            let folder = class.join(format!("{device}/ports/{port}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("state"), state).unwrap();
        };
        state("mlx5_0", 1, "1: DOWN\n");
        state("mlx5_1", 1, "1: DOWN\n");
        let none = "no port is active of mlx5_0, mlx5_1";
        assert_eq!(choose(None, None), Err(none.into()));
        state("mlx5_1", 2, "4: ACTIVE\n");
        assert_eq!(choose(None, None), Ok(("mlx5_1".into(), 2)));
        assert_eq!(choose(None, Some(2)), Ok(("mlx5_1".into(), 2)));
        assert_eq!(choose(Some("mlx5_1"), None), Ok(("mlx5_1".into(), 2)));
        for (device, port, why) in [
            ("mlx5_0", None, "no port is active of mlx5_0"),
            ("mlx5_0", Some(1), "port 1 of mlx5_0 is not active"),
            ("mlx5_1", Some(3), "mlx5_1 has no port 3, expected one of 1, 2"),
            ("mlx5_9", None, "no RDMA device is called \"mlx5_9\", expected one of mlx5_0, mlx5_1"),
        ] {
            assert_eq!(choose(Some(device), port), Err(why.into()));
        }
        fs::remove_dir_all(root).unwrap();
    }
}
