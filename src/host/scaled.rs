//! What a group of counters counted between two readings, also where it took turns with others.

use super::perf::Reading;

/// The last reading of one group, from which the next goes on.
#[derive(Debug, Default)]
pub struct Scaled {
    last: Reading,
    /// The last reading before which the group had run.
    counted: Reading,
}

/// What came since the last reading.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    pub enabled_ns: u64,
    pub running_ns: u64,
    /// Scaled to the time that the group was to count.
    pub counts: Vec<u64>,
}

impl Scaled {
    /// What has come with this reading. A group that did not run since the last one has nothing yet:
    /// the next reading after it ran tells of all that time.
    pub fn advance(&mut self, now: Reading) -> Step {
        let mut step = Step { counts: vec![0; now.counts.len()], ..Step::default() };
        if self.last.counts.is_empty() {
            self.last.counts.resize(now.counts.len(), 0);
            self.counted.counts.resize(now.counts.len(), 0);
        }
        if fell(&self.last, &now) {
            // It has begun anew, and nobody knows from where.
            self.counted = now.clone();
            self.last = now;
            return step;
        }
        step.enabled_ns = now.enabled_ns - self.last.enabled_ns;
        step.running_ns = now.running_ns - self.last.running_ns;
        let enabled = now.enabled_ns - self.counted.enabled_ns;
        let running = now.running_ns - self.counted.running_ns;
        if running > 0 {
            for ((count, now), then) in
                step.counts.iter_mut().zip(&now.counts).zip(&self.counted.counts)
            {
                *count = scale(now - then, enabled, running);
            }
            self.counted = now.clone();
        }
        self.last = now;
        step
    }

    /// Leaves out the time in which the group did not run: it was too long to guess.
    pub fn leave_out(&mut self) {
        self.counted.enabled_ns = self.last.enabled_ns;
    }
}

fn fell(last: &Reading, now: &Reading) -> bool {
    now.enabled_ns < last.enabled_ns
        || now.running_ns < last.running_ns
        || now.counts.len() != last.counts.len()
        || now.counts.iter().zip(&last.counts).any(|(now, last)| now < last)
}

fn scale(count: u64, enabled_ns: u64, running_ns: u64) -> u64 {
    if enabled_ns <= running_ns {
        return count;
    }
    let scaled = u128::from(count) * u128::from(enabled_ns) / u128::from(running_ns);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(enabled_ns: u64, running_ns: u64, counts: &[u64]) -> Reading {
        Reading { enabled_ns, running_ns, counts: counts.to_vec() }
    }

    fn step(enabled_ns: u64, running_ns: u64, counts: &[u64]) -> Step {
        Step { enabled_ns, running_ns, counts: counts.to_vec() }
    }

    #[test]
    fn without_turns_the_count_is_the_count() {
        let mut scaled = Scaled::default();
        assert_eq!(scaled.advance(reading(10, 10, &[7, 3])), step(10, 10, &[7, 3]));
        assert_eq!(scaled.advance(reading(30, 30, &[9, 3])), step(20, 20, &[2, 0]));
    }

    #[test]
    fn what_ran_a_part_of_the_time_is_scaled_by_that_part_alone() {
        let mut scaled = Scaled::default();
        scaled.advance(reading(100, 100, &[1000]));
        // A quarter of the last 100 ns, whatever was before.
        assert_eq!(scaled.advance(reading(200, 125, &[1010])), step(100, 25, &[40]));
    }

    #[test]
    fn time_without_a_turn_is_made_up_for_by_the_next_turn() {
        let mut scaled = Scaled::default();
        scaled.advance(reading(100, 100, &[1000]));
        assert_eq!(scaled.advance(reading(300, 100, &[1000])), step(200, 0, &[0]));
        assert_eq!(scaled.advance(reading(400, 150, &[1010])), step(100, 50, &[60]));
        assert_eq!(scaled.advance(reading(900, 150, &[1010])), step(500, 0, &[0]));
        scaled.leave_out();
        assert_eq!(scaled.advance(reading(1000, 250, &[1020])), step(100, 100, &[10]));
    }

    #[test]
    fn what_falls_begins_anew() {
        for fallen in [reading(90, 90, &[5]), reading(110, 90, &[5]), reading(110, 110, &[4])] {
            let mut scaled = Scaled::default();
            scaled.advance(reading(100, 100, &[5]));
            let Reading { enabled_ns, running_ns, counts } = fallen.clone();
            assert_eq!(scaled.advance(fallen), step(0, 0, &[0]));
            let next = reading(enabled_ns + 10, running_ns + 10, &[counts[0] + 3]);
            assert_eq!(scaled.advance(next), step(10, 10, &[3]));
        }
    }

    #[test]
    fn the_largest_counts_do_not_wrap() {
        assert_eq!(scale(u64::MAX, 3, 1), u64::MAX);
        assert_eq!(scale(1 << 62, 1 << 40, 1 << 39), 1 << 63);
        assert_eq!(scale(u64::MAX, u64::MAX, u64::MAX - 1), u64::MAX);
    }
}
