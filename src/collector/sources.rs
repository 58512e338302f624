//! Sources, each on its thread: the kernel's maps, the list of processes, the host's memory, and
//! the counters of translations.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::ebpf::{EventsError, KernelEvents, TaskIterator};
use crate::host::{self, Host, HostMemory, MemoryReader, Rights};
use crate::model::{
    Attach, HookState, Pin, Placed, ProcessKey, Snapshot, Tasks, TlbFigures, Trouble,
};

use super::CollectError;
use super::source::{Source, Teller};

/// What the kernel's thread is asked.
pub enum EventsAsk {
    /// All maps, and the state of the hooks. The names are those of the devices that there are.
    Read(Vec<String>),
    /// Rows of processes that are gone.
    Forget(Vec<ProcessKey>),
    /// Every live pin, to be sent there.
    Pins(Sender<Result<Vec<Pin>, CollectError>>),
    /// On what the memory of MRs lies, to be sent there.
    #[allow(dead_code)]
    Placements(Sender<Result<Option<HashMap<u64, Placed>>, CollectError>>),
}

/// An answer of the kernel's thread.
#[derive(Debug)]
pub struct Events {
    pub snapshot: Result<Snapshot, CollectError>,
    pub hooks: Vec<HookState>,
}

pub type EventsSource = Source<EventsAsk, Events>;
pub type TasksSource = Source<(), ProcessList>;
pub type MemorySource = Source<(), HostMemory>;
/// Asked with the processes to count in, by their keys.
pub type TlbSource = Source<Vec<ProcessKey>, TlbFigures>;

/// The kernel's objects stay on the thread that makes them: `open` runs there.
pub fn events<O>(host: Host, open: O) -> std::io::Result<EventsSource>
where
    O: FnOnce(Host) -> Result<Box<dyn KernelEvents>, EventsError> + Send + 'static,
{
    Source::start("events", Rights::TRACING, move || {
        let mut events = open(host);
        if events.is_err() {
            // Never tried again.
            let _ = Rights::NONE.keep();
        }
        move |ask| match (&mut events, ask) {
            (Ok(events), EventsAsk::Read(devices)) => {
                let snapshot = events.snapshot(&devices).map_err(|error| (&error).into());
                Some(Ok(Events { snapshot, hooks: events.hooks() }))
            }
            (Ok(events), EventsAsk::Forget(gone)) => {
                events.forget(&gone);
                None
            }
            (Err(error), EventsAsk::Read(_)) => {
                Some(Ok(Events { snapshot: Err((&*error).into()), hooks: Vec::new() }))
            }
            (Ok(events), EventsAsk::Pins(reply)) => {
                let pins = events.pins().map_err(|error| (&error).into());
                // Who has given up waiting needs none.
                let _ = reply.send(pins);
                None
            }
            (Err(error), EventsAsk::Pins(reply)) => {
                let _ = reply.send(Err((&*error).into()));
                None
            }
            (Ok(events), EventsAsk::Placements(reply)) => {
                let _ = reply.send(events.placements().map_err(|error| (&error).into()));
                None
            }
            (Err(error), EventsAsk::Placements(reply)) => {
                let _ = reply.send(Err((&*error).into()));
                None
            }
            (Err(_), EventsAsk::Forget(_)) => None,
        }
    })
}

/// How long the kernel's pins are waited for.
const PINS_DEADLINE: Duration = Duration::from_secs(10);

/// Every live pin, by the kernel's thread.
///
/// # Errors
/// They can't be read, or not in time.
pub fn live_pins(events: &Teller<EventsAsk>) -> Result<Vec<Pin>, CollectError> {
    told(events, EventsAsk::Pins)
}

/// Where MRs lie, as far as the kernel's programs looked, by umem. None where they look at none.
///
/// # Errors
/// As of `live_pins`.
pub fn placements(
    events: &Teller<EventsAsk>,
) -> Result<Option<HashMap<u64, Placed>>, CollectError> {
    told(events, EventsAsk::Placements)
}

type Answer<T> = Result<T, CollectError>;

fn told<T>(events: &Teller<EventsAsk>, ask: fn(Sender<Answer<T>>) -> EventsAsk) -> Answer<T> {
    let (reply, answer) = channel();
    if !events.tell(ask(reply)) {
        return Err(CollectError::Failed("mrscope ends".to_owned()));
    }
    let late =
        |_| CollectError::Failed("the kernel's live pins could not be read in time".to_owned());
    answer.recv_timeout(PINS_DEADLINE).map_err(late)?
}

/// The host's memory needs no rights.
pub fn memory(host: Host) -> std::io::Result<MemorySource> {
    Source::start("memory", Rights::NONE, move || {
        let mut reader = MemoryReader::new(host);
        move |()| Some(Ok(reader.read()))
    })
}

/// Who counts translations: the CPUs, or a recording.
pub trait CountsTlb {
    /// One reading of the counters of all CPUs, and of those of these processes.
    ///
    /// # Errors
    /// Nothing can be counted, and why.
    fn count(&mut self, processes: &[ProcessKey]) -> Result<TlbFigures, CollectError>;
}

