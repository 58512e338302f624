//! Metrics of the collector `hugepages`: what the host's memory is made of, and what of it is free.

use super::{Kind, Metric, metric};

const POOL: &[&str] = &["page_size", "numa_node"];
const SIZE: &[&str] = &["page_size"];
const CGROUP: &[&str] = &["cgroup", "page_size"];

pub static POOL_BYTES: Metric = metric(
    "mrscope_hugepages_pool_bytes",
    Kind::Gauge,
    POOL,
    "Memory of a NUMA node that hugetlbfs has as pages of this size, surplus included, used or not: nobody else can use it.",
);
pub static FREE_BYTES: Metric = metric(
    "mrscope_hugepages_free_bytes",
    Kind::Gauge,
    POOL,
    "Pages of the pool that are not in use; those reserved are among them. 0 on one node alone: touching a buffer that is bound to it is a SIGBUS, and one that is not lands on another node.",
);
pub static SURPLUS_BYTES: Metric = metric(
    "mrscope_hugepages_surplus_bytes",
    Kind::Gauge,
    POOL,
    "Pages beyond the pool's set size, got by overcommit and given back when they are freed: above 0 for long, the pool is too small.",
);
pub static RESERVED_BYTES: Metric = metric(
    "mrscope_hugepages_reserved_bytes",
    Kind::Gauge,
    SIZE,
    "Pages that were mapped and not touched yet. Free less reserved, all nodes together, is what a new mapping can have: at 0 the next one fails with ENOMEM unless overcommit helps.",
);
pub static OVERCOMMIT_LIMIT_BYTES: Metric = metric(
    "mrscope_hugepages_overcommit_limit_bytes",
    Kind::Gauge,
    SIZE,
    "How far surplus pages may go beyond the pool; 0: the pool is all there is.",
);
pub static DEFAULT_PAGE_SIZE_BYTES: Metric = metric(
    "mrscope_hugepages_default_page_size_bytes",
    Kind::Gauge,
    &[],
    "The size that a mapping gets which names none; a program that expects another size finds an empty pool.",
);
pub static ALLOCATIONS: Metric = metric(
    "mrscope_hugepages_allocations_total",
    Kind::Counter,
    &["result"],
    "Hugepages asked of the page allocator, to grow a pool or as surplus; a failure is fragmentation or want of memory. Gigantic pages (1 GiB on x86-64) are not among them.",
);
pub static CGROUP_USAGE_BYTES: Metric = metric(
    "mrscope_hugepages_cgroup_usage_bytes",
    Kind::Gauge,
    CGROUP,
    "Hugepages that a cgroup and those below it have touched; only cgroups with a limit on this size are shown, with one of 0 once it refused any.",
);
pub static CGROUP_LIMIT_BYTES: Metric = metric(
    "mrscope_hugepages_cgroup_limit_bytes",
    Kind::Gauge,
    CGROUP,
    "Limit on that (hugetlb.SIZE.max), absent if none is set: mapping more succeeds, and touching it is a SIGBUS, or EFAULT for a registration.",
);
pub static CGROUP_RESERVED_BYTES: Metric = metric(
    "mrscope_hugepages_cgroup_reserved_bytes",
    Kind::Gauge,
    CGROUP,
    "Hugepages that a cgroup and those below it have mapped, touched or not.",
);
pub static CGROUP_RESERVED_LIMIT_BYTES: Metric = metric(
    "mrscope_hugepages_cgroup_reserved_limit_bytes",
    Kind::Gauge,
    CGROUP,
    "Limit on what is mapped (hugetlb.SIZE.rsvd.max), absent if none is set: mapping more fails with ENOMEM.",
);
pub static CGROUP_FAILURES: Metric = metric(
    "mrscope_hugepages_cgroup_failures_total",
    Kind::Counter,
    CGROUP,
    "Times that a limit, on touching or on reserving, refused hugepages to this cgroup or one below it, whichever cgroup had the limit; one failure counts in the cgroup and in all above it, so never sum them.",
);
pub static CGROUPS_OMITTED: Metric = metric(
    "mrscope_hugepages_cgroups_omitted",
    Kind::Gauge,
    &[],
    "Cgroups with a limit beyond the 200 shown, which use most, and cgroups beyond the 20000 that are searched for limits; absent where cgroups can't limit hugepages.",
);
pub static THP_MODE: Metric = metric(
    "mrscope_transparent_hugepages_mode",
    Kind::Gauge,
    &["setting", "mode"],
    "1 for the mode in force of a setting of transparent hugepages, 0 for the others that this kernel knows. With enabled at never, all memory outside of hugetlbfs is pinned in pages of the base size.",
);
pub static THP_EVENTS: Metric = metric(
    "mrscope_transparent_hugepages_events_total",
    Kind::Counter,
    &["event"],
    "Page faults that got a transparent hugepage (fault) or had to do without (fallback), pages put together later (collapse) and taken apart (split): fallback beside fault tells how fragmented memory is.",
);
pub static MEMORY_TOTAL_BYTES: Metric = metric(
    "mrscope_memory_total_bytes",
    Kind::Gauge,
    &[],
    "MemTotal: memory of this host that pinned bytes take from everyone else.",
);
pub static MEMORY_AVAILABLE_BYTES: Metric = metric(
    "mrscope_memory_available_bytes",
    Kind::Gauge,
    &[],
    "MemAvailable: what can still be had without swapping; pools of hugepages are not in it, be they free or not.",
);
pub static MEMORY_HUGETLB_BYTES: Metric = metric(
    "mrscope_memory_hugetlb_bytes",
    Kind::Gauge,
    &[],
    "Hugetlb: pools of hugepages of all sizes; other tools call them used memory even while they are free.",
);
pub static MEMORY_ANON_HUGEPAGES_BYTES: Metric = metric(
    "mrscope_memory_anon_hugepages_bytes",
    Kind::Gauge,
    &[],
    "AnonHugePages: transparent hugepages of ordinary memory; MRs on them register faster too.",
);
pub static MEMORY_SHMEM_HUGEPAGES_BYTES: Metric = metric(
    "mrscope_memory_shmem_hugepages_bytes",
    Kind::Gauge,
    &[],
    "ShmemHugePages: transparent hugepages of shared memory and tmpfs.",
);
pub static MEMORY_FILE_HUGEPAGES_BYTES: Metric = metric(
    "mrscope_memory_file_hugepages_bytes",
    Kind::Gauge,
    &[],
    "FileHugePages: transparent hugepages of the page cache.",
);
pub static MEMORY_MLOCKED_BYTES: Metric = metric(
    "mrscope_memory_mlocked_bytes",
    Kind::Gauge,
    &[],
    "Mlocked: pages locked by mlock and its kin. MRs are not among them: pinned is not locked.",
);
pub static MEMORY_UNEVICTABLE_BYTES: Metric = metric(
    "mrscope_memory_unevictable_bytes",
    Kind::Gauge,
    &[],
    "Unevictable: pages that can't be reclaimed because they are locked, or of ramfs and the like; pinned pages are not told here.",
);
pub static MEMORY_PAGE_TABLES_BYTES: Metric = metric(
    "mrscope_memory_page_tables_bytes",
    Kind::Gauge,
    &[],
    "PageTables: page tables of all processes; gigabytes here mean that large mappings should be on hugepages.",
);
pub static MEMORY_SECONDARY_PAGE_TABLES_BYTES: Metric = metric(
    "mrscope_memory_secondary_page_tables_bytes",
    Kind::Gauge,
    &[],
    "SecPageTables: page tables of KVM's guests, and of IOMMUs on kernels that count those; absent before kernel 6.1.",
);
pub static MEMORY_PINS: Metric = metric(
    "mrscope_memory_pins_total",
    Kind::Counter,
    &["op"],
    "Pages (of the base size) pinned and unpinned for devices: acquired less released is what is pinned now, by RDMA, O_DIRECT, io_uring, VFIO and all others.",
);
pub static OOM_KILLS: Metric = metric(
    "mrscope_memory_oom_kills_total",
    Kind::Counter,
    &[],
    "Processes that the kernel killed for want of memory, of the host or of a cgroup: pinned memory can't be reclaimed, so others pay for it.",
);

