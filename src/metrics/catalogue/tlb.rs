//! Metrics of the collector `tlb`: translations that a CPU had to look up.

use super::Metric;

pub static TABLE: &[&Metric] = &[];
