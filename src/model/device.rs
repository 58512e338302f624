//! An RDMA device as sysfs shows it.

/// Devices that are never touched, by patterns in which * stands for any letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excluded(pub Vec<String>);

impl Excluded {
    #[must_use]
    pub fn has(&self, device: &str) -> bool {
        self.0.iter().any(|pattern| fits(pattern, device))
    }
}

impl Default for Excluded {
    /// What no device is called.
    fn default() -> Self {
        Self(vec!["none".to_owned()])
    }
}

/// Whether a pattern is the whole of a name.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.get(at..).is_some_and(|name| fits(rest, name)))
        }),
    }
}

/// A device; what it does not tell is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RdmaDevice {
    /// As in `mlx5_0`.
    pub name: String,
    /// Kernel driver of the PCI function.
    pub driver: String,
    /// Firmware version.
    pub fw: String,
    /// `InfiniBand` or `Ethernet`, of the first port.
    pub link_layer: String,
    /// Network interface of the first port.
    pub netdev: String,
    /// NUMA node of the PCI function.
    pub numa_node: String,
    /// PCI address, as in `0000:3b:00.0`.
    pub pci: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name, is_it) in [
            ("mlx5_0", "mlx5_0", true),
            ("mlx5_0", "mlx5_01", false),
            ("mlx5_*", "mlx5_bond_0", true),
            ("*", "rxe0", true),
            ("*_0", "mlx5_0", true),
            ("*_0", "mlx5_01", false),
            ("m*5*0", "mlx5_0", true),
            ("", "rxe0", false),
        ] {
            assert_eq!(fits(pattern, name), is_it, "{pattern} {name}");
        }
    }
}
