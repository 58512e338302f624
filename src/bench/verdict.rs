//! What the rows suggest: only differences that are larger than what the rounds of one row differ
//! by, and not small either.

use super::outcome::{Figure, Measured};
use super::plan::Place;
use super::units::{gigabits, ms, short, us};

/// With so many, one pair of equal rows in 126 is apart by chance; with three it is one in ten.
const LEAST_ROUNDS: usize = 5;
/// What is worth a word.
const LEAST_RATIO: f64 = 1.1;
/// The same of TLB misses per access.
const LEAST_SHARE: f64 = 0.01;

/// One line for each pair of rows of which there is something to say.
#[must_use]
pub fn suggest(rows: &[Measured]) -> Vec<String> {
    let most = rows.iter().map(|row| row.rounds).max().unwrap_or_default();
    if most < LEAST_ROUNDS {
        return vec![format!(
            "Nothing: {LEAST_ROUNDS} rounds are the least that show how much a row differs by itself."
        )];
    }
    let told = |row: &&Measured| row.rounds >= LEAST_ROUNDS;
    let rows: Vec<&Measured> = rows.iter().filter(told).collect();
    let mut lines = Vec::new();
    by_pages(&rows, &mut lines);
    by_touch(&rows, &mut lines);
    by_node(&rows, &mut lines);
    if lines.is_empty() {
        lines.push("Nothing: no two rows differ by more than their own rounds do.".to_owned());
    }
    lines
}

/// Each kind of hugepages against base pages, on the first node that has both.
fn by_pages(rows: &[&Measured], lines: &mut Vec<String>) {
    let Some(base) = rows.iter().find(|row| row.touched) else { return };
    let mut seen = vec![base.pages.as_str()];
    for row in rows.iter().filter(|row| row.touched) {
        if seen.contains(&row.pages.as_str()) {
            continue;
        }
        seen.push(&row.pages);
        let same =
            |it: &&&Measured| it.touched && it.pages == base.pages && it.numa_node == row.numa_node;
        let Some(than) = rows.iter().find(same) else { continue };
        line(&format!("{} instead of {}", row.name(), than.pages), than, row, lines);
    }
}

/// Memory that nothing had touched against the same that was.
fn by_touch(rows: &[&Measured], lines: &mut Vec<String>) {
    let mut seen = Vec::new();
    for row in rows.iter().filter(|row| !row.touched) {
        let same =
            |it: &&&Measured| it.touched && it.pages == row.pages && it.numa_node == row.numa_node;
        let touched = rows.iter().find(same);
        if let Some(than) = touched.filter(|_| !seen.contains(&row.pages)) {
            seen.push(row.pages.clone());
            // Its writes go to memory that is like the other's by then.
            let registration = change("registration", ms, "ms", figures(than, row, registration));
            lines
                .extend(registration.map(|it| format!("{} instead of touched: {it}.", row.name())));
        }
    }
}

/// The second node against the first, or the far one against the near.
fn by_node(rows: &[&Measured], lines: &mut Vec<String>) {
    for (at, row) in rows.iter().enumerate().filter(|(_, row)| row.touched) {
        let same = |it: &&&Measured| it.touched && it.pages == row.pages;
        let Some(than) = rows[..at].iter().find(same) else { continue };
        let word = |row: &Measured| {
            let node = row.numa_node.map(|node| node.to_string()).unwrap_or_default();
            match row.place {
                Some(Place::Near) => format!("near node {node}"),
                Some(Place::Far) => format!("far node {node}"),
                None => format!("node {node}"),
            }
        };
        let what = format!("{} on {} instead of {}", row.pages, word(row), word(than));
        line(&what, than, row, lines);
    }
}

fn line(what: &str, than: &Measured, row: &Measured, lines: &mut Vec<String>) {
    let changes = [
        change("registration", ms, "ms", figures(than, row, registration)),
        change("deregistration", ms, "ms", figures(than, row, |row| row.deregistration_ns)),
        misses(figures(than, row, |row| row.tlb_misses_per_access)),
        change(
            "bandwidth",
            gigabits,
            "Gb/s",
            figures(than, row, |it| it.bandwidth_bytes_per_second),
        ),
        change("p50", us, "µs", figures(than, row, |row| row.latency_p50_ns)),
    ];
    let changes: Vec<String> = changes.into_iter().flatten().collect();
    if !changes.is_empty() {
        lines.push(format!("{what}: {}.", changes.join(", ")));
    }
}

fn registration(row: &Measured) -> Option<Figure> {
    row.registration_ns
}

