//! What came of a bench: the figures of each row over its rounds, as the JSON has them.

use serde::Serialize;

use super::plan::{LeftOut, Place, Row, pages_name, pooled_bytes};
use super::units::GIB;
use crate::probe::Report;

/// A figure over all rounds in which there was one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// Of an even number of rounds, midway between the two in the middle.
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Figure {
    /// None of nothing.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: low + (high - low) / 2.0, least, most })
    }
}

/// A round in which a row has no figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub round: u32,
    /// One word for it.
    pub reason: String,
    pub detail: String,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// As it is called in the table.
    pub pages: String,
    pub page_size_bytes: Option<u64>,
    pub numa_node: Option<u32>,
    /// Seen from the NIC.
    pub place: Option<Place>,
    pub touched: bool,
    /// In which there are figures.
    pub rounds: usize,
    pub registration_ns: Option<Figure>,
    pub registration_ms_per_gib: Option<f64>,
    pub deregistration_ns: Option<Figure>,
    /// Of a walk in random order; None where the CPU's misses can't be counted.
    pub tlb_misses_per_access: Option<Figure>,
    pub bandwidth_bytes_per_second: Option<Figure>,
    /// Of the median, against the port's rate.
    pub bandwidth_share: Option<f64>,
    pub latency_p50_ns: Option<Figure>,
    pub latency_p99_ns: Option<Figure>,
    pub faults: Vec<Fault>,
    /// Why TLB misses were not counted.
    #[serde(skip)]
    pub tlb_unavailable: Option<String>,
}

impl Measured {
    /// Puts together what came of a row's rounds.
    #[must_use]
    pub fn of(row: &Row, base_page_bytes: u64, reports: &[Report], faults: Vec<Fault>) -> Self {
        let over = |figure: fn(&Report) -> f64| Figure::of(reports.iter().map(figure));
        let last = reports.last();
        let registration = over(|report| report.registration_ns as f64);
        let gib = last.map(|report| report.mr_bytes as f64 / GIB);
        let bandwidth = over(|report| report.bandwidth_bytes_per_second);
        let rate = last.map(|report| report.port_rate_bytes_per_second).filter(|rate| *rate > 0);
        let share = |figure: Figure| rate.map(|rate| figure.median / rate as f64);
        let misses = |report: &Report| {
            let accesses = report.tlb_accesses.filter(|accesses| *accesses > 0)?;
            Some(report.tlb_misses? as f64 / accesses as f64)
        };
        let known = last.map(|report| report.page_size_bytes);
        Self {
            pages: pages_name(row.pages, base_page_bytes),
            page_size_bytes: known.or_else(|| pooled_bytes(row.pages)),
            numa_node: row.node,
            place: row.place,
            touched: row.touched,
            rounds: reports.len(),
            registration_ns: registration,
            registration_ms_per_gib: registration.zip(gib).map(|(it, gib)| it.median / 1e6 / gib),
            deregistration_ns: over(|report| report.deregistration_ns as f64),
            tlb_misses_per_access: Figure::of(reports.iter().filter_map(misses)),
            bandwidth_bytes_per_second: bandwidth,
            bandwidth_share: bandwidth.and_then(share),
            latency_p50_ns: over(|report| report.latency_p50_ns as f64),
            latency_p99_ns: over(|report| report.latency_p99_ns as f64),
            faults,
            tlb_unavailable: reports.iter().find_map(|report| report.tlb_unavailable.clone()),
        }
    }

    /// What tells it from other rows.
    #[must_use]
    pub fn name(&self) -> String {
        name(&self.pages, self.numa_node, self.touched)
    }
}

/// `4K on node 0, untouched`.
#[must_use]
pub fn name(pages: &str, node: Option<u32>, touched: bool) -> String {
    let node = node.map(|node| format!(" on node {node}")).unwrap_or_default();
    format!("{pages}{node}{}", if touched { "" } else { ", untouched" })
}

/// All of a bench.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub mrscope_version: &'static str,
    pub kernel: String,
    pub device: String,
    pub port: u8,
    pub device_numa_node: Option<u32>,
    pub port_rate_bytes_per_second: Option<u64>,
    pub mr_bytes: u64,
    pub message_bytes: u64,
    /// That were asked for.
    pub rounds: u32,
    /// Whether every row that was planned has figures of every round.
    pub complete: bool,
    pub rows: Vec<Measured>,
    pub left_out: Vec<LeftOut>,
    pub notes: Vec<String>,
    pub suggestions: Vec<String>,
}

impl Outcome {
    /// One JSON object, with its end of line.
    ///
    /// # Errors
    /// A figure is none that JSON has.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        let median = |values: &[f64]| Figure::of(values.iter().copied()).unwrap().median.to_bits();
        assert_eq!(Figure::of([]), None);
        assert_eq!(median(&[3.0]), 3.0_f64.to_bits());
        assert_eq!(median(&[9.0, 1.0, 4.0]), 4.0_f64.to_bits());
        assert_eq!(median(&[9.0, 1.0, 4.0, 2.0]), 3.0_f64.to_bits());
    }

    proptest! {
        #[test]
        fn a_median_has_as_many_below_it_as_above(
            values in proptest::collection::vec(0_u32..1000, 1..20),
        ) {
            let as_given = Figure::of(values.iter().copied().map(f64::from)).unwrap();
            let Figure { median, least, most } = as_given;
            prop_assert!(values.iter().all(|it| (least..=most).contains(&f64::from(*it))));
            let below = values.iter().filter(|it| f64::from(**it) < median).count();
            let above = values.iter().filter(|it| f64::from(**it) > median).count();
            prop_assert!(below * 2 <= values.len() && above * 2 <= values.len());
            // Values need not be as they were in the middle of an even number, but sums of two are.
            let twice = median * 2.0;
            prop_assert!((twice - twice.round()).abs() < 1e-9);
            let reversed = Figure::of(values.iter().rev().copied().map(f64::from));
            prop_assert_eq!(reversed, Some(as_given));
        }
    }
}
