//! RDMA devices by /sys/class/infiniband. Their names are the kernel's own; an attribute is read
//! through the driver and may hang with it: never on a thread that somebody waits for.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::model::RdmaDevice;

use super::{Host, HostError};

/// More than any attribute has.
const ATTRIBUTE_BYTES: u64 = 4096;
const CLASS: &str = "class/infiniband";

/// Names of the RDMA devices, sorted; none where the kernel has no RDMA.
///
/// # Errors
/// The folder exists and can't be listed.
pub fn device_names(host: &Host) -> Result<Vec<String>, HostError> {
    let path = host.sys(CLASS);
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(HostError::Read { path, source }),
    };
    let mut names: Vec<_> = entries.flatten().map(|entry| last_part(&entry.path())).collect();
    names.sort();
    Ok(names)
}

/// Whether the kernel has RDMA now, with or without a device: not while its module is on the way out,
/// when who asks for a part that has gone already would load it again.
#[must_use]
pub fn has_rdma(host: &Host) -> bool {
    let state = std::fs::read_to_string(host.sys("module/ib_core/initstate"));
    // A part of the kernel itself has no such file.
    host.sys(CLASS).exists() && state.map_or(true, |state| state.trim() == "live")
}

/// A device of that name. An attribute that it lacks or can't read is empty.
#[must_use]
pub fn device(host: &Host, name: &str) -> RdmaDevice {
    let at = host.sys(CLASS).join(name);
    let function = at.join("device");
    let port = first_port(&at);
    let of_port = |attribute: &str| port.as_ref().map(|port| word(&port.join(attribute)));
    // -1: the firmware does not tell.
    let node = Some(word(&function.join("numa_node"))).filter(|node| node != "-1");
    RdmaDevice {
        name: name.to_owned(),
        driver: link(&function.join("driver")),
        fw: word(&at.join("fw_ver")),
        link_layer: of_port("link_layer").unwrap_or_default(),
        netdev: of_port("gid_attrs/ndevs/0").unwrap_or_default(),
        numa_node: node.unwrap_or_default(),
        pci: link(&function),
    }
}

/// Pages of the MRs of a device, as its driver counts them: mlx5's alone does. 32 bits, which wrap;
/// on-demand paging, queues and DevX are not among them. None where the driver counts nothing.
///
/// # Errors
/// The file can't be read, or is no number.
pub fn reg_pages(host: &Host, name: &str) -> Result<Option<i32>, HostError> {
    let path = host.sys(CLASS).join(name).join("reg_pages");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(HostError::Read { path, source }),
    };
    // Kernels print it signed; as unsigned it would be the same 32 bits.
    let number = text.trim().parse::<i64>().ok().filter(|n| *n <= i64::from(u32::MAX));
    let expected = || format!("{:?}, expected a number of 32 bits", text.trim());
    number.map(|number| Some(number as i32)).ok_or_else(|| HostError::Read {
        path,
        source: std::io::Error::new(ErrorKind::InvalidData, expected()),
    })
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
        let host = Host::at(&tree.0);
        assert_eq!(device_names(&host).unwrap(), ["mlx5_0", "rxe0"]);
        assert_eq!(["mlx5_0", "rxe0"].map(|name| device(&host, name)), expected);
    }

    #[test]
    fn pages_are_32_bits_which_wrap_and_what_is_no_number_says_so() {
        let tree = Tree::new("reg-pages");
        let read = |text: &str| {
            tree.file("sys/class/infiniband/mlx5_0/reg_pages", text);
            reg_pages(&Host::at(&tree.0), "mlx5_0")
        };
        assert_eq!(read("262144\n").unwrap(), Some(262_144));
        // 9 TiB.
        assert_eq!(read("-1879048192\n").unwrap(), Some(-1_879_048_192));
        assert_eq!(read("2415919104\n").unwrap(), Some(-1_879_048_192));
        let error = read("many\n").unwrap_err().to_string();
        assert!(error.contains("reg_pages") && error.contains("\"many\""), "{error}");
        assert_eq!(reg_pages(&Host::at(&tree.0), "mlx5_1").unwrap(), None);
    }

    #[test]
    fn a_kernel_without_rdma_has_no_device() {
        let none = Host::at("/nonexistent");
        assert_eq!(device_names(&none).unwrap(), Vec::<String>::new());
        assert!(!has_rdma(&none));
        let tree = Tree::new("class");
        std::fs::create_dir_all(tree.0.join("sys/class/infiniband")).unwrap();
        assert!(has_rdma(&Host::at(&tree.0)));
        for (state, has) in [("live", true), ("going", false), ("coming", false)] {
            tree.file("sys/module/ib_core/initstate", &format!("{state}\n"));
            assert_eq!(has_rdma(&Host::at(&tree.0)), has, "{state}");
        }
    }
}
