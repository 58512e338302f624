//! Who of those that want a series gets one: pure but for the times of the last exchanges.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::model::{Labels, ProcessCounters, ProcessKey};

use super::member::Member;

/// Series that change their owner while it lives, at most in [`SWAP_WINDOW`]: each costs
/// Prometheus a new series.
const SWAPS: usize = 5;
const SWAP_WINDOW: Duration = Duration::from_mins(1);

/// The processes of one series, as far as its slot is concerned.
#[derive(Debug, Default)]
pub struct Candidate {
    /// One of them is what the page is about.
    pub counts: bool,
    pub shown: bool,
    /// Those that have not ended.
    living: usize,
    /// Those of which there is something new to show.
    with_news: usize,
    rank: Rank,
    /// When the youngest of them started: decides between equals.
    youngest_start_ns: u64,
}

/// Failing ones first, then by bytes held, then by time spent registering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Rank {
    failing: bool,
    bytes: u64,
    registration_ns: u64,
}

impl Rank {
    /// Whether `other` ranks under half of this.
    fn is_over_twice(&self, other: &Self) -> bool {
        if self.failing != other.failing {
            return self.failing;
        }
        if self.bytes > 0 || other.bytes > 0 {
            return other.bytes < self.bytes.div_ceil(2);
        }
        other.registration_ns < self.registration_ns.div_ceil(2)
    }
}

impl Candidate {
    pub fn add(&mut self, key: &ProcessKey, member: &Member, now: Duration, linger: Duration) {
        let lives = member.ended.is_none();
        let has_news = member.news != ProcessCounters::default();
        self.counts |= member.counts(now, linger);
        self.living += usize::from(lives);
        self.with_news += usize::from(has_news);
        // The dead are shown as long as nobody needs their slot.
        self.rank.failing |= lives && member.failing(now, linger);
        self.rank.bytes = self.rank.bytes.saturating_add(member.held_bytes());
        self.rank.registration_ns =
            self.rank.registration_ns.saturating_add(member.registration_ns());
        self.youngest_start_ns = self.youngest_start_ns.max(key.start_ns);
    }
}

#[derive(Debug, Default)]
pub struct Slots {
    swaps: VecDeque<Duration>,
}

impl Slots {
    /// Which series are to be shown, or not any more, that were not, or were.
    pub fn assign(
        &mut self,
        candidates: &HashMap<Labels, Candidate>,
        max: usize,
        now: Duration,
    ) -> Vec<(Labels, bool)> {
        let mut waiting: Vec<_> = candidates
            .iter()
            .filter(|(_, candidate)| !candidate.shown && candidate.counts)
            .filter(|(_, candidate)| candidate.living + candidate.with_news > 0)
            .collect();
        let by_rank = |(labels, candidate): &(&Labels, &Candidate)| {
            Reverse((candidate.rank, candidate.youngest_start_ns, Labels::clone(labels)))
        };
        waiting.sort_by_cached_key(by_rank);
        let mut owners: Vec<_> =
            candidates.iter().filter(|(_, candidate)| candidate.shown).collect();
        owners.sort_by_cached_key(by_rank);

        let mut changes = Vec::new();
        let mut waiting = waiting.into_iter();
        for (labels, _) in waiting.by_ref().take(max.saturating_sub(owners.len())) {
            changes.push((Labels::clone(labels), true));
        }
        self.swaps.retain(|at| now.saturating_sub(*at) < SWAP_WINDOW);
        // The best of the living who wait against the least of those who own.
        for (labels, candidate) in waiting.filter(|(_, candidate)| candidate.living > 0) {
            let Some((least, owner)) = owners.last() else { break };
            if self.swaps.len() >= SWAPS || !candidate.rank.is_over_twice(&owner.rank) {
                break;
            }
            self.swaps.push_back(now);
            changes.push((Labels::clone(least), false));
            changes.push((Labels::clone(labels), true));
            owners.pop();
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(failing: bool, bytes: u64, registration_ns: u64) -> Rank {
        Rank { failing, bytes, registration_ns }
    }

    #[test]
    fn failing_weighs_more_than_bytes_and_bytes_more_than_time() {
        assert!(rank(true, 0, 0) > rank(false, u64::MAX, 9));
        assert!(rank(false, 2, 0) > rank(false, 1, 9));
        assert!(rank(true, 0, 0).is_over_twice(&rank(false, u64::MAX, 9)));
        assert!(!rank(false, u64::MAX, 9).is_over_twice(&rank(true, 0, 0)));
    }

    #[test]
    fn under_half_is_less_than_half() {
        assert!(rank(false, 9, 0).is_over_twice(&rank(false, 4, 0)));
        assert!(!rank(false, 8, 0).is_over_twice(&rank(false, 4, 0)));
        assert!(rank(false, 0, 9).is_over_twice(&rank(false, 0, 4)));
        assert!(!rank(false, 0, 8).is_over_twice(&rank(false, 0, 4)));
        assert!(!rank(false, 0, 9).is_over_twice(&rank(false, 1, 0)));
        assert!(!rank(false, 0, 0).is_over_twice(&rank(false, 0, 0)));
    }
}
