//! Metrics of the collector `placement`: where registered memory lies, and how much of it is distinct.

use super::{Fold, Kind, Metric, metric, of_processes};

pub static DISTINCT: Metric = metric(
    "mrscope_pinned_distinct_bytes",
    Kind::Gauge,
    &[],
    "Memory of this host that RDMA has pinned: each page once in each process, however many MRs, queues and devices it is registered on. What alerts divide by the memory there is.",
);
pub static PROCESS_DISTINCT: Metric = of_processes(
    "mrscope_process_pinned_distinct_bytes",
    Kind::Gauge,
    &[],
    Fold::Sum,
    "The same of a process: the union of its ranges. VmPin counts a buffer on eight devices eight times, this once; memory that several processes share counts in each.",
);
pub static READ: Metric = metric(
    "mrscope_placement_read_timestamp_seconds",
    Kind::Gauge,
    &[],
    "When all live pins were last read: distinct bytes and placement are of that time.",
);

pub static PLACED: Metric = metric(
    "mrscope_mr_placed_bytes",
    Kind::Gauge,
    &["device", "page_size", "numa_node"],
    "Pinned host memory of the active MRs of a device, by the size of the pages that it lies on and their NUMA node. Transparent hugepages count as such, however they are mapped; unknown is what was not looked at.",
);
pub static PROCESS_PLACED: Metric = of_processes(
    "mrscope_process_mr_placed_bytes",
    Kind::Gauge,
    &["page_size", "numa_node"],
    Fold::Sum,
    "The same of the active MRs of a process, on all devices: a buffer on two devices counts twice.",
);
pub static SCATTER_ENTRIES: Metric = metric(
    "mrscope_mr_scatter_entries",
    Kind::Gauge,
    &["device"],
    "Pieces of memory, each in one run of physical addresses, that the active MRs of a device consist of: what its NIC has to translate, if no IOMMU joins them.",
);
pub static SCATTER_BYTES: Metric = metric(
    "mrscope_mr_scatter_bytes",
    Kind::Gauge,
    &["device"],
    "Memory of the MRs whose pieces are known: divided by them, the mean length of one. Near 4096 a NIC needs an entry for each page, and misses its translation cache.",
);
pub static PROCESS_SCATTER_ENTRIES: Metric = of_processes(
    "mrscope_process_mr_scatter_entries",
    Kind::Gauge,
    &[],
    Fold::Sum,
    "Pieces of memory that the active MRs of a process consist of.",
);
pub static PROCESS_SCATTER_BYTES: Metric = of_processes(
    "mrscope_process_mr_scatter_bytes",
    Kind::Gauge,
    &[],
    Fold::Sum,
    "Memory of a process's MRs whose pieces are known.",
);
pub static BY_METHOD: Metric = metric(
    "mrscope_mr_placement_bytes",
    Kind::Gauge,
    &["method"],
    "Pinned host memory of all active MRs by how it is known where it lies: walked from its own pages as it was registered, sampled from up to 64 of them later, or unknown.",
);

pub static LOOK_SECONDS: Metric = metric(
    "mrscope_mr_placement_seconds_total",
    Kind::Counter,
    &["device"],
    "Time that successful registrations waited for mrscope while it looked at their pages. It is in no other figure: the durations of registrations are without it.",
);

pub static TABLE: &[&Metric] = &[
    &DISTINCT,
    &PROCESS_DISTINCT,
    &PLACED,
    &PROCESS_PLACED,
    &SCATTER_ENTRIES,
    &SCATTER_BYTES,
    &PROCESS_SCATTER_ENTRIES,
    &PROCESS_SCATTER_BYTES,
    &BY_METHOD,
    &LOOK_SECONDS,
    &READ,
];
