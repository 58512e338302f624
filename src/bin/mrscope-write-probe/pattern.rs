//! What is written, so that data of another run, of another place or from before is noticed.

/// Words that depend on the run and on their place.
#[derive(Debug, Clone, Copy)]
pub struct Pattern {
    run: u64,
}

/// What the destination holds before.
pub const CLEAR: u64 = 0;

impl Pattern {
    /// Of one run: no other has the same, but by chance.
    pub fn of_this_run() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let ns = since.map_or(0, |since| since.as_nanos() as u64);
        Self::new(mix(ns) ^ u64::from(std::process::id()))
    }

    fn new(run: u64) -> Self {
        Self { run }
    }

    /// The word at that place of the source; never that of cleared memory.
    pub fn word(self, index: usize) -> u64 {
        mix(self.run.wrapping_add(index as u64)) | 1
    }
}

/// The finalizer of SplitMix64: neighbours have nothing in common.
fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn places_and_runs_differ_and_none_is_clear() {
        let mut seen = BTreeSet::new();
        for run in [0, 1 << 20, u64::MAX / 2] {
            for index in 0..4096 {
                assert!(seen.insert(Pattern::new(run).word(index)), "{run} {index}");
            }
        }
        assert!(!seen.contains(&CLEAR));
    }
}
