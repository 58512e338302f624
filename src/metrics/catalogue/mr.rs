//! Metrics of the collector `mr`: registrations of memory, by device and by process.

use super::{Fold, Kind, Metric, metric, of_processes};

const DEVICE_KIND: &[&str] = &["device", "kind"];

pub static REGISTRATION_SECONDS: Metric = metric(
    "mrscope_mr_registration_duration_seconds",
    Kind::Histogram,
    DEVICE_KIND,
    "Time that successful MR registrations took in the kernel: pinning and programming the NIC.",
);
pub static PIN_SECONDS: Metric = metric(
    "mrscope_mr_pin_duration_seconds",
    Kind::Histogram,
    DEVICE_KIND,
    "The part of successful MR registrations that pinned pages; the rest of the registration is the NIC's.",
);
pub static DEREGISTRATION_SECONDS: Metric = metric(
    "mrscope_mr_deregistration_duration_seconds",
    Kind::Histogram,
    DEVICE_KIND,
    "Time that successful MR deregistrations took in the kernel, at the end of a process too.",
);
pub static REGISTRATION_SIZE: Metric = metric(
    "mrscope_mr_registration_size_bytes",
    Kind::Histogram,
    DEVICE_KIND,
    "Lengths that successful MR registrations asked for: many small ones cost more time than one that holds all.",
);
pub static REGISTERED_BYTES: Metric = metric(
    "mrscope_mr_registered_bytes_total",
    Kind::Counter,
    DEVICE_KIND,
    "Bytes registered since mrscope started; a rate far above the bytes held is churn.",
);
pub static REPEATS: Metric = metric(
    "mrscope_mr_repeat_registrations_total",
    Kind::Counter,
    &["device"],
    "Successful registrations of memory that the same process had registered on this device before, at that address and length, and deregistered: a registration cache would have spared them. Neither a rereg nor a dmabuf is one.",
);
pub static REPEAT_SECONDS: Metric = metric(
    "mrscope_mr_repeat_registration_seconds_total",
    Kind::Counter,
    &["device"],
    "Time that repeats took in the kernel: its share of mr_registration_duration_seconds_sum is what registering once would save, deregistrations apart. Memory that was freed and is mapped anew at its old address counts too.",
);
pub static HISTORY_FORGOTTEN: Metric = metric(
    "mrscope_mr_history_forgotten_total",
    Kind::Counter,
    &[],
    "Deregistered MRs of living processes that made way for others in the history: registered again they are no repeats. A steady rate means that mr.history is too small for the repeats to be whole.",
);
pub static ACTIVE: Metric = metric(
    "mrscope_mr_active",
    Kind::Gauge,
    DEVICE_KIND,
    "MRs that live, with those that the collector resources found from before the start: a steady rise is a leak.",
);
pub static ACTIVE_BYTES: Metric = metric(
    "mrscope_mr_active_bytes",
    Kind::Gauge,
    DEVICE_KIND,
    "Lengths of the active MRs as they were asked for; what they pin is umem_pinned_bytes.",
);
pub static IN_FLIGHT: Metric = metric(
    "mrscope_mr_registrations_inflight",
    Kind::Gauge,
    &["device"],
    "Registrations that have begun and not ended; device is unknown until they pin.",
);
pub static IN_FLIGHT_OLDEST: Metric = metric(
    "mrscope_mr_registration_inflight_oldest_seconds",
    Kind::Gauge,
    &["device"],
    "Age of the oldest registration in flight: a value that grows is a registration that hangs.",
);
pub static FAILURES: Metric = metric(
    "mrscope_mr_registration_failures_total",
    Kind::Counter,
    &["device", "errno", "cause"],
    "Registrations that the kernel refused or could not do; errors of libibverbs before the system call are not seen.",
);
pub static PINNED_BYTES: Metric = metric(
    "mrscope_umem_pinned_bytes",
    Kind::Gauge,
    &["device", "use"],
    "Whole pages of user memory pinned through this device; one buffer on several devices counts on each. Queues from before the start are not known.",
);

pub static PROCESS_REGISTRATION_SECONDS: Metric = of_processes(
    "mrscope_process_mr_registration_duration_seconds",
    Kind::Histogram,
    &[],
    Fold::Sum,
    "Time that a process spent in successful MR registrations; a steady rate means memory is registered on the hot path.",
);
pub static PROCESS_REPEATS: Metric = of_processes(
    "mrscope_process_mr_repeat_registrations_total",
    Kind::Counter,
    &[],
    Fold::Sum,
    "Successful registrations of memory that the process had registered on the same device before and deregistered: it could keep the MR, or use a registration cache.",
);
pub static PROCESS_REPEAT_SECONDS: Metric = of_processes(
    "mrscope_process_mr_repeat_registration_seconds_total",
    Kind::Counter,
    &[],
    Fold::Sum,
    "Time that a process spent in repeats: its rate is the share of one thread's time that a registration cache would save.",
);
pub static PROCESS_ACTIVE: Metric = of_processes(
    "mrscope_process_mr_active",
    Kind::Gauge,
    &[],
    Fold::Sum,
    "MRs that a process registered and that live, whoever holds them now, with those that the collector resources found from before the start.",
);
pub static PROCESS_ACTIVE_BYTES: Metric = of_processes(
    "mrscope_process_mr_active_bytes",
    Kind::Gauge,
    &[],
    Fold::Sum,
    "Lengths of a process's active MRs as it asked for them: a steady rise is a leak of that process.",
);
pub static PROCESS_LARGEST_BYTES: Metric = of_processes(
    "mrscope_process_mr_largest_bytes",
    Kind::Gauge,
    &[],
    Fold::Max,
    "Largest MR that a process registered since it last held none, or that was found from before the start.",
);
pub static PROCESS_FAILURES: Metric = of_processes(
    "mrscope_process_mr_registration_failures_total",
    Kind::Counter,
    &["cause"],
    Fold::Sum,
    "Registrations of a process that failed in the kernel, by cause.",
);

pub static TABLE: &[&Metric] = &[
    &REGISTRATION_SECONDS,
    &PIN_SECONDS,
    &DEREGISTRATION_SECONDS,
    &REGISTRATION_SIZE,
    &REGISTERED_BYTES,
    &REPEATS,
    &REPEAT_SECONDS,
    &HISTORY_FORGOTTEN,
    &ACTIVE,
    &ACTIVE_BYTES,
    &IN_FLIGHT,
    &IN_FLIGHT_OLDEST,
    &FAILURES,
    &PINNED_BYTES,
    &PROCESS_REGISTRATION_SECONDS,
    &PROCESS_REPEATS,
    &PROCESS_REPEAT_SECONDS,
    &PROCESS_ACTIVE,
    &PROCESS_ACTIVE_BYTES,
    &PROCESS_LARGEST_BYTES,
    &PROCESS_FAILURES,
];
