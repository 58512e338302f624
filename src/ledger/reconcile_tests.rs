use proptest::prelude::*;

use super::*;
use crate::model::{Creator, ProcessKey};

const KEY: ProcessKey = ProcessKey { tgid: 7, start_ns: 10_000_000 };

/// A registration of process 7, or of another.
fn pin(umem: u64, length_bytes: u64) -> Pin {
    Pin {
        umem,
        born_ns: umem,
        owner: Some(KEY),
        device: "rxe0".into(),
        kind: MrKind::Host,
        pin_use: PinUse::Mr,
        made_by: MadeBy::Registration,
        committed: true,
        address: umem,
        length_bytes,
        pinned_bytes: length_bytes.next_multiple_of(4096),
    }
}

fn mr(mrn: u32, length: u64) -> MrEntry {
    let (length, creator) = (Some(length), Creator::Thread(mrn));
    MrEntry { mrn, pdn: Some(1), length, rkey: None, lkey: None, odp: None, creator }
}

/// MRs from 100 on are process 7's, those from 200 on nobody's.
fn owners(entries: &[&MrEntry]) -> Vec<FoundOwner> {
    let owner = |mr: &&MrEntry| match mr.mrn {
        100..200 => FoundOwner::Process(KEY),
        200.. => FoundOwner::Gone,
        tgid => FoundOwner::Process(ProcessKey::of_tick(tgid, 1)),
    };
    entries.iter().map(owner).collect()
}

/// Looks with the same pins before and after.
fn look(reconciled: &mut Reconciled, pins: &[Pin], entries: &[MrEntry]) -> Option<i64> {
    torn(reconciled, pins, entries, pins)
}

fn torn(
    reconciled: &mut Reconciled,
    before: &[Pin],
    entries: &[MrEntry],
    after: &[Pin],
) -> Option<i64> {
    let (before, after): (Vec<_>, Vec<_>) = (before.iter().collect(), after.iter().collect());
    let look = Look { before: &before, entries, after: &after };
    reconciled.take(&look, &mut owners)
}

fn found(reconciled: &Reconciled) -> Vec<u32> {
    reconciled.found().keys().copied().collect()
}

#[test]
fn what_no_pin_explains_is_found_at_the_second_look() {
    let mut it = Reconciled::default();
    let list = [mr(1, 4096), mr(2, 4096), mr(101, 4096), mr(102, 8192)];
    let pins = [pin(50, 4096)];
    assert_eq!(look(&mut it, &pins, &list), None);
    assert!(found(&it).is_empty());
    assert_eq!(look(&mut it, &pins, &list), Some(0));
    // The pin's owner has 101; that it has 102 too is what was there before.
    assert_eq!(found(&it), [1, 2, 102]);
    let owner = |mrn| it.found()[&mrn].owner;
    assert_eq!(owner(102), FoundOwner::Process(KEY));
    assert_eq!(owner(1), FoundOwner::Process(ProcessKey::of_tick(1, 1)));
}

#[test]
fn later_mrs_that_no_pin_explains_are_a_difference_and_are_not_found() {
    let mut it = Reconciled::default();
    let mut list = vec![mr(1, 4096)];
    look(&mut it, &[], &list);
    look(&mut it, &[], &list);
    list.push(mr(102, 1 << 20));
    assert_eq!(look(&mut it, &[], &list), Some(0), "it was on one list only");
    assert_eq!(look(&mut it, &[], &list), Some(1 << 20));
    assert_eq!(found(&it), [1]);
    // The other way round: a pin whose MR is not there.
    let pins = [pin(50, 8192)];
    look(&mut it, &pins, &list[..1]);
    assert_eq!(look(&mut it, &pins, &list[..1]), Some(-8192));
}

#[test]
fn what_is_registered_and_released_meanwhile_is_neither_found_nor_a_difference() {
    let mut it = Reconciled::default();
    // One length for all: what was there before, and what comes and goes.
    let (old, young, younger) = (pin(10, 4096), pin(20, 4096), pin(30, 4096));
    let list = [mr(1, 4096), mr(100, 4096), mr(101, 4096)];
    torn(&mut it, std::slice::from_ref(&old), &list, &[old.clone(), young.clone()]);
    // 101 is the young one's, or was there before: it may not be found yet.
    torn(&mut it, &[old.clone(), young.clone()], &list, &[old.clone(), young.clone()]);
    assert_eq!(found(&it), [1]);
    let list = [mr(1, 4096), mr(100, 4096), mr(101, 4096), mr(102, 4096)];
    let pins = [old.clone(), young.clone(), younger.clone()];
    assert_eq!(torn(&mut it, &pins, &list, &pins), Some(0));
    assert_eq!(torn(&mut it, &pins, &list, &pins), Some(0));
    assert_eq!(found(&it), [1]);
}

