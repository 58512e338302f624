//! When the next dump may be, by what the last one cost: a dump of MRs costs the kernel the square
//! of their number, and keeps registrations out while it counts. Pure; the time is told.

use std::time::Duration;

/// Hundredths of all time that dumps may take. Our choice: what nobody notices, and 100,000 MRs can
/// still be read every few minutes.
pub const PERCENT: u32 = 1;

/// Times are those since any instant that stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    percent: u32,
    least: Duration,
    next: Option<Duration>,
}

impl Pace {
    /// Dumps that begin at least so long after the last one ended, and take no more than so many
    /// hundredths of the time (1 to 100).
    #[must_use]
    pub fn new(least: Duration, percent: u32) -> Self {
        Self { percent: percent.clamp(1, 100), least, next: None }
    }

    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// When the next may be; None: at once.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        self.next
    }

    /// A dump is over, whatever came of it.
    pub fn spent(&mut self, begun: Duration, ended: Duration) {
        let cost = ended.saturating_sub(begun);
        let rest = cost.saturating_mul(100 - self.percent) / self.percent;
        self.next = Some(ended.saturating_add(rest.max(self.least)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_first_is_due_at_once_and_the_next_after_a_rest() {
        let mut pace = Pace::new(ms(1000), PERCENT);
        assert!(pace.is_due(Duration::ZERO) && pace.next().is_none());
        pace.spent(ms(5000), ms(5100));
        assert_eq!(pace.next(), Some(ms(5100 + 9900)));
        assert!(!pace.is_due(ms(14_999)) && pace.is_due(ms(15_000)));
    }

    #[test]
    fn a_cheap_dump_still_waits_the_least() {
        let mut pace = Pace::new(ms(1000), PERCENT);
        pace.spent(ms(0), ms(1));
        assert_eq!(pace.next(), Some(ms(1001)));
    }

    #[test]
    fn what_makes_no_sense_neither_overflows_nor_stops_it_for_good() {
        let mut pace = Pace::new(ms(1000), 0);
        pace.spent(ms(10), ms(5));
        assert_eq!(pace.next(), Some(ms(1005)));
        pace.spent(ms(0), Duration::MAX);
        assert_eq!(pace.next(), Some(Duration::MAX));
        let mut all = Pace::new(ms(0), 1000);
        all.spent(ms(0), ms(7));
        assert!(all.is_due(ms(7)));
    }

    proptest! {
        #[test]
        fn dumps_never_take_more_than_their_share(
            costs in prop::collection::vec(0_u64..100_000, 1..50),
            late in 0_u64..1000,
            percent in 1_u32..=100,
        ) {
            let mut pace = Pace::new(ms(1), percent);
            let (mut now, mut spent) = (ms(0), ms(0));
            for cost in costs {
                now = now.max(pace.next().unwrap_or_default()) + ms(late);
                prop_assert!(pace.is_due(now));
                pace.spent(now, now + ms(cost));
                spent += ms(cost);
                now += ms(cost);
            }
            let all = pace.next().unwrap();
            // A division of nanoseconds rounds down once a dump, of which there are 50 at most.
            let room = Duration::from_micros(5);
            prop_assert!(spent * 100 <= all * percent + room);
        }
    }
}
