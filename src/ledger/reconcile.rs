//! One device, compared from both sides: the pins that the kernel's programs saw, and the MRs that
//! RDMA netlink lists. It finds the MRs that were there before registrations were watched, and what
//! both sides tell differently. No clock, no I/O.
//!
//! Neither side is read at one moment. So pins are read before and after the list, and only what
//! lived from one look to the next is compared: a pin that was in all four readings has its MR on
//! both lists; one that was in none of the first two, or of the last two, has none on both. What is
//! in between makes a range, which the next look narrows.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::model::{FoundMr, FoundOwner, MadeBy, MrEntry, MrKind, Pin, PinUse};

/// What is read of a device at one time: its own pins, and its whole list but for the kernel's MRs.
/// What was found is on it as long as it is there.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    pub before: &'a [&'a Pin],
    pub entries: &'a [MrEntry],
    pub after: &'a [&'a Pin],
}

/// Says whose MRs are, in their order.
pub type Owners<'a> = dyn FnMut(&[&MrEntry]) -> Vec<FoundOwner> + 'a;

/// What is known of one device.
#[derive(Debug, Default)]
pub struct Reconciled {
    earlier: Option<Earlier>,
    /// By the kernel's number.
    found: BTreeMap<u32, FoundMr>,
    /// What may be found: MRs of the first list that are still there. Later ones were seen as they
    /// were registered.
    first: Option<HashSet<u32>>,
    /// By how much more were found than there can be, at the last two looks: a list that lacks an MR
    /// makes it look so twice.
    excess: HashMap<Length, [usize; 2]>,
}

/// The last look.
#[derive(Debug)]
struct Earlier {
    /// Pins by id; true of those that are sure to have had their MR on the list.
    pins: HashMap<(u64, u64), bool>,
    lengths: HashMap<u32, Length>,
}

/// MRs and pins are compared by how long they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Length {
    Bytes(u64),
    /// The kernel tells 0.
    Untold,
    /// All memory.
    Implicit,
}

/// MRs and pins of one length.
#[derive(Debug, Default)]
struct Group<'a> {
    /// Those that were on the earlier list too.
    entries: Vec<&'a MrEntry>,
    /// Pins that may have one of these MRs.
    pins: Vec<&'a Pin>,
    /// How many of the pins are sure to.
    sure: usize,
}

impl Reconciled {
    /// Compares a look with the earlier one.
    ///
    /// Returns the bytes on the kernel's list beyond those that are counted, below zero if it lists
    /// less. None for the first look.
    pub fn take(&mut self, look: &Look<'_>, owners: &mut Owners<'_>) -> Option<i64> {
        let now = pins_of(look);
        let compared = self.earlier.take().map(|earlier| {
            self.drop_gone(look);
            self.compare(&earlier, look, &now, owners)
        });
        let listed: HashSet<u32> = look.entries.iter().map(|entry| entry.mrn).collect();
        match &mut self.first {
            Some(first) => first.retain(|mrn| listed.contains(mrn)),
            None => self.first = Some(listed),
        }
        self.earlier = Some(Earlier {
            pins: now.iter().map(|(id, (_, sure))| (*id, *sure)).collect(),
            lengths: look.entries.iter().map(|entry| (entry.mrn, length_of(entry))).collect(),
        });
        compared
    }

    #[must_use]
    pub fn found(&self) -> &BTreeMap<u32, FoundMr> {
        &self.found
    }

    /// These are not there any more.
    pub fn forget(&mut self, gone: &[u32]) {
        for mrn in gone {
            self.found.remove(mrn);
        }
    }

    /// What was found and is gone, or was registered anew with another length.
    fn drop_gone(&mut self, look: &Look<'_>) {
        let lengths: HashMap<u32, Option<u64>> =
            look.entries.iter().map(|entry| (entry.mrn, entry.length)).collect();
        self.found.retain(|mrn, found| lengths.get(mrn) == Some(&found.length));
    }

    fn compare(
        &mut self,
        earlier: &Earlier,
        look: &Look<'_>,
        now: &HashMap<(u64, u64), (&Pin, bool)>,
        owners: &mut Owners<'_>,
    ) -> i64 {
        let lengths: HashSet<Length> = look.entries.iter().map(length_of).collect();
        let mut groups: BTreeMap<Length, Group<'_>> = BTreeMap::new();
        for entry in look.entries {
            let length = length_of(entry);
            if earlier.lengths.get(&entry.mrn) == Some(&length) {
                groups.entry(length).or_default().entries.push(entry);
            }
        }
        for (id, (pin, sure)) in now {
            let before = earlier.pins.get(id);
            // Registered anew, an MR is older than its pin.
            if before.is_some() || pin.made_by == MadeBy::Reregistration {
                let group = groups.entry(length_of_pin(pin, &lengths)).or_default();
                group.pins.push(pin);
                group.sure += usize::from(*sure && before.copied().unwrap_or(false));
            }
        }
        let mut beyond: i64 = 0;
        let excess = std::mem::take(&mut self.excess);
        for (length, group) in groups {
            let before = excess.get(&length).copied().unwrap_or_default();
            let more = self.settle(length, &group, before, owners);
            if let Length::Bytes(bytes) = length {
                // The list tells whatever length a driver wrote.
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                beyond = beyond.saturating_add(more.saturating_mul(bytes));
            }
        }
        beyond
    }