pub static TABLE: &[&Metric] = &[
    &POOL_BYTES,
    &FREE_BYTES,
    &SURPLUS_BYTES,
    &RESERVED_BYTES,
    &OVERCOMMIT_LIMIT_BYTES,
    &DEFAULT_PAGE_SIZE_BYTES,
    &ALLOCATIONS,
    &CGROUP_USAGE_BYTES,
    &CGROUP_LIMIT_BYTES,
    &CGROUP_RESERVED_BYTES,
    &CGROUP_RESERVED_LIMIT_BYTES,
    &CGROUP_FAILURES,
    &CGROUPS_OMITTED,
    &THP_MODE,
    &THP_EVENTS,
    &MEMORY_TOTAL_BYTES,
    &MEMORY_AVAILABLE_BYTES,
    &MEMORY_HUGETLB_BYTES,
    &MEMORY_ANON_HUGEPAGES_BYTES,
    &MEMORY_SHMEM_HUGEPAGES_BYTES,
    &MEMORY_FILE_HUGEPAGES_BYTES,
    &MEMORY_MLOCKED_BYTES,
    &MEMORY_UNEVICTABLE_BYTES,
    &MEMORY_PAGE_TABLES_BYTES,
    &MEMORY_SECONDARY_PAGE_TABLES_BYTES,
    &MEMORY_PINS,
    &OOM_KILLS,
];
