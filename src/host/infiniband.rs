//! RDMA devices by /sys/class/infiniband. A read may hang with its driver: never on a thread that
//! somebody waits for.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::model::RdmaDevice;

use super::{Host, HostError};

/// More than any attribute has.
const ATTRIBUTE_BYTES: u64 = 4096;

/// The RDMA devices, sorted by name; none where the kernel has no RDMA. An attribute that a device
/// lacks or can't read is empty.
///
/// # Errors
/// The folder exists and can't be listed.
pub fn devices(host: &Host) -> Result<Vec<RdmaDevice>, HostError> {
    let path = host.sys("class/infiniband");
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(HostError::Read { path, source }),
    };
    let mut devices: Vec<_> = entries.flatten().map(|entry| device(&entry.path())).collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(devices)
}

fn device(at: &Path) -> RdmaDevice {
    let function = at.join("device");
    let port = first_port(at);
    let of_port = |attribute: &str| port.as_ref().map(|port| word(&port.join(attribute)));
    RdmaDevice {
        name: last_part(at),
        driver: link(&function.join("driver")),
        fw: word(&at.join("fw_ver")),
        link_layer: of_port("link_layer").unwrap_or_default(),
        netdev: of_port("gid_attrs/ndevs/0").unwrap_or_default(),
        // -1: the firmware does not tell.
        numa_node: Some(word(&function.join("numa_node")))
            .filter(|n| n != "-1")
            .unwrap_or_default(),
        pci: link(&function),
    }
}

fn first_port(at: &Path) -> Option<PathBuf> {
    let ports = std::fs::read_dir(at.join("ports")).ok()?;
    ports
        .flatten()
        .filter_map(|port| Some((last_part(&port.path()).parse::<u32>().ok()?, port.path())))
        .min()
        .map(|(_, path)| path)
}

/// The attribute's text; empty if it can't be read.
fn word(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(ATTRIBUTE_BYTES).read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Name of what a symbolic link leads to; empty if there is none.
fn link(path: &Path) -> String {
    std::fs::read_link(path).map(|target| last_part(&target)).unwrap_or_default()
}

fn last_part(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let at = std::env::temp_dir().join(format!("mrscope-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&at);
            Self(at)
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_device_tells_what_it_has_and_the_rest_is_empty() {
        let tree = Tree::new("devices");
        tree.file("sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n");
        tree.file("sys/class/infiniband/mlx5_0/fw_ver", "22.39.1002\n");
        tree.file("sys/class/infiniband/mlx5_0/ports/2/link_layer", "Ethernet\n");
        tree.file("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
        tree.file("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "ib0\n");
        tree.file("sys/devices/pci0000:3a/0000:3b:00.0/numa_node", "-1\n");
        let at = |path: &str| tree.0.join(path);
        std::fs::create_dir_all(at("sys/bus/pci/drivers/mlx5_core")).unwrap();
        symlink(
            at("sys/bus/pci/drivers/mlx5_core"),
            at("sys/devices/pci0000:3a/0000:3b:00.0/driver"),
        )
        .unwrap();
        symlink(
            at("sys/devices/pci0000:3a/0000:3b:00.0"),
            at("sys/class/infiniband/mlx5_0/device"),
        )
        .unwrap();
        let expected = [
            RdmaDevice {
                name: "mlx5_0".into(),
                driver: "mlx5_core".into(),
                fw: "22.39.1002".into(),
                link_layer: "InfiniBand".into(),
                netdev: "ib0".into(),
                numa_node: String::new(),
                pci: "0000:3b:00.0".into(),
            },
            RdmaDevice {
                name: "rxe0".into(),
                link_layer: "Ethernet".into(),
                ..RdmaDevice::default()
            },
        ];
        assert_eq!(devices(&Host::at(&tree.0)).unwrap(), expected);
    }

    #[test]
    fn a_kernel_without_rdma_has_no_device() {
        assert_eq!(devices(&Host::at("/nonexistent")).unwrap(), []);
    }
}
