//! How much of the host's memory is really pinned: the union of what is registered, in each address
//! space. Pure.

use std::collections::{BTreeMap, HashMap};

use crate::model::{Found, MrKind, Pin};

/// A process as /proc tells it: what was found is known by that alone.
pub type Tick = (u32, u64);

/// VmPin of processes beyond what they were seen to pin.
pub type Room = HashMap<Tick, u64>;

/// Bytes in whole pages, each page once, however many MRs and queues it is in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Distinct {
    pub of_process: BTreeMap<Tick, u64>,
    /// Of all processes, and of pins whose process is not known.
    pub bytes: u64,
}

impl Distinct {
    /// Only what is pinned of the host: neither peer memory nor dmabufs.
    ///
    /// Where MRs lie that were found is not told. One buffer is mostly registered on each device
    /// alike, so that the device with most of them stands for all; and no more than there is `room`
    /// for in the VmPin of its process, where that is known: they may be memory of a GPU.
    #[must_use]
    pub fn of(pins: &[Pin], found: &[Found], room: &Room, page_bytes: u64) -> Self {
        let mut all = Self::default();
        let mut ranges: HashMap<Tick, Vec<(u64, u64)>> = HashMap::new();
        for pin in pins.iter().filter(|pin| pin.kind == MrKind::Host && pin.committed) {
            let begin = pin.address / page_bytes * page_bytes;
            let end = begin.saturating_add(pin.pinned_bytes);
            match &pin.owner {
                Some(owner) => ranges.entry(owner.tick()).or_default().push((begin, end)),
                // Whose address space it is nobody knows.
                None => all.add(None, pin.pinned_bytes),
            }
        }
        for (owner, ranges) in ranges {
            all.add(Some(owner), union(ranges));
        }
        for (owner, bytes) in largest_of_devices(found) {
            let room = owner.and_then(|owner| room.get(&owner)).copied();
            all.add(owner, bytes.min(room.unwrap_or(u64::MAX)));
        }
        all
    }

    fn add(&mut self, owner: Option<Tick>, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(owner) = owner {
            let of_process = self.of_process.entry(owner).or_default();
            *of_process = of_process.saturating_add(bytes);
        }
    }
}

/// Bytes that lie in at least one of the ranges.
fn union(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let (mut bytes, mut reached) = (0, 0);
    for (begin, end) in ranges {
        bytes += end.saturating_sub(begin.max(reached));
        reached = reached.max(end);
    }
    bytes
}

