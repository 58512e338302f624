use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use super::*;
use crate::collector::sources::EventsSource;
use crate::ebpf::{EventsError, KernelEvents};
use crate::model::{
    HookState, MadeBy, MrKind, PinUse, Place, Placed, Placement, ProcessKey, Snapshot,
};

const PAGE: u64 = 4096;
const ONE: ProcessKey = ProcessKey { tgid: 7, start_ns: 12_345_678 };
const BASE: Place = Place { page_bytes: Some(PAGE), node: Some(0) };

/// What the kernel's programs have, and how often they were asked.
#[derive(Default)]
struct Programs {
    pins: Vec<Pin>,
    placements: Option<HashMap<u64, Placed>>,
    fails: bool,
    readings: u32,
}

struct Kernel(Arc<Mutex<Programs>>);

impl KernelEvents for Kernel {
    fn snapshot(&mut self, _: &[String]) -> Result<Snapshot, EventsError> {
        Ok(Snapshot::default())
    }

    fn pins(&mut self) -> Result<Vec<Pin>, EventsError> {
        let mut programs = self.0.lock().unwrap();
        programs.readings += 1;
        if programs.fails {
            return Err(EventsError::Map { map: "pins", source: std::io::ErrorKind::Other.into() });
        }
        Ok(programs.pins.clone())
    }

    fn placements(&mut self) -> Result<Option<HashMap<u64, Placed>>, EventsError> {
        Ok(self.0.lock().unwrap().placements.clone())
    }

    fn forget(&mut self, _: &[ProcessKey]) {}

    fn hooks(&self) -> Vec<HookState> {
        Vec::new()
    }
}

/// A reader, and the kernel that it asks.
struct Ground {
    programs: Arc<Mutex<Programs>>,
    /// Its thread lives as long as this.
    _events: EventsSource,
    reader: Reader,
}

impl Ground {
    fn new(pages: Pages) -> Self {
        let programs: Arc<Mutex<Programs>> = Arc::default();
        let kernel = Kernel(Arc::clone(&programs));
        let open = move |_| Ok(Box::new(kernel) as Box<dyn KernelEvents>);
        let events = crate::collector::sources::events(Host::at("/nonexistent"), open).unwrap();
        let reader = Reader::new(events.teller().unwrap(), pages, Duration::from_secs(15));
        Self { programs, _events: events, reader }
    }

    fn with(&self, change: impl FnOnce(&mut Programs)) {
        change(&mut self.programs.lock().unwrap());
    }

    fn read(&mut self, live_pins: u64, seconds: u64) -> Result<Arc<Places>, CollectError> {
        let watched = Watching { since_ns: 1, unknown_releases: BTreeMap::new(), live_pins };
        let ask = PlacesAsk { watched: Some(watched), ..PlacesAsk::default() };
        self.reader.read(&ask, &|| Duration::from_secs(seconds))
    }
}

fn pin(umem: u64, pinned_bytes: u64) -> Pin {
    Pin {
        umem,
        born_ns: 1,
        owner: Some(ONE),
        device: "mlx5_0".into(),
        kind: MrKind::Host,
        pin_use: PinUse::Mr,
        made_by: MadeBy::Registration,
        committed: true,
        address: umem << 30,
        length_bytes: pinned_bytes,
        pinned_bytes,
    }
}

fn walked(umem: u64) -> HashMap<u64, Placed> {
    let mut placement = Placement::default();
    placement.add(BASE, PAGE);
    HashMap::from([(umem, Placed { born_ns: 1, scatter_entries: Some(1), placement })])
}

#[test]
fn pins_are_read_once_in_an_interval_whoever_asks() {
    let mut ground = Ground::new(Pages::Off);
    ground.with(|programs| programs.pins = vec![pin(1, PAGE)]);
    assert_eq!(ground.read(1, 0).unwrap().distinct.bytes, PAGE);
    ground.with(|programs| programs.pins.push(pin(2, PAGE)));
    assert_eq!(ground.read(2, 14).unwrap().distinct.bytes, PAGE);
    assert_eq!(ground.programs.lock().unwrap().readings, 1);
    assert_eq!(ground.read(2, 15).unwrap().distinct.bytes, 2 * PAGE);
}

#[test]
fn what_is_watched_anew_is_read_at_once() {
    let mut ground = Ground::new(Pages::Off);
    let unwatched = ground.reader.read(&PlacesAsk::default(), &|| Duration::ZERO);
    assert!(matches!(unwatched, Err(CollectError::NoData(_))));
    ground.with(|programs| programs.pins = vec![pin(1, PAGE)]);
    assert_eq!(ground.read(1, 1).unwrap().distinct.bytes, PAGE);
}

#[test]
fn a_reading_that_fails_is_told_and_the_next_one_is_whole() {
    let mut ground = Ground::new(Pages::Off);
    ground.with(|programs| programs.fails = true);
    assert!(matches!(ground.read(1, 0), Err(CollectError::Failed(_))));
    ground.with(|programs| programs.fails = false);
    assert!(ground.read(1, 15).is_ok());
}

#[test]
fn of_more_pins_than_are_read_nothing_is_claimed() {
    let mut ground = Ground::new(Pages::Off);
    assert!(matches!(ground.read(MOST_PINS + 1, 0), Err(CollectError::Failed(_))));
    assert_eq!(ground.programs.lock().unwrap().readings, 0);
    assert!(ground.read(MOST_PINS, 15).is_ok());
}

