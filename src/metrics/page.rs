//! A page under construction. It refuses what is not in the catalogue, a wrong number of labels,
//! and a series that is there already: a collector's mistake is an error, never a wrong page.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::model::{Labels, ProcessLabel};

use super::catalogue::{Kind, Metric, find};

/// Samples by metric, in the order in which metrics first appeared.
#[derive(Debug)]
pub struct Page {
    /// Names of the labels that tell processes apart.
    process_labels: Arc<[&'static str]>,
    families: Vec<Family>,
    positions: HashMap<&'static str, usize>,
    hasher: RandomState,
}

/// The samples of one metric.
#[derive(Debug)]
pub struct Family {
    pub metric: &'static Metric,
    /// Names of the labels of each sample.
    pub names: Vec<&'static str>,
    pub samples: Vec<Sample>,
    /// Positions of samples by the hash of their labels; one whose hash is taken has the next free.
    taken: HashMap<u64, usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub labels: LabelValues,
    pub value: Value,
}

/// Label values in the order of the family's names. Those of a process are shared by all its
/// samples.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LabelValues {
    process: Option<Labels>,
    /// Beside those of a process.
    word: Option<&'static str>,
    own: Box<[String]>,
}

impl LabelValues {
    fn of_host(own: &[&str]) -> Self {
        Self { process: None, word: None, own: own.iter().map(|&value| value.into()).collect() }
    }

    fn of_process(process: &Labels, word: Option<&'static str>) -> Self {
        Self { process: Some(Arc::clone(process)), word, own: Box::default() }
    }

