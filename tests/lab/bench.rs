//! What mrscope costs, measured in one guest beside the same without it and beside bpftrace; what
//! its lists of MRs cost, beside iproute2; and what its write probe measures, beside perftest.
//! Prints; judges nothing.

mod locks;
mod nldev;
mod parts;
mod placement;
mod registrations;
#[path = "../../examples/beside/rounds.rs"]
mod rounds;
#[path = "../../examples/beside/tracer.rs"]
mod tracer;
mod writes;

use crate::boot::Boot;
use crate::cases::Outcome;

const ROUNDS: usize = 11;

/// Its word, the guest it is measured in, and how.
pub type Table = (&'static str, Boot, fn() -> Outcome);

const TABLES: [Table; 7] = [
    ("registration", Boot::Usual, registrations::run),
    ("memory", Boot::Usual, registrations::memory),
    ("mlock", Boot::Usual, locks::run),
    ("nldev", Boot::Usual, nldev::run),
    ("parts", Boot::Usual, parts::run),
    ("placement", Boot::Usual, placement::run),
    // Both sides of perftest poll at the same time.
    ("writes", Boot::Parallel, writes::run),
];

/// One table, or all.
pub fn tables(word: Option<&str>) -> Result<Vec<Table>, String> {
    let wanted = TABLES.into_iter().filter(|(name, ..)| word.is_none_or(|word| word == *name));
    let wanted: Vec<_> = wanted.collect();
    if wanted.is_empty() {
        let names = TABLES.map(|(name, ..)| name).join(", ");
        return Err(format!("table {:?}: expected one of {names}", word.unwrap_or_default()));
    }
    Ok(wanted)
}

/// Measures it, in its guest.
pub fn run(table: Option<&str>) -> Outcome {
    tables(table)?.into_iter().try_for_each(|(_, _, measure)| measure())
}
