//! Metrics of the collector `exporter`: what mrscope sees, what it can't, and what it lost.

use super::{Kind, Metric, metric};

pub static COLLECTOR_SUCCESS: Metric = metric(
    "mrscope_scrape_collector_success",
    Kind::Gauge,
    &["collector"],
    "0 when a collector failed or was denied; 1 also when the kernel lacks what it reads.",
);
pub static COLLECTOR_SECONDS: Metric = metric(
    "mrscope_scrape_collector_duration_seconds",
    Kind::Gauge,
    &["collector"],
    "Time that a collector took for this page, the reading of its source included; sources are read at the same time.",
);
pub static COLLECTOR_STATE: Metric = metric(
    "mrscope_collector_state",
    Kind::Gauge,
    &["collector", "state"],
    "1 for the state that a collector is in: ok, off, no_data, unsupported, denied, failed or stale; the log tells why, and what helps.",
);
pub static PROGRAM_ATTACHED: Metric = metric(
    "mrscope_program_attached",
    Kind::Gauge,
    &["program", "attach"],
    "1 when a kernel function is watched; 0 when it waits for its module (pending), or when this kernel lacks it or refuses it (none): the log at level debug tells which, and most kernels lack some.",
);
pub static LOST_UPDATES: Metric = metric(
    "mrscope_lost_updates_total",
    Kind::Counter,
    &["source", "reason"],
    "Events that could not be counted: a map was full, or a probe was missed. Counters are short by these; a missed release leaves a gauge too high.",
);
pub static MAP_ENTRIES: Metric = metric(
    "mrscope_map_entries",
    Kind::Gauge,
    &["map"],
    "Rows in use of a BPF map: at map_max_entries updates are lost, but of history and last_failures, where others make way.",
);
pub static MAP_MAX_ENTRIES: Metric = metric(
    "mrscope_map_max_entries",
    Kind::Gauge,
    &["map"],
    "Rows that a BPF map can hold; beyond them updates are lost.",
);
pub static MAP_MEMORY: Metric = metric(
    "mrscope_map_memory_bytes",
    Kind::Gauge,
    &["map"],
    "Kernel memory of a BPF map, as the kernel accounts it.",
);
pub static BUILD_INFO: Metric =
    metric("mrscope_build_info", Kind::Gauge, &["version"], "Always 1; the version that runs.");

/// What every exporter shows of itself, under the names that they all use.
macro_rules! own {
    ($constant:ident, $name:literal, $kind:ident, $help:literal) => {
        pub static $constant: Metric = metric($name, Kind::$kind, &[], $help);
    };
}
own!(
    OWN_CPU_SECONDS,
    "process_cpu_seconds_total",
    Counter,
    "CPU time of mrscope itself; what its programs take inside other processes' calls is theirs."
);
own!(
    OWN_RESIDENT_BYTES,
    "process_resident_memory_bytes",
    Gauge,
    "Resident memory of mrscope itself."
);
own!(OWN_VIRTUAL_BYTES, "process_virtual_memory_bytes", Gauge, "Address space of mrscope itself.");
own!(OWN_THREADS, "process_threads", Gauge, "Threads of mrscope itself.");
own!(
    OWN_START_SECONDS,
    "process_start_time_seconds",
    Gauge,
    "When mrscope itself started, in seconds since the epoch: all its counters began then."
);
own!(OWN_OPEN_FILES, "process_open_fds", Gauge, "Files that mrscope itself has open.");
own!(OWN_MAX_FILES, "process_max_fds", Gauge, "Files that mrscope itself may have open.");

pub static TABLE: &[&Metric] = &[
    &COLLECTOR_SUCCESS,
    &COLLECTOR_SECONDS,
    &COLLECTOR_STATE,
    &PROGRAM_ATTACHED,
    &LOST_UPDATES,
    &MAP_ENTRIES,
    &MAP_MAX_ENTRIES,
    &MAP_MEMORY,
    &BUILD_INFO,
    &OWN_CPU_SECONDS,
    &OWN_RESIDENT_BYTES,
    &OWN_VIRTUAL_BYTES,
    &OWN_THREADS,
    &OWN_START_SECONDS,
    &OWN_OPEN_FILES,
    &OWN_MAX_FILES,
];
