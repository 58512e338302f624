//! Metrics of the collector `resources`: what RDMA netlink lists, and how that agrees with what is
//! counted.

use super::{Kind, Metric, metric};

pub static IN_USE: Metric = metric(
    "mrscope_rdma_resources",
    Kind::Gauge,
    &["device", "type"],
    "Resources of a device in use, as the kernel counts them: mr, pd, qp, cq and others.",
);
pub static LIMIT: Metric = metric(
    "mrscope_rdma_resource_limit",
    Kind::Gauge,
    &["device", "type"],
    "How many resources of a type a device can have, where the kernel or the write probe tells: at the limit whoever makes one more gets ENOMEM.",
);
pub static MAX_MR_BYTES: Metric = metric(
    "mrscope_rdma_device_max_mr_bytes",
    Kind::Gauge,
    &["device"],
    "Largest MR that a device can have, as the write probe found it.",
);
pub static FOUND: Metric = metric(
    "mrscope_mr_found",
    Kind::Gauge,
    &["device"],
    "Active MRs that were registered before mrscope watched, by RDMA netlink: they are among mr_active. Neither their durations nor their kinds are known: those of GPU or device memory count as host.",
);
pub static ORPHANED: Metric = metric(
    "mrscope_mr_orphaned",
    Kind::Gauge,
    &["device"],
    "Active MRs whose process was seen to end: another process holds the device file, and nothing but its end frees them.",
);
pub static ORPHANED_BYTES: Metric = metric(
    "mrscope_mr_orphaned_bytes",
    Kind::Gauge,
    &["device"],
    "Lengths of the orphaned MRs: memory that is pinned and in no process's VmPin.",
);
pub static LEDGER_DIFFERENCE: Metric = metric(
    "mrscope_ledger_difference_bytes",
    Kind::Gauge,
    &["device", "against"],
    "What the kernel lists (nldev) or the driver counts (reg_pages) of MRs beyond what mrscope does; 0 if they agree. What changes while it is read is no difference.",
);
pub static PINNED_DIFFERENCE: Metric = metric(
    "mrscope_pinned_difference_bytes",
    Kind::Gauge,
    &[],
    "VmPin of all processes beyond what RDMA is known to have pinned for them: io_uring and others, and queues from before mrscope watched.",
);
pub static COMPARED: Metric = metric(
    "mrscope_ledger_compared_timestamp_seconds",
    Kind::Gauge,
    &["device"],
    "When the MRs of a device were last compared with the kernel's list: orphans and differences are of that time.",
);

pub static TABLE: &[&Metric] = &[
    &IN_USE,
    &LIMIT,
    &MAX_MR_BYTES,
    &FOUND,
    &ORPHANED,
    &ORPHANED_BYTES,
    &LEDGER_DIFFERENCE,
    &PINNED_DIFFERENCE,
    &COMPARED,
];
