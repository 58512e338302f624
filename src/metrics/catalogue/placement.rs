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

pub static TABLE: &[&Metric] = &[&DISTINCT, &PROCESS_DISTINCT, &READ];
