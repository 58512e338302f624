//! All sources of the engine, asked together, and what they said last. Owns the deadlines: a source
//! that hangs costs a page one wait and no more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ebpf::{EventsError, KernelEvents};
use crate::host::{Host, HostMemory, Rights};
use crate::ledger::distinct::Room;
use crate::model::{
    Excluded, Found, HookState, PlacementOptions, ProbeFigures, ProcessKey, ResourcesOptions,
    Snapshot, TlbFigures, TlbOptions,
};
use crate::nldev::ListsResources;

use super::accounts::{self, Resources, ResourcesAsk, ResourcesSource, Watching};
use super::found;
use super::nics::{self, Devices, DevicesSource};
use super::places::{self, Places, PlacesAsk, PlacesSource};
use super::probing::Probes;
use super::source::Published;
use super::sources::{
    self, CountsTlb, Events, EventsAsk, EventsSource, ListsTasks, MemorySource, ProcessList,
    TasksSource, TlbSource,
};
use super::{CollectError, SourceTimes};

/// Results older than three ticks are dropped.
const MAX_AGE: Duration = Duration::from_secs(15);
/// What a page waits for the list of processes, for devices and for memory, which may hang.
const SOURCE_DEADLINE: Duration = Duration::from_millis(500);
/// The same for the kernel's maps: with modules that come and go all symbols are read again.
const EVENTS_DEADLINE: Duration = Duration::from_secs(3);
/// The same for resources: comparing them all takes long where there are many MRs.
const RESOURCES_DEADLINE: Duration = Duration::from_millis(250);
/// What the first page waits for MRs that are there already.
const FOUND_DEADLINE: Duration = Duration::from_secs(20);
/// What the first page waits for the first reading of live pins.
const START_PLACES_DEADLINE: Duration = Duration::from_secs(10);
/// Loading and attaching at the start, on the slowest of machines.
const START_DEADLINE: Duration = Duration::from_mins(1);

type Open<T> = Box<dyn FnOnce(Host) -> T + Send>;

/// How sources are opened. Each runs on the thread of its source, since the kernel's objects stay
/// where they are made.
pub struct Openers {
    pub events: Open<Result<Box<dyn KernelEvents>, EventsError>>,
    pub tasks: Open<Box<dyn ListsTasks>>,
    pub tlb: Open<Box<dyn CountsTlb>>,
    pub resources: Open<Box<dyn ListsResources>>,
    /// Called when all is attached, so that what it registers is seen.
    pub write_probe: Open<std::io::Result<Box<dyn Probes>>>,
}

/// The threads that read.
pub struct Sources {
    events: EventsSource,
    tasks: TasksSource,
    devices: DevicesSource,
    /// None while its collector is switched off, as of the next.
    memory: Option<MemorySource>,
    tlb: Option<TlbSource>,
    tlb_options: TlbOptions,
    resources: Option<ResourcesSource>,
    places: Option<PlacesSource>,
    /// MRs from before registrations were watched.
    found: Vec<Found>,
    prober: Option<Probing>,
}

/// What the user may choose of sources.
#[derive(Debug, Clone, Default)]
pub struct SourceOptions {
    pub tlb: TlbOptions,
    pub resources: ResourcesOptions,
    pub placement: PlacementOptions,
    /// Devices that are never touched.
    pub excluded: Excluded,
    /// Nothing is kept that looking at pages of processes takes.
    pub permanent_drop: bool,
}

/// Who runs the write probe: from when all is attached.
enum Probing {
    Waits(Host, Open<std::io::Result<Box<dyn Probes>>>),
    Runs(Box<dyn Probes>),
    Failed(CollectError),
}

/// What one source said last.
pub type Last<T> = Result<Arc<Published<T>>, CollectError>;

/// What the sources said for one page.
pub struct Seen {
    pub events: Last<Events>,
    pub tasks: Last<ProcessList>,
    pub devices: Last<Devices>,
    pub memory: Last<HostMemory>,
    pub tlb: Last<TlbFigures>,
    pub resources: Last<Resources>,
    pub places: Last<Arc<Places>>,
    /// Of who is asked nothing: it has an interval of its own.
    pub write_probe: Result<ProbeFigures, CollectError>,
    /// Names of the devices, as far as they are known.
    pub present: Vec<String>,
}

