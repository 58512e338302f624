//! A live pin, and what comes of comparing all of them with what RDMA netlink lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::process::ProcessKey;
use super::snapshot::{MrKind, PinUse};

/// A umem that lives, as the kernel's programs saw it made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// Address of the umem in the kernel; another may have it later.
    pub umem: u64,
    /// Start of the call that made it, on the kernel's monotonic clock.
    pub born_ns: u64,
    /// Who made it; None where its row could not be made.
    pub owner: Option<ProcessKey>,
    pub device: Arc<str>,
    pub kind: MrKind,
    pub pin_use: PinUse,
    pub made_by: MadeBy,
    /// The call around it has succeeded.
    pub committed: bool,
    /// As they were asked for.
    pub address: u64,
    pub length_bytes: u64,
    /// Whole pages of the host.
    pub pinned_bytes: u64,
}

impl Pin {
    /// Tells pins apart that had one address at different times.
    #[must_use]
    pub fn id(&self) -> (u64, u64) {
        (self.umem, self.born_ns)
    }
}

/// What of the call around a pin matters to who compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MadeBy {
    Registration,
    /// The MR is older than the pin.
    Reregistration,
    /// A call whose MRs have no length in the kernel's list, but of the drivers that set it.
    Lengthless,
}

/// An MR that was there before registrations were watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundMr {
    /// None of an MR of all memory, and 0 where the kernel does not tell it.
    pub length: Option<u64>,
    pub kind: MrKind,
    pub owner: FoundOwner,
}

/// Whose an MR is that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundOwner {
    /// Its start is rounded down to a clock tick, as /proc tells it.
    Process(ProcessKey),
    /// All who made it, its PD and its context have ended.
    Gone,
    /// Not known, or not all of the way to it.
    Unknown,
}

impl FoundOwner {
    /// The process by its pid and start in clock ticks, which is all that is known of it; None of
    /// nobody who is known.
    #[must_use]
    pub fn tick(&self) -> Option<(u32, u64)> {
        match self {
            Self::Process(key) => Some(key.tick()),
            Self::Gone | Self::Unknown => None,
        }
    }
}

/// What was found of one device and owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub device: String,
    pub kind: MrKind,
    pub owner: FoundOwner,
    pub count: u64,
    /// Lengths, as far as the kernel tells them.
    pub bytes: u64,
    /// The same in whole pages: a page less where a buffer begins within one and ends within another.
    pub pinned_bytes: u64,
    pub largest_bytes: u64,
}

/// What the latest comparison of one device came to.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Account {
    /// MRs whose process has ended, and their lengths. None where ends can't be told.
    pub orphaned: Option<u64>,
    pub orphaned_bytes: Option<u64>,
    /// What the kernel lists beyond what is counted, by lengths, of MRs that lived through the last
    /// two comparisons. None where its list was not whole.
    pub beyond_ledger_bytes: Option<i64>,
    /// The same of the driver's own count of pages. None where the driver has none.
    pub reg_pages_bytes: Option<i64>,
    /// When, in seconds since the epoch.
    pub at: f64,
}

/// The latest comparison of all devices.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Accounts {
    pub devices: BTreeMap<String, Account>,
    pub found: Vec<Found>,
    /// What can't be compared, and why.
    pub troubles: Vec<String>,
}
