//! TLB misses of the CPU in a walk over the memory, by a counter of this thread in user mode. The
//! NIC has translations of its own, which nobody counts here.

use mrscope::host::perf::{Event, Group, Reading, Target};
use rustix::thread::gettid;

use crate::guard;
use crate::memory::{Buffer, WORD};
use crate::walk::{STEP, walk, warm_up};

/// PERF_COUNT_HW_CACHE_DTLB, _OP_READ, _RESULT_MISS.
const LOAD_MISS: Event = Event::cache(3, 0, 1);

/// What a walk came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    pub accesses: Option<u64>,
    pub misses: Option<u64>,
    /// Why there are no counts although they were asked for.
    pub unavailable: Option<String>,
}

impl Counted {
    fn none(why: impl Into<String>) -> Self {
        Self { unavailable: Some(why.into()), ..Self::default() }
    }
}

/// Counts in a walk over memory that has its pages.
pub fn count(buffer: &Buffer) -> Counted {
    guard::at("walk");
    let steps = buffer.bytes() / STEP;
    if steps == 0 {
        return Counted::none(format!("the MR is smaller than {STEP} bytes"));
    }
    let target = Target::Thread(gettid().as_raw_nonzero().get().unsigned_abs());
    let group = match Group::open(target, &[LOAD_MISS]) {
        Ok(group) => group,
        Err(refused) => return Counted::none(refused.why.to_string()),
    };
    let read = |byte: usize| {
        buffer.read(byte / WORD);
    };
    warm_up(steps, read);
    let before = group.read();
    let accesses = walk(steps, read);
    match (before, group.read()) {
        (Ok(Some(before)), Ok(Some(after))) => between(accesses, &before, &after),
        (Err(error), _) | (_, Err(error)) => Counted::none(format!("they can't be read: {error}")),
        _ => Counted::none("the counter is dead"),
    }
}

/// A count of a part of the time would have to be guessed up to the whole: then there is none.
fn between(accesses: u64, before: &Reading, after: &Reading) -> Counted {
    let enabled = after.enabled_ns.saturating_sub(before.enabled_ns);
    let running = after.running_ns.saturating_sub(before.running_ns);
    if enabled == 0 || running < enabled {
        let percent = running * 100 / enabled.max(1);
        return Counted::none(format!(
            "the counter ran {percent} % of the time, as others have the CPU's counters too"
        ));
    }
    let count = |reading: &Reading| reading.counts.first().copied();
    let misses = count(after).zip(count(before)).map(|(after, before)| after.wrapping_sub(before));
    Counted { accesses: misses.map(|_| accesses), misses, unavailable: None }
}

#[cfg(test)]
mod tests {
    use mrscope::probe::Pages;

    use super::*;

    fn reading(enabled_ns: u64, running_ns: u64, count: u64) -> Reading {
        Reading { enabled_ns, running_ns, counts: vec![count] }
    }

    #[test]
    fn what_was_not_counted_all_the_time_is_not_told() {
        let before = reading(100, 90, 7);
        let whole = between(1000, &before, &reading(300, 290, 57));
        assert_eq!((whole.accesses, whole.misses), (Some(1000), Some(50)));
        assert_eq!(whole.unavailable, None);
        for (after, percent) in
            [(reading(300, 289, 57), "99 %"), (reading(300, 90, 7), "0 %"), (before.clone(), "0 %")]
        {
            let none = between(1000, &before, &after);
            assert_eq!((none.accesses, none.misses), (None, None));
            assert!(none.unavailable.unwrap().contains(percent), "{after:?}");
        }
    }

    #[test]
    fn counts_are_there_or_the_reason_is() {
        let buffer = Buffer::map(Pages::Base, 1 << 20, true, 2 << 20).unwrap();
        let counted = count(&buffer);
        assert_eq!(counted.accesses.is_some(), counted.unavailable.is_none(), "{counted:?}");
        assert_eq!(counted.accesses.is_some(), counted.misses.is_some(), "{counted:?}");
        let small = Buffer::map(Pages::Base, 4080, true, 2 << 20).unwrap();
        assert!(count(&small).unavailable.unwrap().contains("smaller than 4096 bytes"));
    }
}
