//! Metrics of the collector `mlock`: calls that lock memory.

use super::Metric;

pub static TABLE: &[&Metric] = &[];
