//! Ports of an RDMA device as sysfs shows them: up or down, how fast, and how much went through.

use super::cpus::list;
use super::{Host, HostError};

/// One port. What the device does not tell is None.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Port {
    pub number: u8,
    pub active: bool,
    pub rate_bytes_per_second: Option<u64>,
    /// Sent and received since some time; software devices do not tell.
    pub moved_bytes: Option<u64>,
}

/// Ports of a device, by number.
///
/// # Errors
/// The folder of ports can't be listed, or the state of one can't be read.
pub fn ports(host: &Host, device: &str) -> Result<Vec<Port>, HostError> {
    port_numbers(host, device)?.into_iter().map(|number| port(host, device, number)).collect()
}

/// One port of a device.
///
/// # Errors
/// Its state can't be read.
pub fn port(host: &Host, device: &str, number: u8) -> Result<Port, HostError> {
    const ACTIVE: &str = "4:";
    let folder = format!("{}/{number}", folder(device));
    let state = host.sys_text(format!("{folder}/state"))?;
    let rate = host.sys_text(format!("{folder}/rate")).ok();
    // The kernel counts words of 4 bytes.
    let words = |name| -> Option<u64> {
        let text = host.sys_text(format!("{folder}/counters/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let moved = words("port_xmit_data").zip(words("port_rcv_data"));
    Ok(Port {
        number,
        active: state.starts_with(ACTIVE),
        rate_bytes_per_second: rate.and_then(|rate| port_rate(&rate)),
        moved_bytes: moved.map(|(sent, received)| sent.wrapping_add(received).wrapping_mul(4)),
    })
}

/// Numbers of a device's ports, in order. Asks nothing of its driver.
///
/// # Errors
/// The folder of ports can't be listed.
pub fn port_numbers(host: &Host, device: &str) -> Result<Vec<u8>, HostError> {
    let path = host.sys(folder(device));
    let fail = |source| HostError::Read { path: path.clone(), source };
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(&path).map_err(fail)? {
        numbers.extend(
            entry.map_err(fail)?.file_name().to_str().and_then(|name| name.parse::<u8>().ok()),
        );
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Whether a device has queue pairs that connect without a connection manager: those of iWARP do
/// not, and others have none of the kind.
#[must_use]
pub fn has_queue_pairs(host: &Host, device: &str) -> bool {
    /// RDMA_NODE_IB_CA, as which RoCE devices show themselves too.
    const ADAPTER: &str = "1:";
    let kind = host.sys_text(format!("class/infiniband/{device}/node_type"));
    kind.map_or(true, |kind| kind.starts_with(ADAPTER))
}

fn folder(device: &str) -> String {
    format!("class/infiniband/{device}/ports")
}

/// NUMA node of the device's PCI function, where it has one with memory.
#[must_use]
pub fn device_node(host: &Host, device: &str) -> Option<u32> {
    let node = host.sys_text(format!("class/infiniband/{device}/device/numa_node")).ok()?;
    let node = node.trim().parse().ok()?;
    let with_memory = list(host, "devices/system/node/has_memory");
    with_memory.map_or(true, |nodes| nodes.contains(&node)).then_some(node)
}

/// Bytes in a second that a link carries, all lanes together, by the kernel's words for it, as in
/// `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`.
#[must_use]
pub fn port_rate(text: &str) -> Option<u64> {
    let gigabits: f64 = text.trim().strip_suffix(')')?.split_once(" Gb/sec (")?.0.parse().ok()?;
    (gigabits > 0.0 && gigabits < 1e6).then(|| (gigabits * 125e6).round() as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn rates_are_gigabits() {
        assert_eq!(port_rate("100 Gb/sec (4X EDR)\n"), Some(12_500_000_000));
        assert_eq!(port_rate("2.5 Gb/sec (1X SDR)\n"), Some(312_500_000));
        for text in
            ["", "fast", "-1 Gb/sec (4X)", "0 Gb/sec (4X)", "NaN Gb/sec (4X)", "1 Mb/sec (4X)"]
        {
            assert_eq!(port_rate(text), None, "{text}");
        }
    }

    #[test]
    fn a_port_shows_its_state_rate_and_traffic() {
        let root = std::env::temp_dir().join(format!("mrscope-ports-{}", std::process::id()));
        let device = root.join("sys/class/infiniband/mlx5_0");
        for (number, state) in [(1, "4: ACTIVE\n"), (2, "1: DOWN\n")] {
            let port = device.join(format!("ports/{number}"));
            fs::create_dir_all(port.join("counters")).unwrap();
            fs::write(port.join("state"), state).unwrap();
            fs::write(port.join("rate"), "200 Gb/sec (4X HDR)\n").unwrap();
        }
        let counters = device.join("ports/1/counters");
        fs::write(counters.join("port_xmit_data"), "1000\n").unwrap();
        fs::write(counters.join("port_rcv_data"), "24\n").unwrap();
        fs::create_dir_all(device.join("device")).unwrap();
        fs::write(device.join("device/numa_node"), "1\n").unwrap();
        let host = Host::at(&root);
        let rate = Some(25_000_000_000);
        assert_eq!(
            ports(&host, "mlx5_0").unwrap(),
            [
                Port {
                    number: 1,
                    active: true,
                    rate_bytes_per_second: rate,
                    moved_bytes: Some(4096)
                },
                Port { number: 2, active: false, rate_bytes_per_second: rate, moved_bytes: None },
            ]
        );
        assert_eq!(device_node(&host, "mlx5_0"), Some(1));
        fs::create_dir_all(root.join("sys/devices/system/node")).unwrap();
        for (nodes, node) in [("0,2-3\n", None), ("0-1\n", Some(1))] {
            fs::write(root.join("sys/devices/system/node/has_memory"), nodes).unwrap();
            assert_eq!(device_node(&host, "mlx5_0"), node);
        }
        fs::write(device.join("device/numa_node"), "-1\n").unwrap();
        assert_eq!(device_node(&host, "mlx5_0"), None);
        assert!(ports(&host, "mlx5_9").is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
