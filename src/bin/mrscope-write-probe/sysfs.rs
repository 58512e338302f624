//! The port as /sys/class/infiniband shows it. Attributes are read through the driver.

use std::ffi::OsStr;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use mrscope::host::port_rate;

use crate::gid::Gid;

/// A port of a device.
#[derive(Debug)]
pub struct Sysfs {
    device: PathBuf,
    port: PathBuf,
    /// Of the device's file, by which it is opened: it goes first when the device does.
    verbs: Option<PathBuf>,
}

impl Sysfs {
    /// Below a root, which on a live machine is `/`.
    pub fn at(root: &Path, device: &str, port: u8) -> Self {
        let device = root.join("sys/class/infiniband").join(device);
        let port = device.join("ports").join(port.to_string());
        let name = device.file_name().map(ToOwned::to_owned).unwrap_or_default();
        let entries = std::fs::read_dir(root.join("sys/class/infiniband_verbs"));
        let verbs = entries.into_iter().flatten().flatten().map(|entry| entry.path()).find(|at| {
            std::fs::read_to_string(at.join("ibdev")).is_ok_and(|of| name == *of.trim())
        });
        Self { device, port, verbs }
    }

    /// Whether it is as it was at the start.
    pub fn has_device(&self) -> bool {
        self.device.exists() && self.verbs.as_ref().is_none_or(|verbs| verbs.exists())
    }

    /// Whether its connections are made by the connection manager alone.
    pub fn is_iwarp(&self) -> bool {
        let text = std::fs::read_to_string(self.device.join("node_type"));
        text.is_ok_and(|text| text.starts_with("4:"))
    }

    /// The name of the device's file in /dev/infiniband.
    pub fn file_name(&self) -> Option<&OsStr> {
        self.verbs.as_ref()?.file_name()
    }

    /// The word for its state, as in `ACTIVE`.
    pub fn state(&self) -> Option<String> {
        let text = self.attribute("state")?;
        Some(text.split_once(':')?.1.trim().to_owned())
    }

    pub fn is_ethernet(&self) -> bool {
        self.attribute("link_layer").as_deref() == Some("Ethernet")
    }

    /// Bytes in a second that the link carries, all lanes together.
    pub fn rate(&self) -> Option<u64> {
        port_rate(&self.attribute("rate")?)
    }

    /// The GIDs that are there, by their indexes.
    pub fn gids(&self) -> Vec<Gid> {
        let entries = std::fs::read_dir(self.port.join("gids")).into_iter().flatten().flatten();
        let mut indexes: Vec<u8> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        indexes.sort_unstable();
        indexes.into_iter().filter_map(|index| self.gid(index)).collect()
    }

    /// A free row has the address zero, and a type that can't be read.
    pub fn gid(&self, index: u8) -> Option<Gid> {
        let address: Ipv6Addr = self.attribute(&format!("gids/{index}"))?.parse().ok()?;
        if address.is_unspecified() {
            return None;
        }
        let kind = self.attribute(&format!("gid_attrs/types/{index}"))?;
        Some(Gid { index, address, kind })
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.port.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }
}

