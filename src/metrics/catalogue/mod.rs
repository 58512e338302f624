//! Every metric that mrscope can export: the only source of names, helps and labels.
//! One table per collector, concatenated.

pub mod devices;
pub mod exporter;
pub mod hugepages;
pub mod mlock;
pub mod mr;
pub mod placement;
pub mod process;
pub mod resources;
pub mod tlb;
pub mod write_probe;

use crate::model::COLLECTORS;

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

/// How figures of several processes become one series: in a group, or of all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    Sum,
    Min,
    Max,
    /// Only where a series is one process.
    Omit,
    /// Not a metric of processes.
    None,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// What an operator may conclude from it.
    pub help: &'static str,
    /// Of a metric of processes: those beside the labels that tell processes apart.
    pub labels: &'static [&'static str],
    pub fold: Fold,
}

impl Metric {
    /// Whether it has the labels that tell processes apart.
    #[must_use]
    pub fn of_processes(&self) -> bool {
        self.fold != Fold::None
    }
}

/// Each collector's word with its metrics, in the order of the page.
pub const TABLES: [(&str, &[&Metric]); COLLECTORS.len()] = [
    ("mr", mr::TABLE),
    ("process", process::TABLE),
    ("mlock", mlock::TABLE),
    ("hugepages", hugepages::TABLE),
    ("tlb", tlb::TABLE),
    ("write_probe", write_probe::TABLE),
    ("devices", devices::TABLE),
    ("resources", resources::TABLE),
    ("placement", placement::TABLE),
    ("exporter", exporter::TABLE),
];

/// All metrics, table by table.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    TABLES.iter().flat_map(|(_, table)| *table).copied()
}

/// The metric of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Metric> {
    metrics().find(|metric| metric.name == name)
}

const fn of_processes(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    fold: Fold,
    help: &'static str,
) -> Metric {
    Metric { name, kind, help, labels, fold }
}

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind, help, labels, fold: Fold::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let mut seen = std::collections::HashSet::new();
        for metric in metrics() {
            let name = metric.name;
            assert!(seen.insert(name), "{name} is there twice");
            // An exporter's own figures have the names that all exporters use.
            assert!(name.starts_with("mrscope_") || name.starts_with("process_"), "{name}");
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(metric.help.ends_with('.'), "{name}: a help is a sentence");
        }
    }

    #[test]
    fn tables_are_in_the_order_of_collectors() {
        assert_eq!(TABLES.map(|(collector, _)| collector), COLLECTORS);
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
