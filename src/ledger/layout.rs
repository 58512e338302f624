//! Where the memory of live MRs lies, added up by process and by device. Pure.

use std::collections::{BTreeMap, HashMap};

use crate::model::{Found, MrKind, Pin, PinUse, Place, Placed, Placement, ProcessKey};

use super::distinct::Tick;

/// How it is known where an MR lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// From its own pages, as it was registered.
    Walked,
    /// From a few of them, later.
    Sampled,
    /// Not at all.
    Unknown,
}

impl Method {
    pub const ALL: [Self; 3] = [Self::Walked, Self::Sampled, Self::Unknown];

    /// The value of the label `method`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Walked => "walked",
            Self::Sampled => "sampled",
            Self::Unknown => "unknown",
        }
    }
}

/// Memory in pieces that lie one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scatter {
    pub entries: u64,
    /// Of the MRs whose entries are known.
    pub bytes: u64,
}

/// What one process, or one device, has registered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holding {
    pub placement: Placement,
    pub scatter: Scatter,
}

impl Holding {
    pub fn merge(&mut self, other: &Self) {
        self.placement.merge(&other.placement);
        self.scatter.entries += other.scatter.entries;
        self.scatter.bytes += other.scatter.bytes;
    }

    fn take(&mut self, mr: &Mr<'_>) {
        let placed = mr.placed.map(|(placed, _)| placed);
        if let Some(placed) = placed {
            self.placement.merge(&placed.placement);
        }
        let known = placed.map(|placed| placed.placement.bytes()).unwrap_or_default();
        self.placement.add(Place::default(), mr.bytes.saturating_sub(known));
        if let Some(entries) = placed.and_then(|placed| placed.scatter_entries) {
            self.scatter.entries += entries;
            self.scatter.bytes += mr.bytes;
        }
    }
}

struct Mr<'a> {
    owner: Option<Tick>,
    device: &'a str,
    /// Whole pages.
    bytes: u64,
    placed: Option<(&'a Placed, Method)>,
}

/// Pinned host memory of all live MRs, in whole pages: neither queues, nor what is paged on demand,
/// nor memory of others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    pub of_process: BTreeMap<Tick, Holding>,
    pub of_device: BTreeMap<String, Holding>,
    /// Of all, also of those whose process is not known.
    pub all: Holding,
    /// Bytes by [`Method::ALL`].
    pub by_method: [u64; Method::ALL.len()],
}

/// Where MRs lie by the address of their umem, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    pub walked: HashMap<u64, Placed>,
    pub sampled: HashMap<u64, Placed>,
}

impl Known {
    /// What is known of the umem that a pin made, and not of one before it at its address.
    #[must_use]
    pub fn of(&self, pin: &Pin) -> Option<(&Placed, Method)> {
        let walked = self.walked.get(&pin.umem).map(|placed| (placed, Method::Walked));
        let walked = walked.filter(|(placed, _)| placed.born_ns == pin.born_ns);
        let sampled = || self.sampled.get(&pin.umem).map(|placed| (placed, Method::Sampled));
        walked.or_else(|| sampled().filter(|(placed, _)| placed.born_ns == pin.born_ns))
    }
}

impl Layout {
    #[must_use]
    pub fn of(pins: &[Pin], known: &Known, found: &[Found]) -> Self {
        let mut all = Self::default();
        for pin in pins.iter().filter(|pin| is_placed(pin)) {
            all.add(&Mr {
                owner: pin.owner.as_ref().map(ProcessKey::tick),
                device: &pin.device,
                bytes: pin.pinned_bytes,
                placed: known.of(pin),
            });
        }
        for some in found.iter().filter(|some| some.kind == MrKind::Host) {
            let (owner, bytes) = (some.owner.tick(), some.pinned_bytes);
            all.add(&Mr { owner, device: &some.device, bytes, placed: None });
        }
        all
    }

    fn add(&mut self, mr: &Mr<'_>) {
        if let Some(owner) = mr.owner {
            self.of_process.entry(owner).or_default().take(mr);
        }
        self.of_device.entry(mr.device.to_owned()).or_default().take(mr);
        self.all.take(mr);
        let mut unknown = mr.bytes;
        if let Some((placed, method)) = mr.placed {
            let told = placed.placement.iter().filter(|(place, _)| *place != Place::default());
            let told = told.map(|(_, bytes)| bytes).sum::<u64>().min(mr.bytes);
            self.by_method[method as usize] += told;
            unknown -= told;
        }
        self.by_method[Method::Unknown as usize] += unknown;
    }
}

