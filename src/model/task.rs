//! A process as the kernel's list of tasks shows it: what its memory costs the host.

use super::process::{ProcessKey, text};

/// A process with memory of its own, or one that is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    pub key: ProcessKey,
    /// Name of the leader, up to the first NUL; any bytes.
    pub comm: [u8; 16],
    /// None once its memory is gone: it ends, or is dead and waits for its parent.
    pub memory: Option<Memory>,
}

impl Task {
    #[must_use]
    pub fn name(&self) -> String {
        text(&self.comm)
    }
}

/// What the memory of one process, or of several together, costs. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// VmPin: pages that RDMA and others pinned.
    pub pinned_bytes: u64,
    /// VmLck: pages locked by mlock and its kin.
    pub locked_bytes: u64,
    /// Hugepages of hugetlbfs; None where the kernel has none.
    pub hugetlb_bytes: Option<u64>,
    pub page_table_bytes: u64,
    /// RLIMIT_MEMLOCK, of which the kernel's word [`Memory::NO_LIMIT`] is none. None where nobody
    /// asked: by /proc that is done for those alone that hold something.
    pub memlock_limit_bytes: Option<u64>,
    /// Whether memory mapped later will be locked (mlockall with MCL_FUTURE); None where nothing
    /// tells.
    pub locks_future: Option<bool>,
    /// Whether CAP_IPC_LOCK makes the limit void; None where nothing tells.
    pub exempt: Option<bool>,
}

impl Memory {
    /// RLIM_INFINITY
    pub const NO_LIMIT: u64 = u64::MAX;

    /// Sums; of the limits the tightest, whether any locks what it maps later, and whether no limit
    /// holds for any.
    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        let either = |a: Option<u64>, b: Option<u64>, join: fn(u64, u64) -> u64| match (a, b) {
            (Some(a), Some(b)) => Some(join(a, b)),
            (one, other) => one.or(other),
        };
        // One that is so, or not so, may decide over those of which nothing is known.
        let decided = |flags: [Option<bool>; 2], by: bool| match flags {
            [Some(flag), _] | [_, Some(flag)] if flag == by => Some(by),
            [Some(_), Some(_)] => Some(!by),
            _ => None,
        };
        Self {
            pinned_bytes: self.pinned_bytes.saturating_add(more.pinned_bytes),
            locked_bytes: self.locked_bytes.saturating_add(more.locked_bytes),
            hugetlb_bytes: either(self.hugetlb_bytes, more.hugetlb_bytes, u64::saturating_add),
            page_table_bytes: self.page_table_bytes.saturating_add(more.page_table_bytes),
            memlock_limit_bytes: either(
                self.memlock_limit_bytes,
                more.memlock_limit_bytes,
                u64::min,
            ),
            locks_future: decided([self.locks_future, more.locks_future], true),
            exempt: decided([self.exempt, more.exempt], false),
        }
    }

    #[must_use]
    pub fn holds(&self) -> bool {
        self.pinned_bytes > 0 || self.locked_bytes > 0
    }
}

/// One reading of all processes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tasks {
    /// One row a process, in no order.
    pub rows: Vec<Task>,
    /// Start times are those of the kernel to the nanosecond, and of processes that share one memory
    /// (vfork) only the oldest has its figures. Else times are rounded down to clock ticks of 10 ms,
    /// and all that share a memory show its figures.
    pub exact: bool,
    /// Every process of the host is here; else only those of one pid namespace, or those that the
    /// reader may see.
    pub whole: bool,
    /// Why one is not here that could be seen, if that is so: then it is not whole either.
    pub unread: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_exempt_if_all_are_and_locks_if_one_does() {
        for (one, other, exempt, locks) in [
            (Some(true), Some(true), Some(true), Some(true)),
            (Some(true), Some(false), Some(false), Some(true)),
            (Some(false), Some(false), Some(false), Some(false)),
            // What is not known of one may be known of both.
            (Some(true), None, None, Some(true)),
            (Some(false), None, Some(false), None),
            (None, None, None, None),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let of = |flag| Memory { exempt: flag, locks_future: flag, ..Memory::default() };
                let both = of(one).plus(&of(other));
                assert_eq!((both.exempt, both.locks_future), (exempt, locks), "{one:?} {other:?}");
            }
        }
    }
}
