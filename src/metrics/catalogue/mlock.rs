//! Metrics of the collector `mlock`: system calls that lock memory.

use super::{Fold, Kind, Metric, metric, of_processes};

pub static SECONDS: Metric = metric(
    "mrscope_mlock_duration_seconds",
    Kind::Histogram,
    &["syscall"],
    "Time that successful calls of mlock and its kin took: locking brings pages in first. MAP_LOCKED, MCL_FUTURE and 32-bit programs lock without a call that is seen here; what is locked is process_locked_bytes.",
);
pub static FAILURES: Metric = metric(
    "mrscope_mlock_failures_total",
    Kind::Counter,
    &["syscall", "errno"],
    "Calls of mlock and its kin that failed. ENOMEM: RLIMIT_MEMLOCK is exceeded, or the range is not mapped; EPERM: the limit is 0; EAGAIN: no memory to bring pages in.",
);
pub static BYTES: Metric = metric(
    "mrscope_mlock_bytes_total",
    Kind::Counter,
    &["syscall"],
    "Lengths that successful calls asked to lock, locked before or not.",
);
pub static PROCESS_CALLS: Metric = of_processes(
    "mrscope_process_mlock_calls_total",
    Kind::Counter,
    &[],
    Fold::Sum,
    "Successful calls of mlock and its kin: a steady rate is locking on the hot path.",
);
pub static PROCESS_SECONDS: Metric = of_processes(
    "mrscope_process_mlock_seconds_total",
    Kind::Counter,
    &[],
    Fold::Sum,
    "Time that a process spent in successful calls of mlock and its kin.",
);

pub static TABLE: &[&Metric] = &[&SECONDS, &FAILURES, &BYTES, &PROCESS_CALLS, &PROCESS_SECONDS];