fn figures(
    than: &Measured,
    row: &Measured,
    of: impl Fn(&Measured) -> Option<Figure>,
) -> Option<(Figure, Figure)> {
    of(than).zip(of(row)).filter(|(than, row)| than.most < row.least || row.most < than.least)
}

/// `registration 3.14 times shorter (0.57 instead of 1.79 ms)`.
fn change(
    what: &str,
    scale: fn(f64) -> f64,
    unit: &str,
    figures: Option<(Figure, Figure)>,
) -> Option<String> {
    let (than, row) = figures.map(|(than, row)| (than.median, row.median))?;
    let (small, large) = if row < than { (row, than) } else { (than, row) };
    let ratio = large / small;
    if !ratio.is_finite() || ratio < LEAST_RATIO {
        return None;
    }
    let [less, more] =
        if what == "bandwidth" { ["lower", "higher"] } else { ["shorter", "longer"] };
    let word = if row < than { less } else { more };
    let (row, than) = (short(scale(row)), short(scale(than)));
    Some(format!("{what} {} times {word} ({row} instead of {than} {unit})", short(ratio)))
}

fn misses(figures: Option<(Figure, Figure)>) -> Option<String> {
    let (than, row) = figures.map(|(than, row)| (than.median, row.median))?;
    ((than - row).abs() >= LEAST_SHARE).then(|| {
        format!("TLB misses at {:.1} instead of {:.1} % of accesses", row * 100.0, than * 100.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::Row;
    use crate::probe::Pages;

    fn around(median: f64, spread: f64) -> Option<Figure> {
        Figure::of([median - spread, median, median + spread])
    }

    fn row(pages: Pages, node: u32, touched: bool, registration_ms: f64) -> Measured {
        let row = Row { pages, node: Some(node), place: None, touched };
        Measured {
            rounds: 5,
            registration_ns: around(registration_ms * 1e6, 1e5),
            bandwidth_bytes_per_second: around(125e6, 1e5),
            ..Measured::of(&row, 4096, &[], Vec::new())
        }
    }

    #[test]
    fn pages_touch_and_nodes_are_compared_one_with_another() {
        let mut far = row(Pages::Base, 1, true, 3.0);
        far.place = Some(Place::Far);
        far.bandwidth_bytes_per_second = around(100e6, 1e5);
        let mut near = row(Pages::Base, 0, true, 3.0);
        near.place = Some(Place::Near);
        near.tlb_misses_per_access = around(0.987, 0.001);
        let mut huge = row(Pages::Huge2M, 0, true, 1.0);
        huge.tlb_misses_per_access = around(0.0, 0.0);
        let rows = [near, row(Pages::Base, 0, false, 7.5), far, huge];
        assert_eq!(
            suggest(&rows),
            [
                "2M on node 0 instead of 4K: registration 3.00 times shorter (1.00 instead of 3.00 \
                 ms), TLB misses at 0.0 instead of 98.7 % of accesses.",
                "4K on node 0, untouched instead of touched: registration 2.50 times longer (7.50 \
                 instead of 3.00 ms).",
                "4K on far node 1 instead of near node 0: bandwidth 1.25 times lower (0.80 instead \
                 of 1.00 Gb/s).",
            ]
        );
    }

    #[test]
    fn what_the_rounds_of_a_row_differ_by_says_nothing() {
        let nothing = ["Nothing: no two rows differ by more than their own rounds do."];
        let base = || row(Pages::Base, 0, true, 3.0);
        let mut wide = row(Pages::Huge2M, 0, true, 1.0);
        wide.registration_ns = around(1e6, 2e6);
        assert_eq!(suggest(&[base(), wide]), nothing);
        // Apart, but by a tenth at most.
        let close = row(Pages::Huge2M, 0, true, 2.75);
        assert_eq!(suggest(&[base(), close]), nothing);
        // Others' pages, on another node.
        assert_eq!(suggest(&[base(), row(Pages::Huge2M, 1, true, 1.0)]), nothing);
    }

    #[test]
    fn few_rounds_say_nothing() {
        let mut rows = [row(Pages::Base, 0, true, 3.0), row(Pages::Huge2M, 0, true, 1.0)];
        rows[0].rounds = 4;
        let nothing = ["Nothing: no two rows differ by more than their own rounds do."];
        assert_eq!(suggest(&rows), nothing);
        rows[1].rounds = 4;
        let few = ["Nothing: 5 rounds are the least that show how much a row differs by itself."];
        assert_eq!(suggest(&rows), few);
        assert_eq!(suggest(&[]), few);
    }
}