#[test]
fn without_a_look_at_pages_nothing_is_said_of_them() {
    let mut ground = Ground::new(Pages::Off);
    ground.with(|programs| programs.placements = Some(walked(1)));
    assert_eq!(ground.read(0, 0).unwrap().layout, None);
}

#[test]
fn what_the_programs_walked_is_not_sampled() {
    let mut ground = Ground::new(Pages::Asked(Host::at("/nonexistent")));
    ground.with(|programs| {
        programs.pins = vec![pin(1, PAGE), pin(2, 2 << 20)];
        programs.placements = Some(walked(1));
    });
    let places = ground.read(2, 0).unwrap();
    assert_eq!(places.layout.as_ref().unwrap().by_method, [PAGE, 0, 2 << 20]);
    assert_eq!(places.trouble, None);
}

#[test]
fn who_can_t_sample_either_says_why_and_all_else_is_there() {
    // No /proc at all.
    let mut ground = Ground::new(Pages::Asked(Host::at("/nonexistent")));
    ground.with(|programs| programs.pins = vec![pin(1, PAGE), pin(2, 2 << 20)]);
    let places = ground.read(2, 0).unwrap();
    assert_eq!(places.distinct.bytes, (2 << 20) + PAGE);
    let layout = places.layout.as_ref().unwrap();
    let unknown: Vec<_> = layout.all.placement.iter().collect();
    assert_eq!(unknown, [(Place::default(), (2 << 20) + PAGE)]);
    assert_eq!(layout.by_method, [0, 0, (2 << 20) + PAGE]);
    assert!(matches!(places.trouble, Some(CollectError::Unsupported(_))), "{:?}", places.trouble);
}

#[test]
fn what_is_walked_later_ends_the_samples() {
    let mut ground = Ground::new(Pages::Asked(Host::at("/nonexistent")));
    ground.with(|programs| programs.pins = vec![pin(1, PAGE)]);
    ground.read(1, 0).unwrap();
    assert!(matches!(ground.reader.pages, Pages::Sampled(_)));
    ground.with(|programs| programs.placements = Some(walked(1)));
    let places = ground.read(1, 15).unwrap();
    assert_eq!(places.layout.as_ref().unwrap().by_method, [PAGE, 0, 0]);
    assert!(matches!(ground.reader.pages, Pages::Walked) && places.trouble.is_none());
}

#[test]
fn of_what_nobody_walked_large_mrs_are_looked_at_once_each() {
    let memory = vec![1_u8; 5 << 20];
    let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
    let tgid = std::process::id();
    let ticks = host::Processes::of(&Host::live()).started(tgid).unwrap();
    let owner = Some(ProcessKey::of_tick(tgid, ticks));
    let here = |umem, bytes| Pin { owner, address: start, ..pin(umem, bytes) };
    let (large, small) = (here(1, 4 << 20), here(2, (1 << 20) - PAGE));

    let sampler = Sampler::new(&Host::live(), Rights::in_effect().for_sampling());
    let mut sampling = Sampling::new(sampler);
    let mut known = Known::default();
    // Pins that nobody is known to own are in nobody's way.
    let nobodys = (10..1000).map(|umem| Pin { owner: None, ..here(umem, 4 << 20) });
    let pins: Vec<Pin> = nobodys.chain([large.clone(), small.clone()]).collect();
    sampling.add_to(&mut known, &pins);
    let placed = &known.sampled[&1];
    assert_eq!((placed.placement.bytes(), placed.born_ns), (4 << 20, 1));
    assert_eq!((known.walked.len(), known.sampled.len()), (0, 1));

    // What was seen once is so while the MR lives, whatever is there now.
    drop(memory);
    let mut later = Known::default();
    sampling.add_to(&mut later, &[large.clone(), small]);
    assert_eq!(later, known);
    let mut gone = Known::default();
    sampling.add_to(&mut gone, &[]);
    sampling.add_to(&mut gone, &[Pin { born_ns: 2, ..large }]);
    assert!(gone.sampled.get(&1).is_none_or(|again| again.born_ns == 2), "{gone:?}");
}

#[test]
fn modules_that_come_again_without_types_are_told_of() {
    let mut ground = Ground::new(Pages::Asked(Host::at("/nonexistent")));
    ground.with(|programs| {
        programs.pins = vec![pin(1, PAGE)];
        programs.placements = Some(walked(1));
    });
    assert_eq!(ground.read(1, 0).unwrap().trouble, None);
    ground.with(|programs| programs.placements = None);
    let trouble = ground.read(1, 15).unwrap().trouble.clone();
    assert!(matches!(trouble, Some(CollectError::Unsupported(_))), "{trouble:?}");
    // While there are none nothing is amiss.
    ground.with(|programs| programs.pins.clear());
    assert_eq!(ground.read(0, 30).unwrap().trouble, None);
}

#[test]
fn why_an_mr_was_not_seen_is_told_as_long_as_it_lives() {
    let mut ground = Ground::new(Pages::Asked(Host::at("/nonexistent")));
    ground.with(|programs| programs.pins = vec![pin(1, 2 << 20)]);
    assert!(ground.read(1, 0).unwrap().trouble.is_some());
    ground.with(|programs| programs.pins.clear());
    assert_eq!(ground.read(0, 15).unwrap().trouble, None);
}
