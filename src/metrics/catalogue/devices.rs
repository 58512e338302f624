//! Metrics of the collector `devices`: the RDMA devices that there are.

use super::{Kind, Metric, metric};

pub static INFO: Metric = metric(
    "mrscope_rdma_device_info",
    Kind::Gauge,
    &["device", "driver", "fw", "link_layer", "netdev", "numa_node", "pci"],
    "Always 1, for each RDMA device of this host; a label is empty where the device does not tell.",
);

pub static TABLE: &[&Metric] = &[&INFO];