impl Sources {
    /// Starts a thread for each that is not `off`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        host: &Host,
        openers: Openers,
        options: SourceOptions,
        off: &[&str],
    ) -> std::io::Result<Self> {
        let on = |collector| !off.contains(&collector);
        let SourceOptions { tlb: tlb_options, resources, placement, excluded, permanent_drop } =
            options;
        let samples = on("mr") && !permanent_drop;
        let sampling = if samples { Rights::SAMPLING } else { Rights::NONE };
        let events = sources::events(host.clone(), openers.events)?;
        let pins = events.teller().filter(|_| on("resources"));
        let placed = events.teller().filter(|_| on("placement"));
        let untouched = excluded.clone();
        let start =
            |pins| accounts::resources(host.clone(), resources, untouched, pins, openers.resources);
        Ok(Self {
            resources: pins.map(start).transpose()?,
            places: placed
                .map(|pins| places::places(host.clone(), placement, sampling, pins))
                .transpose()?,
            found: Vec::new(),
            events,
            tasks: sources::tasks(host.clone(), openers.tasks)?,
            devices: nics::devices(host.clone(), MAX_AGE, excluded)?,
            memory: on("hugepages").then(|| sources::memory(host.clone())).transpose()?,
            tlb: on("tlb").then(|| sources::tlb(host.clone(), openers.tlb)).transpose()?,
            tlb_options,
            prober: on("write_probe").then(|| Probing::Waits(host.clone(), openers.write_probe)),
        })
    }

    /// Waits for what has to be loaded and attached. What was read meanwhile may be too old.
    pub fn wait_for_start(&mut self) {
        let deadline = Instant::now() + START_DEADLINE;
        self.tasks.ask(());
        self.devices.ask(());
        self.devices.wait(Instant::now() + SOURCE_DEADLINE);
        self.events.ask(EventsAsk::Read(self.names()));
        self.ask_tlb(&[]);
        self.tasks.wait(deadline);
        self.events.wait(deadline);
        wait(self.tlb.as_mut(), deadline);
        // MRs that are there already belong to the first page.
        self.ask_resources();
        wait(self.resources.as_mut(), Instant::now() + FOUND_DEADLINE);
        self.ask_places();
        wait(self.places.as_mut(), Instant::now() + START_PLACES_DEADLINE);
        self.prober = self.prober.take().map(Probing::begin);
    }

    /// Asks all of them; `holders` are the processes that hold MRs, those that hold most first.
    pub fn read(&mut self, holders: &[ProcessKey]) -> Seen {
        let deadline = Instant::now() + SOURCE_DEADLINE;
        self.tasks.ask(());
        self.devices.ask(());
        if let Some(memory) = &mut self.memory {
            memory.ask(());
        }
        self.ask_tlb(holders);
        self.tasks.wait(deadline);
        self.devices.wait(deadline);
        // After the list of processes: rows of those that are not on it are final.
        self.events.ask(EventsAsk::Read(self.names()));
        self.events.wait(Instant::now() + EVENTS_DEADLINE);
        self.ask_resources();
        wait(self.resources.as_mut(), Instant::now() + RESOURCES_DEADLINE);
        // After what was found, which is among what it adds up. What comes of it is for a later page.
        self.ask_places();
        wait(self.memory.as_mut(), deadline);
        wait(self.tlb.as_mut(), deadline);
        Seen {
            events: self.events.latest(MAX_AGE),
            tasks: self.tasks.latest(MAX_AGE),
            devices: self.devices.latest(MAX_AGE),
            memory: latest(self.memory.as_ref()),
            tlb: latest(self.tlb.as_ref()),
            resources: latest(self.resources.as_ref()),
            places: latest(self.places.as_ref()),
            write_probe: match &self.prober {
                Some(Probing::Runs(prober)) => prober.figures(),
                Some(Probing::Failed(error)) => Err(error.clone()),
                Some(Probing::Waits(..)) | None => {
                    Err(CollectError::NoData("it has not begun".to_owned()))
                }
            },
            present: self.names(),
        }
    }

    /// Who runs the write probe, where it is on.
    pub fn prober(&self) -> Option<&dyn Probes> {
        match &self.prober {
            Some(Probing::Runs(prober)) => Some(&**prober),
            _ => None,
        }
    }

    /// Frees rows of processes that are gone.
    pub fn forget(&self, gone: Vec<ProcessKey>) {
        self.events.tell(EventsAsk::Forget(gone));
    }

    /// Takes probes out of the kernel: before the process ends.
    pub fn end(mut self) {
        // Its child first: that may hold an MR.
        self.prober = None;
        if self.events.join().is_err() {
            tracing::error!("the thread that reads the kernel had panicked");
        }
    }

    fn ask_tlb(&mut self, holders: &[ProcessKey]) {
        let most = if self.tlb_options.per_process { self.tlb_options.max_processes } else { 0 };
        if let Some(tlb) = &mut self.tlb {
            tlb.ask(holders.iter().take(most).copied().collect());
        }
    }

    fn ask_resources(&mut self) {
        let Some(resources) = &mut self.resources else { return };
        let events = self.events.latest(MAX_AGE);
        let snapshot = answer(&events).ok().and_then(|events| events.snapshot.as_ref().ok());
        resources.ask(ResourcesAsk { watched: snapshot.and_then(Watching::of) });
    }

    fn ask_places(&mut self) {
        let Some(places) = &mut self.places else { return };
        let events = self.events.latest(MAX_AGE);
        let snapshot = answer(&events).ok().and_then(|events| events.snapshot.as_ref().ok());
        let listed = latest(self.resources.as_ref());
        found::keep_up(&mut self.found, answer(&listed));
        let tasks = self.tasks.latest(MAX_AGE);
        let room = match (answer(&tasks), snapshot) {
            (Ok(list), Some(snapshot)) => {
                found::room(&self.found, &list.tasks, &snapshot.processes)
            }
            _ => Room::new(),
        };
        let (watched, found) = (snapshot.and_then(Watching::of), self.found.clone());
        places.ask(PlacesAsk { watched, found, room });
    }

    fn names(&self) -> Vec<String> {
        let known = self.devices.latest(MAX_AGE);
        answer(&known).map(|devices| devices.names.clone()).unwrap_or_default()
    }
}