    /// Finds what of a group nobody saw, and gives up what was wrongly found.
    ///
    /// Returns how many MRs are there beyond those that are counted.
    fn settle(
        &mut self,
        length: Length,
        group: &Group<'_>,
        excess_before: [usize; 2],
        owners: &mut Owners<'_>,
    ) -> i64 {
        let listed = group.entries.len();
        let least = listed.saturating_sub(group.pins.len());
        let most = listed.saturating_sub(group.sure);
        let mine: Vec<u32> = group
            .entries
            .iter()
            .map(|entry| entry.mrn)
            .filter(|mrn| self.found.contains_key(mrn))
            .collect();
        let mut count = mine.len();
        let excess = count.saturating_sub(most);
        let [last, last_but_one] = excess_before;
        let wrong = excess.min(last).min(last_but_one);
        for mrn in mine.iter().rev().take(wrong) {
            self.found.remove(mrn);
            count -= 1;
        }
        if excess > wrong {
            self.excess.insert(length, [excess - wrong, last - wrong]);
        }
        if count < least {
            count += self.find(group, least - count, owners);
        }
        // Within the range there is no difference that is sure.
        let (listed, count) = (listed as i64, count as i64);
        let (low, high) = (listed - group.pins.len() as i64, listed - group.sure as i64);
        if count < low { low - count } else { (high - count).min(0) }
    }

    /// MRs of a group that may be found, and are not.
    fn candidates<'a, 'e>(
        &'a self,
        group: &'a Group<'e>,
    ) -> impl Iterator<Item = (usize, &'e MrEntry)> + use<'a, 'e> {
        let listed_first = |mrn| self.first.as_ref().is_some_and(|first| first.contains(&mrn));
        let may = move |mrn| listed_first(mrn) && !self.found.contains_key(&mrn);
        let entries = group.entries.iter().enumerate();
        entries.filter(move |(_, entry)| may(entry.mrn)).map(|(at, entry)| (at, *entry))
    }

    fn find(&mut self, group: &Group<'_>, wanted: usize, owners: &mut Owners<'_>) -> usize {
        if self.candidates(group).next().is_none() {
            return 0;
        }
        let owned = owners(&group.entries);
        let seen = seen(group, &owned);
        let mut unseen: Vec<(usize, &MrEntry)> = self.candidates(group).collect();
        // Those that no pin was given to; of these the oldest, whose numbers are the lowest.
        unseen.sort_by_key(|(at, entry)| (seen.contains(at), entry.mrn));
        unseen.truncate(wanted);
        for (at, entry) in &unseen {
            let kind = if entry.odp.is_some() { MrKind::Odp } else { MrKind::Host };
            let owner = owned.get(*at).copied().unwrap_or(FoundOwner::Unknown);
            self.found.insert(entry.mrn, FoundMr { length: entry.length, kind, owner });
        }
        unseen.len()
    }
}

/// Gives each pin one of the MRs, by its owner where that can be, the newest first; the rest to MRs
/// without an owner, then to any. Returns the places of those MRs.
fn seen(group: &Group<'_>, owned: &[FoundOwner]) -> HashSet<usize> {
    let mut pins: HashMap<Option<(u32, u64)>, usize> = HashMap::new();
    for pin in &group.pins {
        *pins.entry(pin.owner.map(|key| key.tick())).or_default() += 1;
    }
    let mut newest: Vec<usize> = (0..group.entries.len()).collect();
    newest.sort_by_key(|at| std::cmp::Reverse(group.entries[*at].mrn));
    let mut seen = HashSet::new();
    for at in &newest {
        if let Some(FoundOwner::Process(key)) = owned.get(*at)
            && let Some(left) = pins.get_mut(&Some(key.tick())).filter(|left| **left > 0)
        {
            *left -= 1;
            seen.insert(*at);
        }
    }
    let left: usize = pins.values().sum();
    let owned_by_one = |at: &usize| matches!(owned.get(*at), Some(FoundOwner::Process(_)));
    let mut rest: Vec<usize> = newest.into_iter().filter(|at| !seen.contains(at)).collect();
    rest.sort_by_key(owned_by_one);
    seen.extend(rest.into_iter().take(left));
    seen
}

/// The pins of MRs, each once; true of those that were registered before the list was read and
/// lived when it had been.
fn pins_of<'a>(look: &Look<'a>) -> HashMap<(u64, u64), (&'a Pin, bool)> {
    let of_mrs = |pins: &'a [&'a Pin]| pins.iter().filter(|pin| pin.pin_use == PinUse::Mr);
    let mut all: HashMap<(u64, u64), (&Pin, bool)> =
        of_mrs(look.before).map(|pin| (pin.id(), (*pin, false))).collect();
    for pin in of_mrs(look.after) {
        match all.get_mut(&pin.id()) {
            Some((before, sure)) => *sure = before.committed,
            None => _ = all.insert(pin.id(), (pin, false)),
        }
    }
    all
}

fn length_of(entry: &MrEntry) -> Length {
    match entry.length {
        None => Length::Implicit,
        Some(0) => Length::Untold,
        Some(bytes) => Length::Bytes(bytes),
    }
}

/// How the kernel's list tells an MR of such a pin: without its length where the driver leaves that
/// out, or the kernel does (core since 241f9a27e0fc, 6.1).
fn length_of_pin(pin: &Pin, listed: &HashSet<Length>) -> Length {
    let told = match pin.length_bytes {
        0 if pin.kind == MrKind::Odp => return Length::Implicit,
        0 => return Length::Untold,
        bytes => Length::Bytes(bytes),
    };
    let by_some = pin.made_by == MadeBy::Lengthless || !listed.contains(&told);
    if by_some && listed.contains(&Length::Untold) { Length::Untold } else { told }
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
