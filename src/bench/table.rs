//! The table as text: columns with their units, what was left out and failed, and what the rows
//! suggest. At most [`WIDTH`] wide but for what others said.

use std::fmt::Write;

use super::outcome::{Figure, Measured, Outcome};
use super::plan::Place;
use super::units::{bytes, gigabits, ms, us};

/// Of a usual terminal made a bit wider.
pub const WIDTH: usize = 120;

/// What stands where there is no figure.
const NONE: &str = "-";
const GAP: &str = "  ";

/// A column: its name, its unit, and what a row has there.
struct Column {
    name: &'static str,
    unit: &'static str,
    cell: fn(&Measured) -> Option<String>,
}

const COLUMNS: [Column; 12] = [
    Column { name: "pages", unit: "", cell: |row| Some(row.pages.clone()) },
    Column { name: "node", unit: "", cell: |row| row.numa_node.map(|node| node.to_string()) },
    Column {
        name: "place",
        unit: "",
        cell: |row| {
            row.place.map(|place| if place == Place::Near { "near" } else { "far" }.to_owned())
        },
    },
    Column {
        name: "memory",
        unit: "",
        cell: |row| Some(if row.touched { "touched" } else { "untouched" }.to_owned()),
    },
    Column { name: "register", unit: "ms", cell: |row| median(row.registration_ns, 3, ms) },
    Column {
        name: "per GiB",
        unit: "ms",
        cell: |row| row.registration_ms_per_gib.map(|figure| format!("{figure:.2}")),
    },
    Column { name: "deregister", unit: "ms", cell: |row| median(row.deregistration_ns, 3, ms) },
    Column {
        name: "TLB misses",
        unit: "% of acc.",
        cell: |row| median(row.tlb_misses_per_access, 2, |figure| figure * 100.0),
    },
    Column {
        name: "bandwidth",
        unit: "Gb/s",
        cell: |row| median(row.bandwidth_bytes_per_second, 3, gigabits),
    },
    Column {
        name: "of rate",
        unit: "%",
        cell: |row| row.bandwidth_share.map(|share| format!("{:.1}", share * 100.0)),
    },
    Column { name: "p50", unit: "µs", cell: |row| median(row.latency_p50_ns, 1, us) },
    Column { name: "p99", unit: "µs", cell: |row| median(row.latency_p99_ns, 1, us) },
];

fn median(figure: Option<Figure>, digits: usize, scale: fn(f64) -> f64) -> Option<String> {
    figure.map(|figure| format!("{:.digits$}", scale(figure.median)))
}

/// The whole text.
#[must_use]
pub fn text(outcome: &Outcome) -> String {
    let mut text = heading(outcome);
    let lines: Vec<Vec<String>> = [|column: &Column| column.name, |column: &Column| column.unit]
        .map(|word| COLUMNS.iter().map(|column| word(column).to_owned()).collect())
        .into_iter()
        .chain(outcome.rows.iter().map(|row| {
            COLUMNS.iter().map(|it| (it.cell)(row).unwrap_or_else(|| NONE.to_owned())).collect()
        }))
        .collect();
    if !outcome.rows.is_empty() {
        text.push('\n');
        text.push_str(&columns(&lines));
    }
    let left_out = outcome.left_out.iter().map(|it| format!("{}: {}", it.what, it.why));
    section("Left out", left_out, &mut text);
    section("Failed", faults(&outcome.rows).into_iter(), &mut text);
    section("Notes", outcome.notes.iter().cloned(), &mut text);
    section("What the rows suggest", outcome.suggestions.iter().cloned(), &mut text);
    text
}

fn heading(outcome: &Outcome) -> String {
    let rate = outcome.port_rate_bytes_per_second;
    let rate = rate
        .map_or("of unknown rate".to_owned(), |rate| format!("of {} Gb/s", gigabits(rate as f64)));
    let rounds = if outcome.rounds == 1 { "round" } else { "rounds" };
    format!(
        "{} port {} {rate}, MRs of {}, medians of {} {rounds}, kernel {}\n",
        outcome.device,
        outcome.port,
        bytes(outcome.mr_bytes),
        outcome.rounds,
        outcome.kernel
    )
}

/// Each as wide as its widest word; figures and their heads end together.
fn columns(lines: &[Vec<String>]) -> String {
    let letters = |word: &String| word.chars().count();
    let width =
        |at: usize| lines.iter().filter_map(|line| line.get(at)).map(letters).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(word, width)| format!("{word:>width$}"));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join(GAP).trim_end());
    }
    text
}

/// Each thing that was said, with the rows and rounds of which it was.
fn faults(rows: &[Measured]) -> Vec<String> {
    let mut told: Vec<(String, Vec<String>)> = Vec::new();
    for row in rows {
        let mut of_row: Vec<(String, Vec<String>)> = Vec::new();
        for fault in &row.faults {
            let said = format!("{}: {}", fault.reason, fault.detail);
            add(&mut of_row, said, fault.round.to_string());
        }
        for (said, rounds) in of_row {
            let plural = if rounds.len() > 1 { "s" } else { "" };
            let place = format!("{}, round{plural} {}", row.name(), rounds.join(", "));
            add(&mut told, said, place);
        }
    }
    let line = |(said, places): (String, Vec<String>)| match &places[..] {
        [first, _, _, ..] => format!("{first}, and {} more rows: {said}", places.len() - 1),
        _ => format!("{}: {said}", places.join("; ")),
    };
    told.into_iter().map(line).collect()
}

fn add(told: &mut Vec<(String, Vec<String>)>, said: String, place: String) {
    match told.iter_mut().find(|(known, _)| *known == said) {
        Some((_, places)) => places.push(place),
        None => told.push((said, vec![place])),
    }
}

fn section(name: &str, lines: impl Iterator<Item = String>, text: &mut String) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        let _ = writeln!(text, "\n{name}:");
    }
    for line in lines {
        let _ = writeln!(text, "{}", folded(&line));
    }
}

/// Lines that end where a word does.
fn folded(line: &str) -> String {
    let mut text = String::new();
    let mut length = 0;
    for (at, word) in line.split(' ').enumerate() {
        let letters = word.chars().count();
        let start = match at {
            0 => "  ",
            _ if length + 1 + letters > WIDTH => "\n    ",
            _ => " ",
        };
        length = if at > 0 && start.len() > 1 { 4 } else { length + start.len() } + letters;
        text.push_str(start);
        text.push_str(word);
    }
    text
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
