//! MRs that the kernel's programs do not walk: a few pages of each large one are looked at, once.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::host::{Lack, Sampler};
use crate::ledger::layout::{Known, Method, is_placed};
use crate::model::{Pin, Place, Placed, Placement, ProcessKey};

/// Smaller MRs are not looked at: they are many, and hugepages would change little.
const LARGE_BYTES: u64 = 1 << 20;
/// MRs that are looked at in one reading; the rest follow in the next ones. Each takes some 100 us.
const MOST_LOOKS: usize = 512;

/// What was found of the MRs that live.
pub struct Sampling {
    sampler: Sampler,
    /// By umem and birth.
    seen: HashMap<(u64, u64), Placement>,
    lacks: Vec<Lack>,
}

impl Sampling {
    pub fn new(sampler: Sampler) -> Self {
        Self { sampler, seen: HashMap::new(), lacks: Vec::new() }
    }

    /// Looks at what is new among these, and adds all that it knows of them.
    pub fn add_to(&mut self, known: &mut Known, pins: &[Pin]) {
        let large: Vec<&Pin> = pins
            .iter()
            .filter(|pin| is_placed(pin) && pin.pinned_bytes >= LARGE_BYTES)
            .filter(|pin| known.get(&pin.umem).is_none_or(|(of, _)| of.born_ns != pin.born_ns))
            .collect();
        let living: HashSet<_> = large.iter().map(|pin| pin.id()).collect();
        self.seen.retain(|id, _| living.contains(id));
        let mut fresh: BTreeMap<ProcessKey, Vec<&Pin>> = BTreeMap::new();
        let unseen = large.iter().filter(|pin| !self.seen.contains_key(&pin.id()));
        for pin in unseen.take(MOST_LOOKS) {
            if let Some(owner) = pin.owner {
                fresh.entry(owner).or_default().push(pin);
            }
        }
        for (owner, pins) in fresh {
            self.look(owner, &pins);
        }
        for pin in large {
            if let Some(placement) = self.seen.get(&pin.id()).filter(|some| tells(some)) {
                let (born_ns, placement) = (pin.born_ns, placement.clone());
                let placed = Placed { born_ns, scatter_entries: None, placement };
                known.insert(pin.umem, (placed, Method::Sampled));
            }
        }
    }

    /// What nothing tells, and why, of what was looked at so far.
    pub fn lacks(&self) -> &[Lack] {
        &self.lacks
    }

    fn look(&mut self, owner: ProcessKey, pins: &[&Pin]) {
        let ranges: Vec<(u64, u64)> =
            pins.iter().map(|pin| (pin.address, pin.length_bytes)).collect();
        let sampled = self.sampler.sample(owner, &ranges).unwrap_or_default();
        let placements =
            sampled.placements.into_iter().chain(std::iter::repeat(Placement::default()));
        for (pin, placement) in pins.iter().zip(placements) {
            self.seen.insert(pin.id(), placement);
        }
        for lack in sampled.no_sizes.into_iter().chain(sampled.no_nodes) {
            if !self.lacks.contains(&lack) {
                self.lacks.push(lack);
            }
        }
    }
}

fn tells(placement: &Placement) -> bool {
    placement.iter().any(|(place, _)| place != Place::default())
}
