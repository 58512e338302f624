//! A page under construction. It refuses what is not in the catalogue, a wrong number of labels,
//! and a series that is there already: a collector's mistake is an error, never a wrong page.

use std::collections::{HashMap, HashSet};

use super::catalogue::{Kind, Metric, find};

/// Samples by metric, in the order in which metrics first appeared.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<Family>,
    positions: HashMap<&'static str, usize>,
    series: HashSet<(usize, Vec<String>)>,
}

/// The samples of one metric.
#[derive(Debug)]
pub struct Family {
    pub metric: &'static Metric,
    pub samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Values in the order of the metric's labels.
    pub labels: Vec<String>,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Number(f64),
    Histogram {
        /// Upper bound and cumulated count, without +Inf.
        buckets: Vec<(f64, u64)>,
        count: u64,
        sum: f64,
    },
}

/// A sample that the page does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    #[error("{0} is not in the catalogue")]
    NotInCatalogue(&'static str),
    #[error("{metric} has {given} label values, expected {expected}")]
    Labels { metric: &'static str, given: usize, expected: usize },
    #[error("{metric}: a value of the wrong kind")]
    Kind { metric: &'static str },
    #[error("{metric}{labels:?} is there already")]
    Duplicate { metric: &'static str, labels: Vec<String> },
}

impl Page {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a counter's or gauge's sample.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn number(
        &mut self,
        metric: &'static Metric,
        labels: &[&str],
        value: f64,
    ) -> Result<(), PageError> {
        if metric.kind == Kind::Histogram {
            return Err(PageError::Kind { metric: metric.name });
        }
        self.add(metric, labels, Value::Number(value))
    }

    /// Adds a histogram: cumulated counts by bound, the count of all, and their sum.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn histogram(
        &mut self,
        metric: &'static Metric,
        labels: &[&str],
        (buckets, count): (Vec<(f64, u64)>, u64),
        sum: f64,
    ) -> Result<(), PageError> {
        if metric.kind != Kind::Histogram {
            return Err(PageError::Kind { metric: metric.name });
        }
        self.add(metric, labels, Value::Histogram { buckets, count, sum })
    }

    fn add(
        &mut self,
        metric: &'static Metric,
        labels: &[&str],
        value: Value,
    ) -> Result<(), PageError> {
        if labels.len() != metric.labels.len() {
            return Err(PageError::Labels {
                metric: metric.name,
                given: labels.len(),
                expected: metric.labels.len(),
            });
        }
        let position = if let Some(position) = self.positions.get(metric.name) {
            *position
        } else {
            if find(metric.name) != Some(metric) {
                return Err(PageError::NotInCatalogue(metric.name));
            }
            self.families.push(Family { metric, samples: Vec::new() });
            self.positions.insert(metric.name, self.families.len() - 1);
            self.families.len() - 1
        };
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        if !self.series.insert((position, labels.clone())) {
            return Err(PageError::Duplicate { metric: metric.name, labels });
        }
        self.families[position].samples.push(Sample { labels, value });
        Ok(())
    }

    #[must_use]
    pub fn families(&self) -> &[Family] {
        &self.families
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::{Fold, mr};
    use super::*;

    #[test]
    fn a_page_refuses_what_would_be_wrong() {
        static STRANGER: Metric = Metric {
            name: "mrscope_stranger",
            kind: Kind::Gauge,
            help: "x.",
            labels: &[],
            fold: Fold::Omit,
        };
        let mut page = Page::new();
        let active = mr::ACTIVE.name;
        assert_eq!(page.number(&mr::ACTIVE, &["rxe0", "host"], 1.0), Ok(()));
        assert_eq!(
            page.number(&mr::ACTIVE, &["rxe0", "host"], 2.0),
            Err(PageError::Duplicate {
                metric: active,
                labels: vec!["rxe0".into(), "host".into()]
            })
        );
        assert_eq!(
            page.number(&mr::ACTIVE, &["rxe0"], 1.0),
            Err(PageError::Labels { metric: active, given: 1, expected: 2 })
        );
        assert_eq!(
            page.number(&STRANGER, &[], 1.0),
            Err(PageError::NotInCatalogue("mrscope_stranger"))
        );
        assert_eq!(
            page.histogram(&mr::ACTIVE, &["a", "b"], (vec![], 0), 0.0),
            Err(PageError::Kind { metric: active })
        );
        assert_eq!(page.families().len(), 1);
        assert_eq!(page.families()[0].samples.len(), 1);
    }
}