    /// The values.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let of_process = self.process.iter().flat_map(|process| process.iter());
        of_process.map(String::as_str).chain(self.word).chain(self.own.iter().map(String::as_str))
    }
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
    /// An empty page whose series of processes are told apart by these labels.
    #[must_use]
    pub fn new(process_labels: &[ProcessLabel]) -> Self {
        Self {
            process_labels: process_labels.iter().map(|label| label.word()).collect(),
            families: Vec::new(),
            positions: HashMap::new(),
            hasher: RandomState::new(),
        }
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
        self.add(metric, LabelValues::of_host(labels), Value::Number(value))
    }

    /// Adds a sample of a process, or of a group; `word` is the label beside its own, if any.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn process_number(
        &mut self,
        metric: &'static Metric,
        process: &Labels,
        word: Option<&'static str>,
        value: f64,
    ) -> Result<(), PageError> {
        self.add(metric, LabelValues::of_process(process, word), Value::Number(value))
    }

    /// Adds a sample of a process, or of a group, with two labels beside its own.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn process_number_by(
        &mut self,
        metric: &'static Metric,
        process: &Labels,
        [word, other]: [&'static str; 2],
        value: f64,
    ) -> Result<(), PageError> {
        let mut labels = LabelValues::of_process(process, Some(word));
        labels.own = Box::new([other.to_owned()]);
        self.add(metric, labels, Value::Number(value))
    }

    /// The same, where both labels are made anew for each page.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn process_number_at(
        &mut self,
        metric: &'static Metric,
        process: &Labels,
        own: [String; 2],
        value: f64,
    ) -> Result<(), PageError> {
        let mut labels = LabelValues::of_process(process, None);
        labels.own = Box::new(own);
        self.add(metric, labels, Value::Number(value))
    }

    /// Adds a sample of a process whose labels tell of it, `values` in the catalogue's order. One
    /// that tells processes apart anyway is not there twice.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn process_info(
        &mut self,
        metric: &'static Metric,
        process: &Labels,
        values: &[&str],
    ) -> Result<(), PageError> {
        let (given, expected) = (values.len(), metric.labels.len());
        if given != expected {
            return Err(PageError::Labels { metric: metric.name, given, expected });
        }
        let mut labels = LabelValues::of_process(process, None);
        let told = metric.labels.iter().zip(values);
        let beside = told.filter(|(name, _)| !self.process_labels.contains(name));
        labels.own = beside.map(|(_, value)| (*value).to_owned()).collect();
        self.add(metric, labels, Value::Number(1.0))
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
        let value = Value::Histogram { buckets, count, sum };
        self.add(metric, LabelValues::of_host(labels), value)
    }

    /// Adds a histogram of a process, or of a group.
    ///
    /// # Errors
    /// See [`PageError`].
    pub fn process_histogram(
        &mut self,
        metric: &'static Metric,
        process: &Labels,
        (buckets, count): (Vec<(f64, u64)>, u64),
        sum: f64,
    ) -> Result<(), PageError> {
        let value = Value::Histogram { buckets, count, sum };
        self.add(metric, LabelValues::of_process(process, None), value)
    }

    fn add(
        &mut self,
        metric: &'static Metric,
        labels: LabelValues,
        value: Value,
    ) -> Result<(), PageError> {
        if (metric.kind == Kind::Histogram) != matches!(value, Value::Histogram { .. }) {
            return Err(PageError::Kind { metric: metric.name });
        }
        let position = self.position(metric)?;
        let family = &mut self.families[position];
        let given = labels.iter().count();
        let expected = family.names.len();
        if given != expected || labels.process.is_some() != metric.of_processes() {
            return Err(PageError::Labels { metric: metric.name, given, expected });
        }
        let mut hash = self.hasher.hash_one(&labels);
        while let Some(other) = family.taken.get(&hash) {
            if family.samples[*other].labels == labels {
                let labels = labels.iter().map(str::to_owned).collect();
                return Err(PageError::Duplicate { metric: metric.name, labels });
            }
            hash = hash.wrapping_add(1);
        }
        family.taken.insert(hash, family.samples.len());
        family.samples.push(Sample { labels, value });
        Ok(())
    }

    /// Where the metric's samples are.
    fn position(&mut self, metric: &'static Metric) -> Result<usize, PageError> {
        if let Some(position) = self.positions.get(metric.name) {
            return Ok(*position);
        }
        if find(metric.name) != Some(metric) {
            return Err(PageError::NotInCatalogue(metric.name));
        }
        let of_process: &[&str] =
            if metric.of_processes() { &self.process_labels } else { Default::default() };
        let beside = metric.labels.iter().filter(|name| !of_process.contains(name));
        let names = of_process.iter().chain(beside).copied().collect();
        self.families.push(Family { metric, names, samples: Vec::new(), taken: HashMap::new() });
        self.positions.insert(metric.name, self.families.len() - 1);
        Ok(self.families.len() - 1)
    }

    #[must_use]
    pub fn families(&self) -> &[Family] {
        &self.families
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::{Fold, mr, process};
    use super::*;

    static STRANGER: Metric = Metric {
        name: "mrscope_stranger",
        kind: Kind::Gauge,
        help: "x.",
        labels: &[],
        fold: Fold::None,
    };

    fn page() -> Page {
        Page::new(&[ProcessLabel::Pid, ProcessLabel::Comm])
    }

    #[test]
    fn a_page_refuses_what_would_be_wrong() {
        let mut page = page();
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

    #[test]
    fn what_tells_of_a_process_is_not_there_twice() {
        let values = ["new", "/opt/x", "/a/b", "", "", "7", "0", "x.service"];
        let name = process::INFO.name;
        for (labels, who, expected) in [
            (vec![ProcessLabel::Pid, ProcessLabel::Comm], vec!["7", "old"], "7 old /opt/x /a/b"),
            (vec![ProcessLabel::Pid], vec!["7"], "7 new /opt/x /a/b"),
            (vec![ProcessLabel::Cgroup, ProcessLabel::Pid], vec!["/a", "7"], "/a 7 new /opt/x"),
        ] {
            let mut page = Page::new(&labels);
            let who: Labels = who.into_iter().map(str::to_owned).collect();
            assert_eq!(page.process_info(&process::INFO, &who, &values), Ok(()));
            let family = &page.families()[0];
            assert_eq!(family.names.len(), family.samples[0].labels.iter().count());
            let names: std::collections::HashSet<_> = family.names.iter().collect();
            assert_eq!(names.len(), family.names.len(), "{:?}", family.names);
            let told: Vec<_> = family.samples[0].labels.iter().take(4).collect();
            assert_eq!(told.join(" "), expected);
            let short = page.process_info(&process::INFO, &who, &values[1..]);
            assert_eq!(short, Err(PageError::Labels { metric: name, given: 7, expected: 8 }));
        }
    }

    #[test]
    fn a_process_s_sample_has_the_labels_of_processes_and_its_own() {
        let mut page = page();
        let who: Labels = ["7".to_owned(), "trainer".to_owned()].into();
        assert_eq!(page.process_number(&mr::PROCESS_FAILURES, &who, Some("device"), 1.0), Ok(()));
        assert_eq!(page.families()[0].names, ["pid", "comm", "cause"]);
        let name = mr::PROCESS_FAILURES.name;
        assert!(matches!(
            page.process_number(&mr::PROCESS_FAILURES, &who, Some("device"), 1.0),
            Err(PageError::Duplicate { metric, .. }) if metric == name
        ));
        // As many values, but not those of a process.
        assert!(page.number(&mr::PROCESS_FAILURES, &["7", "trainer", "other"], 1.0).is_err());
    }
}
