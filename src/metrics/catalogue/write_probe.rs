//! Metrics of the collector `write_probe`: what a port writes to itself.

use super::{Kind, Metric, metric};

const MEASURED: &[&str] = &["device", "port", "page_size", "numa_node"];
const PORT: &[&str] = &["device", "port"];

pub static BANDWIDTH: Metric = metric(
    "mrscope_write_probe_bandwidth_bytes_per_second",
    Kind::Gauge,
    MEASURED,
    "What RDMA writes of this port to itself reached at the last run: memory, PCIe and NIC are in it, the cable is not. page_size is what the memory really lay on.",
);
pub static LATENCY_P50: Metric = metric(
    "mrscope_write_probe_latency_p50_seconds",
    Kind::Gauge,
    MEASURED,
    "Median time of single small writes of this port to itself, one at a time.",
);
pub static LATENCY_P99: Metric = metric(
    "mrscope_write_probe_latency_p99_seconds",
    Kind::Gauge,
    MEASURED,
    "The 99th percentile of the same writes: far above the median the host or the NIC has other work.",
);
pub static REGISTRATION: Metric = metric(
    "mrscope_write_probe_mr_registration_seconds",
    Kind::Gauge,
    MEASURED,
    "How long the probe's own MR took to register, as its process saw it.",
);
pub static SUCCESS: Metric = metric(
    "mrscope_write_probe_success",
    Kind::Gauge,
    PORT,
    "1 if the last run of a port went well, 0 if it failed: runs_total and the log tell why. Ports that are down, busy or excluded are skipped, which changes nothing here.",
);
pub static LAST_RUN: Metric = metric(
    "mrscope_write_probe_last_run_timestamp_seconds",
    Kind::Gauge,
    PORT,
    "When the last run of a port ended that was not skipped, in seconds since the epoch.",
);
pub static RUNS: Metric = metric(
    "mrscope_write_probe_runs_total",
    Kind::Counter,
    &["device", "port", "result"],
    "Runs by what came of them: ok, skipped_*, or the reason of a failure.",
);
pub static PORT_RATE: Metric = metric(
    "mrscope_write_probe_port_rate_bytes_per_second",
    Kind::Gauge,
    PORT,
    "The rate that a port says it has: what bandwidth is a share of. Loopback may exceed it, or stay below by the NIC's own limit.",
);
pub static UNSEEN: Metric = metric(
    "mrscope_write_probe_unseen_total",
    Kind::Counter,
    PORT,
    "Runs that went well and whose registration the collector mr did not see: above 0 its figures are not whole, whatever its state says.",
);

pub static TABLE: &[&Metric] = &[
    &BANDWIDTH,
    &LATENCY_P50,
    &LATENCY_P99,
    &REGISTRATION,
    &SUCCESS,
    &LAST_RUN,
    &RUNS,
    &PORT_RATE,
    &UNSEEN,
];
