//! What mrscope costs, measured in one guest beside the same without it and beside bpftrace; and
//! what its write probe measures, beside perftest.
//! Prints; judges nothing.

mod locks;
mod registrations;
#[path = "../../examples/beside/rounds.rs"]
mod rounds;
#[path = "../../examples/beside/tracer.rs"]
mod tracer;
mod writes;

use crate::cases::Outcome;

const ROUNDS: usize = 11;

type Table = (&'static str, fn() -> Outcome);

const TABLES: [Table; 4] = [
    ("registration", registrations::run),
    ("memory", registrations::memory),
    ("mlock", locks::run),
    ("writes", writes::run),
];

/// Measures one table, or all.
pub fn run(table: Option<&str>) -> Outcome {
    let wanted = TABLES.iter().filter(|(name, _)| table.is_none_or(|table| table == *name));
    let wanted: Vec<_> = wanted.collect();
    if wanted.is_empty() {
        let names = TABLES.map(|(name, _)| name).join(", ");
        return Err(format!("table {:?}: expected one of {names}", table.unwrap_or_default()));
    }
    wanted.into_iter().try_for_each(|(_, measure)| measure())
}
