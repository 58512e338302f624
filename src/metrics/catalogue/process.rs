//! Metrics of the collector `process`: what the memory of each process costs the host.

use super::{Fold, Kind, Metric, of_processes};

pub static PINNED_BYTES: Metric = of_processes(
    "mrscope_process_pinned_bytes",
    Kind::Gauge,
    &[],
    Fold::Sum,
    "VmPin: memory that RDMA, io_uring and others pinned for a process; a page in several MRs counts in each, so the sum may exceed the memory there is.",
);
pub static LOCKED_BYTES: Metric = of_processes(
    "mrscope_process_locked_bytes",
    Kind::Gauge,
    &[],
    Fold::Sum,
    "VmLck: memory locked by mlock and its kin, or by VFIO; registering an MR does not lock. Never add it to pinned bytes: a page may be in both.",
);
pub static HUGETLB_BYTES: Metric = of_processes(
    "mrscope_process_hugetlb_bytes",
    Kind::Gauge,
    &[],
    Fold::Sum,
    "Hugepages of hugetlbfs that a process has mapped and touched; transparent hugepages are not among them.",
);
pub static PAGE_TABLE_BYTES: Metric = of_processes(
    "mrscope_process_page_table_bytes",
    Kind::Gauge,
    &[],
    Fold::Sum,
    "Page tables of a process: 2 MiB for each GiB mapped with 4 KiB pages, next to nothing with hugepages.",
);
pub static MEMLOCK_LIMIT_BYTES: Metric = of_processes(
    "mrscope_process_memlock_limit_bytes",
    Kind::Gauge,
    &[],
    Fold::Min,
    "RLIMIT_MEMLOCK of a process, +Inf for none: what it pins and what it locks are each held against it, unless it has CAP_IPC_LOCK.",
);
pub static MEMLOCK_EXEMPT: Metric = of_processes(
    "mrscope_process_memlock_exempt",
    Kind::Gauge,
    &[],
    Fold::Min,
    "1 if a process has CAP_IPC_LOCK in the initial user namespace, so that no limit holds for what it pins and locks; in a group 1 if that is so of all.",
);
pub static MLOCKALL_FUTURE: Metric = of_processes(
    "mrscope_process_mlockall_future",
    Kind::Gauge,
    &[],
    Fold::Max,
    "1 if a process locks all memory that it maps from now on (mlockall with MCL_FUTURE): its next large mapping may fail or take all memory.",
);
pub static START_TIME_SECONDS: Metric = of_processes(
    "mrscope_process_start_time_seconds",
    Kind::Gauge,
    &[],
    Fold::Omit,
    "When a process started, in seconds since the epoch: a change at the same pid is another process.",
);
pub static INFO: Metric = of_processes(
    "mrscope_process_info",
    Kind::Gauge,
    &[
        "comm",
        "exe",
        "cgroup",
        "container_id",
        "pod_uid",
        "slurm_job",
        "slurm_step",
        "systemd_unit",
    ],
    Fold::Omit,
    "1, with who a process is, read when its series begins and again when its name changes, as exec does it; an exec of the same name is not noticed. Empty is what nothing tells, as exe without CAP_SYS_PTRACE or where pids are not the host's.",
);

pub static TABLE: &[&Metric] = &[
    &PINNED_BYTES,
    &LOCKED_BYTES,
    &HUGETLB_BYTES,
    &PAGE_TABLE_BYTES,
    &MEMLOCK_LIMIT_BYTES,
    &MEMLOCK_EXEMPT,
    &MLOCKALL_FUTURE,
    &START_TIME_SECONDS,
    &INFO,
];