/// Whether where it lies is asked at all.
#[must_use]
pub fn is_placed(pin: &Pin) -> bool {
    pin.committed && pin.kind == MrKind::Host && pin.pin_use == PinUse::Mr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FoundOwner, MadeBy};

    const ONE: ProcessKey = ProcessKey { tgid: 7, start_ns: 12_345_678 };
    const BASE: Place = Place { page_bytes: Some(4096), node: Some(0) };
    const HUGE: Place = Place { page_bytes: Some(2 << 20), node: Some(1) };
    const UNKNOWN: Place = Place { page_bytes: None, node: None };

    fn pin(umem: u64, device: &str, pinned_bytes: u64) -> Pin {
        Pin {
            umem,
            born_ns: umem + 1,
            owner: Some(ONE),
            device: device.into(),
            kind: MrKind::Host,
            pin_use: PinUse::Mr,
            made_by: MadeBy::Registration,
            committed: true,
            address: 1 << 30,
            length_bytes: pinned_bytes,
            pinned_bytes,
        }
    }

    fn placed(umem: u64, entries: Option<u64>, places: &[(Place, u64)]) -> Placed {
        let mut placement = Placement::default();
        for (place, bytes) in places {
            placement.add(*place, *bytes);
        }
        Placed { born_ns: umem + 1, scatter_entries: entries, placement }
    }

    fn places(holding: &Holding) -> Vec<(Place, u64)> {
        holding.placement.iter().collect()
    }

    #[test]
    fn what_each_mr_lies_on_adds_up_and_the_rest_is_unknown() {
        let walked = placed(1, Some(3), &[(UNKNOWN, 4096), (BASE, 4096), (HUGE, 4096)]);
        let known = Known {
            walked: HashMap::from([(1, walked)]),
            sampled: HashMap::from([(2, placed(2, None, &[(BASE, 4096)]))]),
        };
        let pins = [pin(1, "a", 12_288), pin(2, "b", 8192), pin(3, "a", 4096)];
        let layout = Layout::of(&pins, &known, &[]);
        let of_a = &layout.of_device["a"];
        assert_eq!(places(of_a), [(UNKNOWN, 8192), (BASE, 4096), (HUGE, 4096)]);
        assert_eq!(of_a.scatter, Scatter { entries: 3, bytes: 12_288 });
        assert_eq!(places(&layout.of_device["b"]), [(UNKNOWN, 4096), (BASE, 4096)]);
        let all = [(UNKNOWN, 12_288), (BASE, 8192), (HUGE, 4096)];
        assert_eq!(places(&layout.of_process[&ONE.tick()]), all);
        assert_eq!((places(&layout.all), layout.by_method), (all.to_vec(), [8192, 4096, 12_288]));
    }

    #[test]
    fn what_was_known_of_the_umem_before_it_is_nothing() {
        let old = Placed { born_ns: 1, ..placed(1, Some(9), &[(BASE, 4096)]) };
        for known in [
            Known { walked: HashMap::from([(1, old.clone())]), ..Known::default() },
            Known { sampled: HashMap::from([(1, old)]), ..Known::default() },
        ] {
            let layout = Layout::of(&[pin(1, "a", 4096)], &known, &[]);
            assert_eq!(places(&layout.all), [(UNKNOWN, 4096)]);
            assert_eq!((layout.all.scatter, layout.by_method), (Scatter::default(), [0, 0, 4096]));
        }
    }

    #[test]
    fn queues_memory_of_others_and_calls_under_way_lie_nowhere() {
        let pins = [
            Pin { pin_use: PinUse::Queue, ..pin(1, "a", 4096) },
            Pin { kind: MrKind::Peer, ..pin(2, "a", 4096) },
            Pin { kind: MrKind::Odp, ..pin(3, "a", 0) },
            Pin { committed: false, ..pin(4, "a", 4096) },
        ];
        assert_eq!(Layout::of(&pins, &Known::default(), &[]), Layout::default());
    }

    #[test]
    fn where_what_was_found_lies_is_not_known() {
        let found = |owner| Found {
            device: "a".to_owned(),
            kind: MrKind::Host,
            owner,
            count: 1,
            bytes: 5000,
            pinned_bytes: 8192,
            largest_bytes: 5000,
        };
        let found = [found(FoundOwner::Process(ONE.rounded())), found(FoundOwner::Gone)];
        let layout = Layout::of(&[], &Known::default(), &found);
        assert_eq!(places(&layout.all), [(UNKNOWN, 16_384)]);
        assert_eq!(places(&layout.of_process[&ONE.tick()]), [(UNKNOWN, 8192)]);
    }
}
