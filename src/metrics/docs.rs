//! The catalogue as Markdown: docs/metrics.md is this text.

use std::fmt::Write;

use super::catalogue::{Fold, Metric, TABLES};

const INTRODUCTION: &str = "\
# Metrics

Written by `mrscope metrics`: one table for each collector. Times are in seconds, sizes in bytes.
Counters and histograms count from mrscope's start.

*process* stands for the labels that tell processes apart: `pid` and `comm`, unless `process.labels`
names others. All processes without a series of their own are one series: the label `comm`, or else
the last one, is `(all other processes)` there. How figures of several processes become one there, or in a group,
is the column *folds*.
";

/// A column's heading, and its text for a metric.
type Column = (&'static str, fn(&Metric) -> String);

const COLUMNS: [Column; 5] = [
    ("metric", |metric| format!("`{}`", metric.name)),
    ("type", |metric| metric.kind.word().to_owned()),
    ("labels", |metric| {
        let process = metric.of_processes().then(|| "*process*".to_owned());
        let own = metric.labels.iter().map(|label| format!("`{label}`"));
        process.into_iter().chain(own).collect::<Vec<_>>().join(", ")
    }),
    ("folds", |metric| {
        let word = match metric.fold {
            Fold::Sum => "sum",
            Fold::Min => "least",
            Fold::Max => "largest",
            Fold::Omit => "left out",
            Fold::None => "",
        };
        word.to_owned()
    }),
    ("meaning", |metric| metric.help.to_owned()),
];

/// All metrics, table by table.
#[must_use]
pub fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for (collector, metrics) in TABLES {
        // Writing to a string can't fail.
        let _ = writeln!(text, "\n## Collector `{collector}`\n");
        text += &row(COLUMNS.map(|(heading, _)| heading.to_owned()));
        text += &"|---".repeat(COLUMNS.len());
        text += "|\n";
        for metric in metrics {
            text += &row(COLUMNS.map(|(_, cell)| cell(metric)));
        }
    }
    text
}

fn row(cells: [String; COLUMNS.len()]) -> String {
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::metrics;
    use super::*;

    #[test]
    fn every_metric_has_one_row_of_its_table() {
        let text = markdown();
        for metric in metrics() {
            let start = format!("| `{}` | {} | ", metric.name, metric.kind.word());
            let rows: Vec<_> = text.lines().filter(|line| line.starts_with(&start)).collect();
            assert_eq!(rows.len(), 1, "{}", metric.name);
            assert!(rows[0].ends_with(&format!(" | {} |", metric.help)), "{}", rows[0]);
        }
        assert!(text.contains("| `mrscope_build_info` | gauge | `version` |  | "), "{text}");
    }

    #[test]
    fn a_bar_ends_no_cell() {
        let cells = ["a|b", "", "", "", ""].map(str::to_owned);
        assert_eq!(row(cells), "| a\\|b |  |  |  |  |\n");
    }
}
