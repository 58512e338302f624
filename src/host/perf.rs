//! Counters by perf_event_open: groups of events that run at the same time, and their readings.
//! Stands alone, so that other programs can be built with this very file.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_SW_DUMMY, PERF_FLAG_FD_CLOEXEC, PERF_FORMAT_GROUP,
    PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_FORMAT_TOTAL_TIME_RUNNING, PERF_TYPE_HARDWARE,
    PERF_TYPE_HW_CACHE, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE, perf_event_attr,
};
use perf_event_open_sys::{ioctls, perf_event_open};
use rustix::io::Errno;

/// Events of one group: more than three need more counters than some CPUs have.
pub const MOST_EVENTS: usize = 3;

/// What is counted, in the kernel's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    pub kind: u32,
    pub config: u64,
}

impl Event {
    /// Cycles of a CPU that does not sleep.
    pub const CYCLES: Self =
        Self { kind: PERF_TYPE_HARDWARE, config: PERF_COUNT_HW_CPU_CYCLES as u64 };

    /// One of the kernel's names for events of caches: PERF_COUNT_HW_CACHE_*.
    #[must_use]
    pub const fn cache(cache: u32, operation: u32, result: u32) -> Self {
        let config = cache as u64 | (operation as u64) << 8 | (result as u64) << 16;
        Self { kind: PERF_TYPE_HW_CACHE, config }
    }

    /// An event by the number that the CPU's vendor gave it.
    #[must_use]
    pub const fn raw(config: u64) -> Self {
        Self { kind: PERF_TYPE_RAW, config }
    }

    /// PERF_COUNT_SW_*: counted by the kernel itself, on any machine.
    #[must_use]
    pub const fn software(config: u32) -> Self {
        Self { kind: PERF_TYPE_SOFTWARE, config: config as u64 }
    }
}

/// Where events are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All that runs on a CPU, the kernel too.
    Cpu(u32),
    /// A thread in user mode alone, and all threads that it creates from then on. (Before 5.13
    /// processes that it forks too.)
    Thread(u32),
}

/// Why an event can't be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// This CPU or kernel has no such event.
    Absent,
    Denied,
    /// Too many files are open.
    NoFiles,
    /// The CPU is offline.
    CpuGone,
    /// The thread has ended.
    ThreadGone,
    /// Any other errno.
    Other(i32),
}

/// Which event of a group could not be opened, by its position, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    pub at: usize,
    pub why: Why,
}

/// Counters since they were opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    /// How long they were to count.
    pub enabled_ns: u64,
    /// How long they did: less where others had the CPU's counters.
    pub running_ns: u64,
    /// In the order of the events.
    pub counts: Vec<u64>,
}

/// Open counters of one or a few events, all of which count at the same times.
#[derive(Debug)]
pub struct Group {
    leader: OwnedFd,
    /// Read by the leader, but alive as long as they are open.
    others: Vec<OwnedFd>,
    target: Target,
}

impl Group {
    /// Opens them and lets them count. Of a thread one event alone: a thread that it created between
    /// the openings of two would have but the first, and such groups can't be read (ECHILD).
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn open(target: Target, events: &[Event]) -> Result<Self, Refused> {
        let most = if matches!(target, Target::Cpu(_)) { MOST_EVENTS } else { 1 };
        let invalid = Refused { at: 0, why: Why::Other(Errno::INVAL.raw_os_error()) };
        let (first, rest) = events.split_first().ok_or(invalid)?;
        if events.len() > most {
            return Err(Refused { at: most, ..invalid });
        }
        let leader = open(target, *first, None).map_err(|why| Refused { at: 0, why })?;
        let mut others = Vec::with_capacity(rest.len());
        for (at, event) in rest.iter().enumerate() {
            let other = open(target, *event, Some(&leader));
            others.push(other.map_err(|why| Refused { at: at + 1, why })?);
        }
        if matches!(target, Target::Cpu(_)) {
            enable(&leader).map_err(|error| Refused { at: 0, why: why(&error, target) })?;
        }
        Ok(Self { leader, others, target })
    }

    /// None when they are dead: their CPU was offline since.
    ///
    /// # Errors
    /// The kernel can't read them.
    pub fn read(&self) -> io::Result<Option<Reading>> {
        let mut words = [0u8; 8 * (3 + MOST_EVENTS)];
        let length = loop {
            match rustix::io::read(&self.leader, &mut words) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(length) => break length,
            }
        };
        let words = words[..length].chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_ne_bytes(bytes)
        });
        let words: Vec<u64> = words.collect();
        Ok(match self.target {
            Target::Cpu(_) => of_group(&words, 1 + self.others.len()),
            Target::Thread(_) => of_one(&words),
        })
    }
}

