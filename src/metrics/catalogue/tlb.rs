//! Metrics of the collector `tlb`: translations that a CPU had to look up.

use super::{Fold, Kind, Metric, metric, of_processes};

const BY_NODE: &[&str] = &["numa_node", "tlb", "op"];

pub static MISSES: Metric = metric(
    "mrscope_tlb_misses_total",
    Kind::Counter,
    BY_NODE,
    "Translations that the CPUs of a node did not find in their TLBs: what hugepages lessen. They are the CPUs', not the NIC's, which translates by itself.",
);
pub static ACCESSES: Metric = metric(
    "mrscope_tlb_accesses_total",
    Kind::Counter,
    BY_NODE,
    "Accesses that such misses are a part of. What counts as one is the CPU's choice, and may be second-level look-ups alone: compare hosts with the same CPU.",
);
pub static ENABLED_SECONDS: Metric = metric(
    "mrscope_tlb_enabled_seconds_total",
    Kind::Counter,
    BY_NODE,
    "Time, summed over the CPUs of a node, that misses and accesses were to be counted.",
);
pub static RUNNING_SECONDS: Metric = metric(
    "mrscope_tlb_running_seconds_total",
    Kind::Counter,
    BY_NODE,
    "Time that they were: less than enabled_seconds where others use the CPUs' counters too. Counts are scaled up by that; below a tenth they are rough.",
);
pub static EVENT_COUNTED: Metric = metric(
    "mrscope_tlb_event_counted",
    Kind::Gauge,
    &["tlb", "op", "event"],
    "0 when the CPUs have no counter for an event that was asked for, or none to be trusted: then it has no series, and the log tells why.",
);
pub static PAGE_WALKS: Metric = metric(
    "mrscope_tlb_page_walks_total",
    Kind::Counter,
    &["numa_node"],
    "Walks of the page tables that loads of a node's CPUs caused. The NIC's translations are not among them.",
);
pub static PAGE_WALK_CYCLES: Metric = metric(
    "mrscope_tlb_page_walk_cycles_total",
    Kind::Counter,
    &["numa_node"],
    "Cycles in which such a walk was under way: divided by cpu_cycles, the share of time that hugepages could win back at most.",
);
pub static CPU_CYCLES: Metric = metric(
    "mrscope_tlb_cpu_cycles_total",
    Kind::Counter,
    &["numa_node"],
    "Cycles of a node's CPUs in the same time; a CPU that sleeps has none.",
);
pub static PROCESS_MISSES: Metric = of_processes(
    "mrscope_process_tlb_misses_total",
    Kind::Counter,
    &["tlb", "op"],
    Fold::Omit,
    "TLB misses of a process that holds MRs, in user mode alone. They are the CPUs', not the NIC's.",
);
pub static PROCESS_ACCESSES: Metric = of_processes(
    "mrscope_process_tlb_accesses_total",
    Kind::Counter,
    &["tlb", "op"],
    Fold::Omit,
    "Accesses that such misses of a process are a part of; what counts as one is the CPU's choice.",
);

pub static TABLE: &[&Metric] = &[
    &MISSES,
    &ACCESSES,
    &ENABLED_SECONDS,
    &RUNNING_SECONDS,
    &EVENT_COUNTED,
    &PAGE_WALKS,
    &PAGE_WALK_CYCLES,
    &CPU_CYCLES,
    &PROCESS_MISSES,
    &PROCESS_ACCESSES,
];