#[test]
fn a_pin_that_is_not_committed_may_have_an_mr_or_not() {
    let mut it = Reconciled::default();
    let pins = [Pin { committed: false, ..pin(50, 4096) }];
    let list = [mr(1, 4096), mr(101, 4096)];
    look(&mut it, &pins, &list);
    assert_eq!(look(&mut it, &pins, &list), Some(0));
    assert_eq!(found(&it), [1]);
    // Its call fails in the end: no MR ever was.
    let mut it = Reconciled::default();
    look(&mut it, &pins, &list[..1]);
    assert_eq!(look(&mut it, &pins, &list[..1]), Some(0));
}

#[test]
fn what_was_found_goes_with_its_mr_and_when_it_is_registered_anew() {
    let mut it = Reconciled::default();
    let list = [mr(1, 4096), mr(2, 4096), mr(3, 4096), mr(4, 4096)];
    look(&mut it, &[], &list);
    look(&mut it, &[], &list);
    it.forget(&[4]);
    assert_eq!(found(&it), [1, 2, 3]);
    // 1 is gone; 2 has another length, by a call that the programs saw.
    let again = Pin { made_by: MadeBy::Reregistration, ..pin(50, 8192) };
    let list = [mr(2, 8192), mr(3, 4096)];
    assert_eq!(look(&mut it, std::slice::from_ref(&again), &list), Some(0));
    assert_eq!(found(&it), [3]);
    assert_eq!(look(&mut it, std::slice::from_ref(&again), &list), Some(0));

    // The same length: only the pin tells, once it was there at four looks.
    let same = Pin { made_by: MadeBy::Reregistration, ..pin(60, 4096) };
    let pins = [again, same];
    for (seen, bytes) in [(vec![3], 0), (vec![3], -4096), (vec![3], -4096), (vec![], 0)] {
        assert_eq!(look(&mut it, &pins, &list), Some(bytes));
        assert_eq!(found(&it), seen);
    }
}

#[test]
fn a_list_that_lacks_one_takes_nothing_away() {
    let mut it = Reconciled::default();
    let list = [mr(1, 4096), mr(2, 4096), mr(101, 4096)];
    let pins = [pin(50, 4096)];
    look(&mut it, &pins, &list);
    look(&mut it, &pins, &list);
    // The one that the pin explains is missing for once: it looks as if too many were found.
    assert_eq!(look(&mut it, &pins, &list[..2]), Some(-4096));
    assert_eq!(found(&it), [1, 2]);
    assert_eq!(look(&mut it, &pins, &list), Some(-4096));
    assert_eq!(look(&mut it, &pins, &list), Some(0));
    assert_eq!(found(&it), [1, 2]);
}

#[test]
fn pins_whose_owner_has_no_mr_take_those_of_nobody_first() {
    let mut it = Reconciled::default();
    // A child of process 7 registered with the context of its parent and ended.
    let orphan = Pin { owner: Some(ProcessKey { tgid: 99, start_ns: 1 }), ..pin(50, 4096) };
    let list = [mr(100, 4096), mr(101, 4096), mr(200, 4096)];
    let pins = [orphan];
    look(&mut it, &pins, &list);
    look(&mut it, &pins, &list);
    assert_eq!(found(&it), [100, 101]);
}

#[test]
fn a_pin_takes_an_mr_of_its_own_process_though_another_s_is_younger() {
    let mut it = Reconciled::default();
    let list = [mr(1, 4096), mr(101, 4096)];
    let pins = [Pin { owner: Some(ProcessKey::of_tick(1, 1)), ..pin(50, 4096) }];
    look(&mut it, &pins, &list);
    look(&mut it, &pins, &list);
    assert_eq!(found(&it), [101]);
}

#[test]
fn an_mr_that_was_seen_and_is_registered_anew_is_not_found() {
    let mut it = Reconciled::default();
    let list = [mr(101, 4096)];
    look(&mut it, &[pin(50, 4096)], &list);
    let again = Pin { made_by: MadeBy::Reregistration, ..pin(60, 4096) };
    assert_eq!(look(&mut it, &[again], &list), Some(0));
    assert!(found(&it).is_empty());
}

#[test]
fn lengths_that_the_kernel_does_not_tell_are_compared_by_number() {
    let mut it = Reconciled::default();
    let lengthless = |umem| Pin {
        kind: MrKind::Dmabuf,
        made_by: MadeBy::Lengthless,
        pinned_bytes: 0,
        ..pin(umem, 1 << 21)
    };
    let implicit = Pin { kind: MrKind::Odp, length_bytes: 0, pinned_bytes: 0, ..pin(70, 0) };
    let all = MrEntry { length: None, ..mr(103, 0) };
    let list = [mr(1, 0), mr(101, 0), mr(102, 0), all];
    let pins = [lengthless(50), lengthless(60), implicit];
    look(&mut it, &pins, &list);
    assert_eq!(look(&mut it, &pins, &list), Some(0));
    assert_eq!(found(&it), [1]);
    // A driver that tells them.
    let mut it = Reconciled::default();
    let list = [mr(1, 1 << 21), mr(101, 1 << 21)];
    look(&mut it, &pins[..1], &list);
    assert_eq!(look(&mut it, &pins[..1], &list), Some(0));
    assert_eq!(found(&it), [1]);
}