/// `nr, time_enabled, time_running, value...`; a group whose CPU went has fallen apart.
fn of_group(words: &[u64], events: usize) -> Option<Reading> {
    let (head, counts) = words.split_at_checked(3)?;
    let whole = head[0] == events as u64 && counts.len() == events;
    whole.then(|| Reading { enabled_ns: head[1], running_ns: head[2], counts: counts.to_vec() })
}

/// `value, time_enabled, time_running`.
fn of_one(words: &[u64]) -> Option<Reading> {
    let [count, enabled_ns, running_ns] = words.try_into().ok()?;
    Some(Reading { enabled_ns, running_ns, counts: vec![count] })
}

fn open(target: Target, event: Event, leader: Option<&OwnedFd>) -> Result<OwnedFd, Why> {
    let mut attr = perf_event_attr {
        type_: event.kind,
        size: size_of::<perf_event_attr>() as u32,
        config: event.config,
        ..Default::default()
    };
    let times = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    attr.read_format = u64::from(times);
    match target {
        Target::Cpu(_) => {
            attr.read_format |= u64::from(PERF_FORMAT_GROUP);
            // The leader is enabled once all are there.
            attr.set_disabled(u64::from(leader.is_none()));
        }
        Target::Thread(_) => {
            attr.set_exclude_kernel(1);
            attr.set_exclude_hv(1);
            attr.set_inherit(1);
            attr.set_inherit_thread(1);
        }
    }
    let mut opened = system_call(&mut attr, target, leader);
    if attr.inherit_thread() == 1 && opened.as_ref().is_err_and(|error| is(error, Errno::INVAL)) {
        // Not known before 5.13.
        attr.set_inherit_thread(0);
        opened = system_call(&mut attr, target, leader);
    }
    opened.map_err(|error| why(&error, target))
}

fn system_call(
    attr: &mut perf_event_attr,
    target: Target,
    leader: Option<&OwnedFd>,
) -> io::Result<OwnedFd> {
    let (pid, cpu) = match target {
        Target::Cpu(cpu) => (-1, i32::try_from(cpu).unwrap_or(i32::MAX)),
        Target::Thread(tid) => (i32::try_from(tid).unwrap_or(i32::MAX), -1),
    };
    let leader = leader.map_or(-1, AsRawFd::as_raw_fd);
    let flags = std::os::raw::c_ulong::from(PERF_FLAG_FD_CLOEXEC);
    // SAFETY: `attr` is a whole attribute of the size that it names, and outlives the call; the
    // events only count, they neither sample nor write into memory of this process.
    let fd = unsafe { perf_event_open(attr, pid, cpu, leader, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn enable(leader: &OwnedFd) -> io::Result<()> {
    // SAFETY: an open perf event, and an argument that is a plain number.
    let done = unsafe { ioctls::ENABLE(leader.as_raw_fd(), 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn why(error: &io::Error, target: Target) -> Why {
    let number = error.raw_os_error().unwrap_or_default();
    match (Errno::from_raw_os_error(number), target) {
        (Errno::NODEV, Target::Cpu(cpu)) if !serves(cpu) => Why::CpuGone,
        (Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV | Errno::NOSYS, _) => Why::Absent,
        (Errno::PERM | Errno::ACCESS, _) => Why::Denied,
        (Errno::MFILE | Errno::NFILE, _) => Why::NoFiles,
        (Errno::SRCH, _) => Why::ThreadGone,
        _ => Why::Other(number),
    }
}

/// Whether a CPU takes any event at all: ENODEV is said of CPUs and of events alike.
fn serves(cpu: u32) -> bool {
    let dummy = Event::software(PERF_COUNT_SW_DUMMY);
    let mut attr = perf_event_attr {
        type_: dummy.kind,
        size: size_of::<perf_event_attr>() as u32,
        config: dummy.config,
        ..Default::default()
    };
    !system_call(&mut attr, Target::Cpu(cpu), None).is_err_and(|error| is(&error, Errno::NODEV))
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => out.write_str("this CPU has no such event"),
            Self::Denied => out.write_str("permission denied"),
            Self::NoFiles => out.write_str("too many open files"),
            Self::CpuGone => out.write_str("the CPU is offline"),
            Self::ThreadGone => out.write_str("the thread has ended"),
            Self::Other(number) => io::Error::from_raw_os_error(*number).fmt(out),
        }
    }
}

impl std::error::Error for Why {}