/// `open` runs on the thread of the source, and gives up what rights it does not need.
pub fn tlb<O>(host: Host, open: O) -> std::io::Result<TlbSource>
where
    O: FnOnce(Host) -> Box<dyn CountsTlb> + Send + 'static,
{
    Source::start("tlb", Rights::TRACING, move || {
        let mut counters = open(host);
        move |processes: Vec<ProcessKey>| Some(counters.count(&processes))
    })
}

/// All processes of the host.
#[derive(Debug)]
pub struct ProcessList {
    pub tasks: Tasks,
    pub hook: HookState,
    boot_seconds: Option<u64>,
}

impl ProcessList {
    /// When that was, in seconds since the epoch, to the 10 ms that /proc has; `start_ns` is boot
    /// time. None where the host does not tell when it booted.
    #[must_use]
    pub fn start_time_seconds(&self, start_ns: u64) -> Option<f64> {
        let ticks = start_ns / 10_000_000;
        self.boot_seconds.map(|boot| (boot * 100 + ticks) as f64 / 100.0)
    }
}

/// Who lists the processes of the host: the kernel, or a recording.
pub trait ListsTasks {
    /// One reading, and the state of the program that made it.
    ///
    /// # Errors
    /// The processes can't be listed now.
    fn list(&mut self) -> Result<(Tasks, HookState), CollectError>;
}

/// `open` runs on the thread of the source, where the kernel's objects stay.
pub fn tasks<O>(host: Host, open: O) -> std::io::Result<TasksSource>
where
    O: FnOnce(Host) -> Box<dyn ListsTasks> + Send + 'static,
{
    Source::start("processes", Rights::TRACING, move || {
        let mut lister = open(host.clone());
        // Asked once: what is derived from it must not waver.
        let boot_seconds = host::boot_seconds(&host);
        move |()| {
            let (tasks, hook) = match lister.list() {
                Ok(listed) => listed,
                Err(error) => return Some(Err(error)),
            };
            let boot_seconds = boot_seconds.as_ref().ok().copied();
            Some(Ok(ProcessList { tasks, hook, boot_seconds }))
        }
    })
}

/// The running kernel's processes: by its iterator, where that can't be had by /proc.
pub struct LiveTasks {
    host: Host,
    /// What a reading takes: nothing from 5.19 on, unless /proc is what is read, or hides processes.
    rights: Rights,
    iterator: Option<TaskIterator>,
    /// Why there is none, or why it could not be read last.
    trouble: Option<Trouble>,
}

impl LiveTasks {
    /// The calling thread keeps what readings take of its capabilities, permitted alone.
    #[must_use]
    pub fn open(host: Host) -> Self {
        let all = Rights::TRACING.keep().unwrap_or(Rights::NONE);
        let hidden = all.for_processes(&host);
        let started = all
            .with(|| complete(TaskIterator::start(&host).map_err(|error| trouble(&error))?, &host));
        let (mut iterator, trouble) = match started {
            Ok(iterator) => (Some(iterator), None),
            Err(trouble) => (None, Some(trouble)),
        };
        let reading = match iterator.as_mut().map(TaskIterator::read) {
            Some(Err(EventsError::Denied(_))) => all.for_reading(),
            _ => Rights::NONE,
        };
        // Only by /proc, whose namespaces of others are shown to who may trace them alone.
        let by_proc = if iterator.is_none() { all.only(Rights::PROCESSES) } else { Rights::NONE };
        let rights = reading.and(hidden).and(by_proc).keep().unwrap_or(Rights::NONE);
        Self { host, rights, iterator, trouble }
    }

    /// None where there is no iterator, or it can't be read now: out of files or memory.
    fn by_iterator(&mut self) -> Option<(Tasks, HookState)> {
        let iterator = self.iterator.as_mut()?;
        match iterator.read() {
            Ok(tasks) => Some((tasks, iterator.state())),
            Err(error) => {
                self.trouble = Some(trouble(&error));
                if !matches!(error, EventsError::Map { .. }) {
                    // It will not be allowed again.
                    self.iterator = None;
                }
                None
            }
        }
    }
}

impl ListsTasks for LiveTasks {
    fn list(&mut self) -> Result<(Tasks, HookState), CollectError> {
        self.rights.with(|| {
            if let Some(listed) = self.by_iterator() {
                return Ok(listed);
            }
            let trouble = self.trouble.clone();
            let hook =
                HookState { hook: "tasks", symbol: "iter/task", attach: Attach::None, trouble };
            Ok((host::read_tasks(&self.host)?, hook))
        })
    }
}

/// The iterator, unless it hides what /proc shows: some sandboxes keep their first process from it.
fn complete(mut iterator: TaskIterator, host: &Host) -> Result<TaskIterator, Trouble> {
    let tasks = iterator.read().map_err(|error| trouble(&error))?;
    let hides = tasks.whole
        && host.proc("1/stat").exists()
        && !tasks.rows.iter().any(|task| task.key.tgid == 1);
    if hides {
        return Err(Trouble::Replaced(
            "the kernel's iterator does not show every process (pid 1 is missing, as in some \
             sandboxes); /proc is read instead"
                .to_owned(),
        ));
    }
    Ok(iterator)
}

fn trouble(error: &EventsError) -> Trouble {
    Trouble::Replaced(format!("{error}; /proc is read instead"))
}
