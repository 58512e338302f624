//! A walk over memory that costs translations: one word of every 4 KiB, in an order that jumps from
//! page to page. Stands alone, so that other programs can be built with this very file.

use std::time::{Duration, Instant};

/// Of the smallest pages that there are.
pub const STEP: usize = 4096;

const LINE: usize = 64;
const MOST_ACCESSES: u64 = 1 << 20;
const MOST_TIME: Duration = Duration::from_millis(50);
/// Between looks at the clock.
const STRETCH: u64 = 1 << 14;

/// Steps of a range, each once before any comes again: a TLB that holds fewer misses them all.
#[derive(Debug, Clone)]
pub struct Order {
    steps: usize,
    mask: usize,
    at: usize,
}

impl Order {
    /// Of at least one step.
    pub fn of(steps: usize) -> Self {
        Self { steps, mask: steps.next_power_of_two() - 1, at: 0 }
    }

    pub fn next(&mut self) -> usize {
        // A full period modulo any power of two: the factor is 1 modulo 4, the summand odd.
        const FACTOR: usize = 0x5851_F42D;
        const SUMMAND: usize = 0x1405_7B7F;
        loop {
            self.at = self.at.wrapping_mul(FACTOR).wrapping_add(SUMMAND) & self.mask;
            if self.at < self.steps {
                return self.at;
            }
        }
    }
}

/// Where a step's word lies, in bytes: not always in the same line of a page, as caches hold only a
/// few of those.
fn word_of(step: usize) -> usize {
    step * STEP + step.wrapping_mul(0x9E37) / 16 % (STEP / LINE) * LINE
}

/// Reads each word once in turn, so that whatever comes with a first touch is over.
pub fn warm_up(steps: usize, mut read: impl FnMut(usize)) {
    (0..steps).for_each(|step| read(word_of(step)));
}

/// Reads words until it is enough; how many.
pub fn walk(steps: usize, mut read: impl FnMut(usize)) -> u64 {
    let mut order = Order::of(steps);
    let begun = Instant::now();
    let mut accesses = 0;
    while accesses < MOST_ACCESSES && begun.elapsed() < MOST_TIME {
        for _ in 0..STRETCH {
            read(word_of(order.next()));
        }
        accesses += STRETCH;
    }
    accesses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_comes_once_before_any_comes_again() {
        for steps in [1, 2, 3, 4, 5, 1000, 1024, 16_384, 20_000] {
            let mut order = Order::of(steps);
            for round in 0..3 {
                let mut seen = vec![false; steps];
                for _ in 0..steps {
                    let step = order.next();
                    assert!(!seen[step], "{step} of {steps} came twice in round {round}");
                    seen[step] = true;
                }
            }
        }
    }

    #[test]
    fn few_steps_lead_to_a_neighbour() {
        let mut order = Order::of(16_384);
        let steps: Vec<_> = (0..16_384).map(|_| order.next()).collect();
        let near = steps.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) <= 512).count();
        // By chance one in 16 is within a hugepage of the last.
        assert!(near < 16_384 / 12, "{near}");
    }

    #[test]
    fn a_word_lies_in_its_step_and_lines_are_used_alike() {
        let mut lines = [0; STEP / LINE];
        for step in 0..16_384 {
            let word = word_of(step);
            assert_eq!((word / STEP, word % LINE), (step, 0));
            lines[word % STEP / LINE] += 1;
        }
        assert!(lines.iter().all(|count| (128..=512).contains(count)), "{lines:?}");
    }

    #[test]
    fn a_walk_counts_what_it_reads_and_ends() {
        let mut reads = 0;
        assert_eq!(walk(100, |_| reads += 1), reads);
        assert!((STRETCH..=MOST_ACCESSES).contains(&reads), "{reads}");
        let mut warm = 0;
        warm_up(100, |_| warm += 1);
        assert_eq!(warm, 100);
    }
}