impl Probing {
    fn begin(self) -> Self {
        let Self::Waits(host, open) = self else { return self };
        match open(host) {
            Ok(prober) => Self::Runs(prober),
            Err(error) => Self::Failed(CollectError::Failed(format!("the write probe: {error}"))),
        }
    }
}

impl Seen {
    /// How every program stands.
    pub fn hooks(&self) -> impl Iterator<Item = &HookState> {
        let hooks = answer(&self.events).map(|events| events.hooks.as_slice()).unwrap_or_default();
        hooks.iter().chain(answer(&self.tasks).ok().map(|list| &list.hook))
    }

    /// The kernel's maps.
    ///
    /// # Errors
    /// Why they are not known.
    pub fn snapshot(&self) -> Result<&Snapshot, &CollectError> {
        answer(&self.events)?.snapshot.as_ref()
    }

    /// What each reading took.
    pub fn times(&self) -> SourceTimes {
        SourceTimes {
            events: took(&self.events),
            tasks: took(&self.tasks),
            devices: took(&self.devices),
            memory: took(&self.memory),
            tlb: took(&self.tlb),
            resources: took(&self.resources),
            places: took(&self.places),
        }
    }
}

fn wait<A, T>(source: Option<&mut super::source::Source<A, T>>, deadline: Instant)
where
    A: Send + 'static,
    T: Send + Sync + 'static,
{
    if let Some(source) = source {
        source.wait(deadline);
    }
}

fn latest<A, T>(source: Option<&super::source::Source<A, T>>) -> Last<T>
where
    A: Send + 'static,
    T: Send + Sync + 'static,
{
    source.map_or_else(
        || Err(CollectError::NoData("its collector is switched off".to_owned())),
        |source| source.latest(MAX_AGE),
    )
}

fn took<T>(last: &Last<T>) -> Duration {
    last.as_ref().map(|published| published.took).unwrap_or_default()
}

pub fn answer<T>(last: &Last<T>) -> Result<&T, &CollectError> {
    last.as_ref().and_then(|published| published.value.as_ref())
}
