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
    &ACTIVE,
    &ACTIVE_BYTES,
    &IN_FLIGHT,
    &IN_FLIGHT_OLDEST,
    &FAILURES,
    &PINNED_BYTES,
    &PROCESS_REGISTRATION_SECONDS,
    &PROCESS_ACTIVE,
    &PROCESS_ACTIVE_BYTES,
    &PROCESS_LARGEST_BYTES,
    &PROCESS_FAILURES,
];