#[test]
fn a_kernel_that_tells_no_length_of_any_mr_is_compared_by_number() {
    let mut it = Reconciled::default();
    let list = [mr(1, 0), mr(101, 0), mr(102, 0)];
    let pins = [pin(50, 4096), pin(60, 1 << 20)];
    look(&mut it, &pins, &list);
    assert_eq!(look(&mut it, &pins, &list), Some(0));
    assert_eq!(found(&it), [1]);
}

#[test]
fn lengths_beyond_all_memory_overflow_no_difference() {
    let mut it = Reconciled::default();
    look(&mut it, &[], &[]);
    let list = [mr(1, u64::MAX - 1), mr(2, u64::MAX - 1), mr(3, u64::MAX - 2)];
    look(&mut it, &[], &list);
    assert_eq!(look(&mut it, &[], &list), Some(i64::MAX));
}

#[test]
fn queues_have_no_mr() {
    let mut it = Reconciled::default();
    let queue = Pin { pin_use: PinUse::Queue, ..pin(50, 4096) };
    let list = [mr(100, 4096)];
    look(&mut it, std::slice::from_ref(&queue), &list);
    assert_eq!(look(&mut it, &[queue], &list), Some(0));
    assert_eq!(found(&it), [100]);
}

/// A device on which things happen while it is read.
#[derive(Debug, Default)]
struct World {
    /// By number: length, and the pin that the programs saw made.
    mrs: BTreeMap<u32, (u64, Option<Pin>)>,
    next: u32,
}

impl World {
    fn register(&mut self, length: u64, seen: bool) {
        self.next += 1;
        let pin = seen.then(|| pin(u64::from(self.next), length));
        self.mrs.insert(100 + self.next, (length, pin));
    }

    /// Makes one that is there another, by place.
    fn change(&mut self, place: usize, length: Option<u64>) {
        let Some(mrn) = self.mrs.keys().nth(place % self.mrs.len().max(1)).copied() else { return };
        self.next += 1;
        match length {
            None => _ = self.mrs.remove(&mrn),
            Some(length) => {
                let made_by = MadeBy::Reregistration;
                let pin = Pin { made_by, ..pin(u64::from(self.next), length) };
                self.mrs.insert(mrn, (length, Some(pin)));
            }
        }
    }

    fn step(&mut self, (what, place, length): (u8, usize, u64)) {
        match what {
            0..4 => self.register(length, true),
            4..8 => self.change(place, None),
            _ => self.change(place, Some(length)),
        }
    }

    fn steps(&mut self, steps: Vec<(u8, usize, u64)>) {
        for step in steps {
            self.step(step);
        }
    }

    fn pins(&self) -> Vec<Pin> {
        self.mrs.values().filter_map(|(_, pin)| pin.clone()).collect()
    }

    fn list(&self) -> Vec<MrEntry> {
        self.mrs.iter().map(|(mrn, (length, _))| mr(*mrn, *length)).collect()
    }

    fn unseen(&self) -> Vec<u32> {
        let unseen = self.mrs.iter().filter(|(_, (_, pin))| pin.is_none());
        unseen.map(|(mrn, _)| *mrn).collect()
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, usize, u64)>> {
    // Few lengths, so that MRs are alike.
    prop::collection::vec((0..9_u8, 0..64_usize, 1..4_u64), 0..6)
}

proptest! {
    #[test]
    fn whatever_happens_meanwhile_in_the_end_what_nobody_saw_is_found(
        old in prop::collection::vec(1..4_u64, 0..20),
        rounds in prop::collection::vec([steps(), steps(), steps()], 0..12),
    ) {
        let (mut world, mut it) = (World::default(), Reconciled::default());
        for length in &old {
            world.register(*length, false);
        }
        for [early, late, between] in rounds {
            let before = world.pins();
            world.steps(early);
            let list = world.list();
            world.steps(late);
            torn(&mut it, &before, &list, &world.pins());
            world.steps(between);
        }
        // Nothing happens any more: four looks settle all.
        for _ in 0..4 {
            look(&mut it, &world.pins(), &world.list());
        }
        prop_assert_eq!(look(&mut it, &world.pins(), &world.list()), Some(0));
        let lengths = |mrns: Vec<u32>| {
            let mut lengths: Vec<u64> = mrns.iter().map(|mrn| world.mrs[mrn].0).collect();
            lengths.sort_unstable();
            lengths
        };
        prop_assert_eq!(lengths(found(&it)), lengths(world.unseen()));
    }
}