/// The port's rate by what verbs say: the code of a lane's speed, and that of the lanes' number.
pub fn rate_by_codes(speed: u8, width: u8) -> Option<u64> {
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => return None,
    };
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    // Megabits.
    Some(lane * lanes * 125_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gid;
    use crate::tree::Tree;

    /// A row of the table of GIDs.
    fn set_gid(tree: &Tree, index: u8, address: &str, kind: &str) {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        tree.file(&format!("{port}/gids/{index}"), &format!("{address}\n"));
        tree.file(&format!("{port}/gid_attrs/types/{index}"), &format!("{kind}\n"));
    }

    const NONE: &str = "0000:0000:0000:0000:0000:0000:0000:0000";
    const LOCAL: &str = "fe80:0000:0000:0000:0e42:a1ff:fe01:0203";
    const V4: &str = "0000:0000:0000:0000:0000:ffff:0a09:0001";

    #[test]
    fn a_port_tells_its_state_its_rate_and_its_gids() {
        let tree = Tree::new("port");
        tree.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        tree.file("sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
        tree.file("sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n");
        set_gid(&tree, 0, LOCAL, "IB/RoCE v1");
        set_gid(&tree, 1, LOCAL, "RoCE v2");
        set_gid(&tree, 2, V4, "IB/RoCE v1");
        set_gid(&tree, 3, V4, "RoCE v2");
        set_gid(&tree, 4, NONE, "");
        // A row whose type the kernel refuses to tell, and one that was free when it was read.
        tree.file("sys/class/infiniband/mlx5_0/ports/1/gids/5", &format!("{V4}\n"));
        set_gid(&tree, 10, NONE, "RoCE v2");

        let sysfs = Sysfs::at(&tree.0, "mlx5_0", 1);
        assert!(sysfs.has_device() && sysfs.is_ethernet());
        tree.file("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
        assert!(!sysfs.is_iwarp());
        tree.file("sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n");
        assert!(sysfs.is_iwarp());
        assert_eq!(sysfs.state().as_deref(), Some("ACTIVE"));
        assert_eq!(sysfs.rate(), Some(12_500_000_000));
        let gids = sysfs.gids();
        assert_eq!(gids.iter().map(|gid| gid.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let best = gid::choose(&gids, None).unwrap();
        assert_eq!((best.index, best.address), (3, V4.parse().unwrap()));
        assert_eq!(gid::choose(&gids, Some(4)), None);
    }

    #[test]
    fn a_device_whose_file_goes_is_going() {
        let tree = Tree::new("verbs");
        tree.file("sys/class/infiniband/mlx5_0/fw_ver", "");
        tree.file("sys/class/infiniband/../infiniband_verbs/abi_version", "6\n");
        tree.file("sys/class/infiniband/../infiniband_verbs/uverbs0/ibdev", "mlx5_1\n");
        let without = Sysfs::at(&tree.0, "mlx5_0", 1);
        assert!(without.has_device() && without.file_name().is_none());
        tree.file("sys/class/infiniband/../infiniband_verbs/uverbs3/ibdev", "mlx5_0\n");
        let with = Sysfs::at(&tree.0, "mlx5_0", 1);
        assert_eq!(with.file_name(), Some(OsStr::new("uverbs3")));
        assert!(with.has_device());
        std::fs::remove_dir_all(tree.0.join("sys/class/infiniband_verbs/uverbs3")).unwrap();
        assert!(!with.has_device());
    }

    #[test]
    fn what_is_not_there_tells_nothing() {
        let tree = Tree::new("nothing");
        tree.file("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
        let other = Sysfs::at(&tree.0, "mlx5_0", 2);
        assert!(other.has_device() && !other.is_ethernet());
        assert_eq!((other.state(), other.rate(), other.gids()), (None, None, Vec::new()));
        let gone = Sysfs::at(&tree.0, "mlx5_1", 1);
        assert!(!gone.has_device());
    }

    #[test]
    fn rates_of_all_speeds_are_bytes_a_second() {
        for (text, expected) in [
            ("2.5 Gb/sec (1X SDR)", 312_500_000),
            ("56 Gb/sec (4X FDR)", 7_000_000_000),
            ("400 Gb/sec (4X NDR)", 50_000_000_000),
            ("800 Gb/sec (4X XDR)", 100_000_000_000),
        ] {
            assert_eq!(port_rate(text), Some(expected), "{text}");
        }
        for wrong in ["", "100", "x Gb/sec (4X EDR)", "-1 Gb/sec (4X)", "NaN Gb/sec (4X)"] {
            assert_eq!(port_rate(wrong), None, "{wrong}");
        }
        assert_eq!(rate_by_codes(32, 2), port_rate("100 Gb/sec (4X EDR)"));
        assert_eq!(rate_by_codes(1, 1), port_rate("2.5 Gb/sec (1X SDR)"));
        assert_eq!(rate_by_codes(128, 16), Some(25_000_000_000));
        assert_eq!((rate_by_codes(3, 1), rate_by_codes(1, 3)), (None, None));
    }
}
