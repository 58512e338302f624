//! How each function is watched on each kernel, as the guests tell it, against docs/kernels.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use crate::cases::Mode;
use crate::matrix::{CANNOT, KERNELS, What};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/kernels.md");

const LINE: &str = "watched: ";

/// One program in one mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    pub mode: Mode,
    pub program: String,
    pub function: String,
    pub attach: String,
}

impl Watched {
    /// As the guest says it to the host.
    pub fn line(&self) -> String {
        let Self { mode, program, function, attach } = self;
        format!("{LINE}{} {program} {function} {attach}", mode.label())
    }

    pub fn of(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(LINE)?.split_whitespace();
        let label = words.next()?;
        let mode = Mode::ALL.into_iter().find(|mode| mode.label() == label)?;
        let mut next = || words.next().map(str::to_owned);
        Some(Self { mode, program: next()?, function: next()?, attach: next()? })
    }
}

/// Functions with their programs, and how those are attached by kernel: "kprobe / fentry".
type Table = BTreeMap<(String, String), BTreeMap<String, String>>;

/// What guests said, by kernel.
pub type Told = BTreeMap<String, Vec<Watched>>;

fn table(told: &Told) -> Table {
    let mut table = Table::new();
    for (kernel, rows) in told {
        for row in rows {
            let place = table.entry((row.program.clone(), row.function.clone())).or_default();
            let cell = place.entry(kernel.clone()).or_default();
            // Rows come in the order of the modes.
            if cell.is_empty() {
                cell.clone_from(&row.attach);
            } else if *cell != row.attach {
                let _ = write!(cell, " / {}", row.attach);
            }
        }
    }
    table
}

/// Cells of the file, for the kernels that were not booted.
fn written(text: &str, booted: &BTreeSet<&str>) -> Table {
    let mut table = Table::new();
    let lines = text.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    for line in lines {
        let cells: Vec<_> = line.split(" | ").map(|cell| cell.trim_matches('`')).collect();
        let Some(([function, program], cells)) = cells.split_first_chunk() else { continue };
        let place = ((*program).to_owned(), (*function).to_owned());
        for (kernel, cell) in KERNELS.iter().zip(cells) {
            if !booted.contains(kernel) {
                let row = table.entry(place.clone()).or_default();
                row.insert((*kernel).to_owned(), (*cell).to_owned());
            }
        }
    }
    table
}

/// The file as it should be.
fn document(table: &Table) -> String {
    let mut text = String::from(HEAD);
    let _ = writeln!(text, "| function | program | {} |", KERNELS.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---|".repeat(KERNELS.len()));
    for ((program, function), cells) in table {
        let cells = KERNELS.map(|kernel| cells.get(kernel).map_or("?", String::as_str));
        let _ = writeln!(text, "| `{function}` | `{program}` | {} |", cells.join(" | "));
    }
    text.push_str(CANNOT_HEAD);
    for row in CANNOT {
        let what = match row.what {
            What::Mode(mode) => format!("`attach: {}`: kprobes are used", mode.label()),
            What::ModuleBtf => "attach to a module's function by its type".to_owned(),
            What::ThreadStorage => "keep with a thread what it is in: a hash does".to_owned(),
            What::Trampoline(symbol) => format!("take a trampoline on `{symbol}` and its kin"),
            What::Function(symbol) => format!("watch `{symbol}`"),
            What::Module => "run the cases that need the lab's own module".to_owned(),
            What::Case(mode, case) => format!("pass `{case}` ({})", mode.label()),
        };
        let _ = writeln!(text, "| {} | {what} | {} |", row.kernels.join(", "), row.why);
    }
    text
}

const HEAD: &str = "# Kernels

Written by the lab from what mrscope says on each kernel; don't edit it: run
`BLESS=1 LAB_KERNELS=all cargo test --release --test lab -- how_each_function_is_watched_is_told`.

Debian's newest kernel of each series, in a guest with soft RoCE. `a / b`: a by default, b with
`--ebpf.attach fentry`; else the same with both. `pending`: no module with the function is loaded,
and a probe waits for it. `none`: that kernel has no such function.

";

const CANNOT_HEAD: &str = "
## What a kernel can't do

| kernel | can't | because |
|---|---|---|
";

/// Compares what was told with the file, or writes it if BLESS=1 says so.
pub fn judge(told: &Told) -> Result<(), String> {
    if told.is_empty() {
        return Ok(());
    }
    let file = fs::read_to_string(FILE).unwrap_or_default();
    let booted = told.keys().map(String::as_str).collect();
    let mut table = table(told);
    for (place, cells) in written(&file, &booted) {
        table.entry(place).or_default().extend(cells);
    }
    let text = document(&table);
    if std::env::var("BLESS").is_ok_and(|bless| bless == "1") {
        return fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"));
    }
    if text == file {
        return Ok(());
    }
    let differ = |a: &str, b: &str| {
        let lines: BTreeSet<_> = b.lines().collect();
        a.lines().filter(|line| !lines.contains(line)).map(str::to_owned).collect::<Vec<_>>()
    };
    Err(format!(
        "docs/kernels.md differs from what mrscope says (BLESS=1 writes it)\n  written: {:#?}\n  seen: {:#?}",
        differ(&file, &text),
        differ(&text, &file)
    ))
}
