//! On which pages and NUMA node the memory of an MR lies.

use std::time::Duration;

/// Pages of one size on one node. None where that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place {
    /// Size of the pages; of huge pages mapped as such or not.
    pub page_bytes: Option<u64>,
    pub node: Option<u32>,
}

/// Bytes by the place that they lie on, in whole pages; sorted. Mostly one or two places.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement(Vec<(Place, u64)>);

impl Placement {
    pub fn add(&mut self, place: Place, bytes: u64) {
        if bytes == 0 {
            return;
        }
        match self.0.binary_search_by_key(&place, |(place, _)| *place) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(bytes),
            Err(at) => self.0.insert(at, (place, bytes)),
        }
    }

    pub fn merge(&mut self, other: &Self) {
        for (place, bytes) in other.iter() {
            self.add(place, bytes);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Place, u64)> + '_ {
        self.0.iter().copied()
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |all, (_, bytes)| all.saturating_add(*bytes))
    }
}

/// What is known of the pages of one live umem.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placed {
    /// Start of the call that made it, as of its pin: another umem may have the address later.
    pub born_ns: u64,
    /// Runs of pages that lie one after the other: what the NIC has to translate one by one.
    /// None where nothing tells.
    pub scatter_entries: Option<u64>,
    pub placement: Placement,
}

/// How often all live pins are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementOptions {
    /// Between two readings, at least.
    pub interval: Duration,
    /// Whether the pages of MRs are looked at.
    pub pages: bool,
}

impl Default for PlacementOptions {
    fn default() -> Self {
        Self { interval: Duration::from_secs(15), pages: true }
    }
}
