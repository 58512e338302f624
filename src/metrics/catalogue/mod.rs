//! Every metric that mrscope can export: the only source of names, helps and labels.
//! One table per collector, concatenated.

pub mod exporter;
pub mod mr;

/// What the value does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// The word for it in the text format.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// How series of several processes become one: in a group, or in `other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    Sum,
    Max,
    /// Not a metric of processes.
    Omit,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// What an operator may conclude from it.
    pub help: &'static str,
    pub labels: &'static [&'static str],
    pub fold: Fold,
}

/// Each collector's word with its metrics, in the order of the page.
pub fn tables() -> impl Iterator<Item = (&'static str, &'static [&'static Metric])> {
    [("mr", mr::TABLE), ("exporter", exporter::TABLE)].into_iter()
}

/// All metrics, table by table.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    tables().flat_map(|(_, table)| table).copied()
}

/// The metric of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Metric> {
    metrics().find(|metric| metric.name == name)
}

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind, help, labels, fold: Fold::Omit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::COLLECTORS;

    #[test]
    fn names_follow_the_conventions() {
        let mut seen = std::collections::HashSet::new();
        for metric in metrics() {
            let name = metric.name;
            assert!(seen.insert(name), "{name} is there twice");
            assert!(name.starts_with("mrscope_"), "{name}");
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(metric.help.ends_with('.'), "{name}: a help is a sentence");
        }
    }

    #[test]
    fn every_table_is_a_collector_s_in_the_order_of_the_page() {
        let places: Vec<_> = tables()
            .map(|(word, _)| COLLECTORS.iter().position(|known| *known == word).unwrap())
            .collect();
        assert!(places.is_sorted_by(|a, b| a < b), "{places:?}");
    }

    #[test]
    fn no_label_collides_with_a_scraper_s_target() {
        let reserved = ["pod", "container", "namespace", "node", "instance", "job", "le"];
        for metric in metrics() {
            for label in metric.labels {
                assert!(!reserved.contains(label), "{}: {label}", metric.name);
            }
        }
    }
}