fn largest_of_devices(found: &[Found]) -> BTreeMap<Option<Tick>, u64> {
    let mut of_device: BTreeMap<(Option<Tick>, &str), u64> = BTreeMap::new();
    for some in found.iter().filter(|some| some.kind == MrKind::Host) {
        *of_device.entry((some.owner.tick(), &some.device)).or_default() += some.pinned_bytes;
    }
    let mut largest: BTreeMap<Option<Tick>, u64> = BTreeMap::new();
    for ((owner, _), bytes) in of_device {
        let most = largest.entry(owner).or_default();
        *most = bytes.max(*most);
    }
    largest
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::model::{FoundOwner, MadeBy, PinUse, ProcessKey};

    const PAGE: u64 = 4096;
    const ONE: ProcessKey = ProcessKey { tgid: 7, start_ns: 12_345_678 };
    const OTHER: ProcessKey = ProcessKey { tgid: 8, start_ns: 1 };

    fn pin(owner: ProcessKey, device: &str, address: u64, length_bytes: u64) -> Pin {
        let end = (address + length_bytes).next_multiple_of(PAGE);
        Pin {
            umem: address,
            born_ns: 1,
            owner: Some(owner),
            device: device.into(),
            kind: MrKind::Host,
            pin_use: PinUse::Mr,
            made_by: MadeBy::Registration,
            committed: true,
            address,
            length_bytes,
            pinned_bytes: end - address / PAGE * PAGE,
        }
    }

    fn of(pins: &[Pin]) -> Vec<(Tick, u64)> {
        let distinct = Distinct::of(pins, &[], &Room::new(), PAGE);
        assert_eq!(distinct.bytes, distinct.of_process.values().sum::<u64>());
        distinct.of_process.into_iter().collect()
    }

    #[test]
    fn one_buffer_on_four_devices_is_pinned_once() {
        let on = |device| pin(ONE, device, 1 << 30, 64 << 20);
        assert_eq!(of(&["a", "b", "c", "d"].map(on)), [(ONE.tick(), 64 << 20)]);
    }

    #[test]
    fn what_overlaps_counts_once_and_what_touches_adds_up() {
        let base = 1 << 30;
        let pins = [(0, 8192), (4096, 8192), (12_288, 4096), (40_960, 1), (40_970, 4096)]
            .map(|(at, length)| pin(ONE, "a", base + at, length));
        assert_eq!(of(&pins), [(ONE.tick(), 16_384 + 8192)]);
    }

    #[test]
    fn two_processes_have_two_address_spaces() {
        let pins = [pin(ONE, "a", 1 << 30, 8192), pin(OTHER, "a", 1 << 30, 8192)];
        assert_eq!(of(&pins), [(ONE.tick(), 8192), (OTHER.tick(), 8192)]);
    }

    #[test]
    fn what_is_nobody_s_is_the_host_s_all_the_same() {
        // Two address spaces, for all that is known.
        let pins = [4096, 4096].map(|bytes| Pin { owner: None, ..pin(ONE, "a", 1 << 30, bytes) });
        let distinct = Distinct::of(&pins, &[], &Room::new(), PAGE);
        assert_eq!((distinct.bytes, distinct.of_process.len()), (8192, 0));
    }

    #[test]
    fn memory_that_is_not_the_host_s_and_calls_under_way_are_left_out() {
        let other = |kind| Pin { kind, ..pin(ONE, "a", 1 << 30, 8192) };
        let mut pins = [MrKind::Peer, MrKind::Dmabuf, MrKind::Odp].map(other).to_vec();
        pins.push(Pin { committed: false, ..pin(ONE, "a", 1 << 30, 8192) });
        assert_eq!(of(&pins), []);
    }

    #[test]
    fn of_what_was_found_the_device_with_most_stands_for_all() {
        let found = |device: &str, kind, pinned_bytes| Found {
            device: device.to_owned(),
            kind,
            // As /proc tells it.
            owner: FoundOwner::Process(ONE.rounded()),
            count: 1,
            bytes: pinned_bytes,
            pinned_bytes,
            largest_bytes: pinned_bytes,
        };
        let all = [
            found("a", MrKind::Host, 8192),
            found("b", MrKind::Host, 12_288),
            found("b", MrKind::Odp, 1 << 40),
            Found { owner: FoundOwner::Gone, ..found("a", MrKind::Host, 4096) },
        ];
        let pins = [pin(ONE, "a", 1 << 30, 4096)];
        let within = |room: Room| Distinct::of(&pins, &all, &room, PAGE);
        let distinct = within(Room::new());
        assert_eq!(distinct.of_process, BTreeMap::from([(ONE.tick(), 16_384)]));
        assert_eq!(distinct.bytes, 16_384 + 4096);
        // Of a dmabuf nothing is in VmPin.
        let distinct = within(Room::from([(ONE.tick(), 8192)]));
        assert_eq!(distinct.of_process, BTreeMap::from([(ONE.tick(), 12_288)]));
    }

    proptest! {
        #[test]
        fn each_page_counts_once(
            ranges in prop::collection::vec((0..200_u64, 0..30_000_u64), 0..30),
        ) {
            let pins: Vec<Pin> =
                ranges.iter().map(|(page, length)| pin(ONE, "a", page * 1000, *length)).collect();
            let mut pages = HashSet::new();
            for pin in &pins {
                pages.extend(pin.address / PAGE..(pin.address + pin.length_bytes).div_ceil(PAGE));
            }
            let bytes: u64 = of(&pins).iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(bytes, pages.len() as u64 * PAGE);
        }
    }
}
