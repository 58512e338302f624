//! The writes themselves: from the first half of a region to the second, many at once or one by
//! one, and the comparison of what arrived.

use std::time::{Duration, Instant};

use crate::failure::{self, ProbeError};
use crate::gid::Gid;
use crate::guard;
use crate::memory::WORD;
use crate::pattern::{CLEAR, Pattern};
use crate::sysfs::Sysfs;
use crate::verbs::{Pair, Region, Span};

/// How often it is looked whether the device is still there.
const LOOK: Duration = Duration::from_millis(10);

/// Without a completion for so long, the port is looked at: soft RoCE may wait for ever for an answer
/// that was lost with it.
const STALL: Duration = Duration::from_millis(500);

/// Looks in vain after which others may have the CPU: those that do the work where the device is
/// software.
const PATIENCE: u32 = 1000;

/// The halves of a region, in slots of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Halves {
    message: usize,
    /// Where the second half begins.
    half: usize,
}

impl Halves {
    /// Room for at least one message in each is the caller's part.
    pub fn of(region_bytes: usize, message: usize) -> Self {
        Self { message, half: region_bytes / 2 / WORD * WORD }
    }

    pub fn slots(self) -> usize {
        (self.half / self.message).max(1)
    }

    /// A write goes to the place in the second half that its source has in the first.
    pub fn span(self, write: u64) -> Span {
        let from = (write % self.slots() as u64) as usize * self.message;
        Span { from, to: self.half + from, bytes: self.message }
    }
}

/// What a number of writes took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    pub writes: u64,
    pub elapsed: Duration,
}

/// A region with its pair, on a device that may go away.
#[derive(Debug)]
pub struct Lane<'a> {
    pub pair: &'a Pair,
    pub region: &'a Region<'a>,
    pub sysfs: &'a Sysfs,
    /// Which one the writes go to.
    pub gid: Option<&'a Gid>,
}

impl Lane<'_> {
    /// `count` writes with `depth` outstanding; after `limit` no more are begun.
    pub fn stream(
        &self,
        halves: Halves,
        count: u64,
        depth: u64,
        limit: Duration,
    ) -> Result<Stretch, ProbeError> {
        guard::at("ibv_poll_cq");
        let (mut posted, mut done) = (0, 0);
        let mut wanted = count;
        let mut watch = Watch::begin();
        while done < wanted {
            while posted < wanted && posted - done < depth {
                self.pair.post(self.region, halves.span(posted))?;
                posted += 1;
            }
            let taken = self.pair.take(done)?;
            done += taken;
            if watch.look(taken, done, self)? >= limit {
                wanted = posted;
            }
        }
        Ok(Stretch { writes: done, elapsed: watch.begun.elapsed() })
    }

    /// How long each of up to `count` writes took, one after the other; at least one.
    pub fn singly(
        &self,
        halves: Halves,
        count: u64,
        limit: Duration,
    ) -> Result<Vec<Duration>, ProbeError> {
        guard::at("ibv_poll_cq");
        let mut took = Vec::with_capacity(count as usize);
        let mut watch = Watch::begin();
        for write in 0..count {
            let begun = Instant::now();
            self.pair.post(self.region, halves.span(write))?;
            while self.pair.take(write)? == 0 {
                watch.look(0, write, self)?;
            }
            took.push(begun.elapsed());
            if watch.look(1, write + 1, self)? >= limit {
                break;
            }
        }
        Ok(took)
    }

    /// Fills the first half for this run.
    pub fn fill(&self, halves: Halves, pattern: Pattern) {
        guard::at("fill");
        for index in 0..halves.half / WORD {
            self.region.buffer().write(index, pattern.word(index));
        }
    }

    /// Clears the second.
    pub fn clear(&self, halves: Halves) {
        guard::at("clear");
        for index in 0..halves.half / WORD {
            self.region.buffer().write(halves.half / WORD + index, CLEAR);
        }
    }

    /// What arrived is what was sent, and nothing else did.
    pub fn compare(&self, halves: Halves, writes: u64, pattern: Pattern) -> Result<(), ProbeError> {
        guard::at("compare");
        let written = writes.min(halves.slots() as u64) as usize * halves.message / WORD;
        let half = halves.half / WORD;
        let buffer = self.region.buffer();
        for index in 0..half {
            let (what, expected) = if index < written {
                ("data that arrived", pattern.word(index))
            } else {
                ("memory that nothing was written to", CLEAR)
            };
            let found = buffer.read(half + index);
            if found != expected {
                return Err(ProbeError::DataMismatch { what, word: index, expected, found });
            }
        }
        Ok(())
    }
}

/// The time of a loop that polls.
struct Watch {
    begun: Instant,
    looked: Duration,
    /// The last completion, or the last look at the port.
    moved: Duration,
    in_vain: u32,
}

impl Watch {
    fn begin() -> Self {
        Self { begun: Instant::now(), looked: Duration::ZERO, moved: Duration::ZERO, in_vain: 0 }
    }

    /// The time since the beginning, after `taken` more completions of `done`.
    fn look(&mut self, taken: u64, done: u64, lane: &Lane<'_>) -> Result<Duration, ProbeError> {
        let now = self.begun.elapsed();
        if taken > 0 {
            self.in_vain = 0;
            self.moved = now;
        } else {
            self.in_vain += 1;
            if self.in_vain >= PATIENCE {
                self.in_vain = 0;
                std::thread::yield_now();
            }
        }
        // Some drivers can't take a device from its users: then it goes when they let go.
        if now.saturating_sub(self.looked) >= LOOK {
            self.looked = now;
            if !lane.sysfs.has_device() {
                return Err(ProbeError::Gone { done });
            }
        }
        if now.saturating_sub(self.moved) >= STALL {
            self.moved = now;
            if failure::lost_path(lane.sysfs, lane.gid).is_some() {
                return Err(ProbeError::Stalled { done });
            }
        }
        Ok(now)
    }
}

/// The value that so many hundredths of all are not above.
pub fn percentile(sorted: &[Duration], hundredths: usize) -> Duration {
    let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_half_are_written_in_turn_to_their_places() {
        let halves = Halves::of(1000 * WORD + 8, 64);
        assert_eq!((halves.half, halves.slots()), (4000, 62));
        assert_eq!(halves.span(0), Span { from: 0, to: 4000, bytes: 64 });
        assert_eq!(halves.span(61), Span { from: 3904, to: 7904, bytes: 64 });
        assert_eq!(halves.span(62), halves.span(0));
        let whole = Halves::of(128, 64);
        assert_eq!((whole.slots(), whole.span(5)), (1, Span { from: 0, to: 64, bytes: 64 }));
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let of = |count: u64| (1..=count).map(Duration::from_nanos).collect::<Vec<_>>();
        let at = |count, hundredths| percentile(&of(count), hundredths).as_nanos();
        assert_eq!((at(100, 50), at(100, 99)), (50, 99));
        assert_eq!((at(1, 50), at(1, 99)), (1, 1));
        assert_eq!((at(3, 50), at(3, 99)), (2, 3));
        assert_eq!((at(1000, 50), at(1000, 99)), (500, 990));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
