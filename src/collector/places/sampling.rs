//! MRs that the kernel's programs do not walk: a few pages of each large one are looked at, once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::host::{Lack, Sampled, Sampler};
use crate::ledger::layout::{Known, is_placed};
use crate::model::{Pin, Place, Placed, Placement, ProcessKey};

/// Smaller MRs are not looked at: they are many, and hugepages would change little.
const LARGE_BYTES: u64 = 1 << 20;
/// MRs that are looked at in one reading; the rest follow in the next ones. Each takes some 100 us.
const MOST_LOOKS: usize = 512;

/// What was found of the MRs that live.
pub struct Sampling {
    sampler: Sampler,
    /// By umem and birth.
    seen: HashMap<(u64, u64), Seen>,
}

/// Where one lies, and why a part of that is not known.
#[derive(Default)]
struct Seen {
    placement: Placement,
    lacks: Vec<Lack>,
}

impl Sampling {
    pub fn new(sampler: Sampler) -> Self {
        Self { sampler, seen: HashMap::new() }
    }

    /// Looks at what is new among these, and adds all that it knows of them.
    pub fn add_to(&mut self, known: &mut Known, pins: &[Pin]) {
        let large = |pin: &&Pin| is_placed(pin) && pin.pinned_bytes >= LARGE_BYTES;
        let large = pins.iter().filter(large).filter(|pin| known.of(pin).is_none());
        let large: Vec<(ProcessKey, &Pin)> =
            large.filter_map(|pin| Some((pin.owner?, pin))).collect();
        let living: HashSet<_> = large.iter().map(|(_, pin)| pin.id()).collect();
        self.seen.retain(|id, _| living.contains(id));
        let mut fresh: BTreeMap<ProcessKey, Vec<&Pin>> = BTreeMap::new();
        let unseen = large.iter().filter(|(_, pin)| !self.seen.contains_key(&pin.id()));
        for (owner, pin) in unseen.take(MOST_LOOKS) {
            fresh.entry(*owner).or_default().push(pin);
        }
        for (owner, pins) in fresh {
            self.look(owner, &pins);
        }
        for (_, pin) in large {
            if let Some(seen) = self.seen.get(&pin.id()).filter(|seen| tells(&seen.placement)) {
                let (born_ns, placement) = (pin.born_ns, seen.placement.clone());
                let placed = Placed { born_ns, scatter_entries: None, placement };
                known.sampled.insert(pin.umem, placed);
            }
        }
    }

    /// What nothing tells, and why, of the MRs that live: each reason once.
    pub fn lacks(&self) -> Vec<String> {
        let all = self.seen.values().flat_map(|seen| &seen.lacks).map(Lack::to_string);
        all.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn look(&mut self, owner: ProcessKey, pins: &[&Pin]) {
        let ranges: Vec<(u64, u64)> =
            pins.iter().map(|pin| (pin.address, pin.length_bytes)).collect();
        let Sampled { placements, no_sizes, no_nodes } =
            self.sampler.sample(owner, &ranges).unwrap_or_default();
        let lacks: Vec<Lack> = no_sizes.into_iter().chain(no_nodes).collect();
        // Of a process that has ended there are none.
        let mut placements = placements.into_iter();
        for pin in pins {
            let placement = placements.next().unwrap_or_default();
            self.seen.insert(pin.id(), Seen { placement, lacks: lacks.clone() });
        }
    }
}

fn tells(placement: &Placement) -> bool {
    placement.iter().any(|(place, _)| place != Place::default())
}
