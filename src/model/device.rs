//! An RDMA device as sysfs shows it.

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
