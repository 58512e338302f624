//! Metrics of the collector `hugepages`: what the host's memory is made of, and what of it is free.

use super::Metric;

pub static TABLE: &[&Metric] = &[];
