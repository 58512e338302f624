//! One reading of all maps. Rows of one device under several kernel ids are already joined.

use super::failure::{Cause, Failure};
use super::histogram::Slots;
use super::mlock::Mlocks;
use super::process::Process;

/// What an MR's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MrKind {
    Host,
    Odp,
    Dmabuf,
    Dm,
    Peer,
}

impl MrKind {
    /// In the order of `enum mr_kind` of bpf/umem.h.
    pub const ALL: [Self; 5] = [Self::Host, Self::Odp, Self::Dmabuf, Self::Dm, Self::Peer];

    /// The value of the label `kind`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Odp => "odp",
            Self::Dmabuf => "dmabuf",
            Self::Dm => "dm",
            Self::Peer => "peer",
        }
    }
}

/// What pinned memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinUse {
    Mr,
    Queue,
    Devx,
}

impl PinUse {
    /// In the order of `enum pin_use` of bpf/umem.h.
    pub const ALL: [Self; 3] = [Self::Mr, Self::Queue, Self::Devx];

    /// The value of the label `use`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Mr => "mr",
            Self::Queue => "queue",
            Self::Devx => "devx",
        }
    }
}

/// One device and kind of MR, since mrscope's start. Slots: [`super::power_of_four_bounds`] from 2^12.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTotals {
    pub device: String,
    pub kind: MrKind,
    pub registration_ns: u64,
    pub pin_ns: u64,
    pub deregistration_ns: u64,
    pub registered_bytes: u64,
    /// Registrations of what had been deregistered before, and their time.
    pub repeats: u64,
    pub repeat_ns: u64,
    pub registration_slots: Slots,
    pub pin_slots: Slots,
    pub deregistration_slots: Slots,
    pub size_slots: Slots,
    pub active: i64,
    pub active_bytes: i64,
    /// By [`PinUse::ALL`].
    pub pinned_bytes: [i64; PinUse::ALL.len()],
    /// Calls that released what no row tells of: registered before mrscope watched, or lost.
    pub unknown_releases: u64,
    /// What looking at the pages of MRs took, which is in no other time here.
    pub walk_ns: u64,
}

impl DeviceTotals {
    /// Slots of every histogram: see [`super::power_of_four_bounds`].
    pub const SLOTS: usize = 28;

    /// A device and kind on which nothing happened.
    #[must_use]
    pub fn idle(device: &str, kind: MrKind) -> Self {
        Self {
            device: device.to_owned(),
            kind,
            registration_ns: 0,
            pin_ns: 0,
            deregistration_ns: 0,
            registered_bytes: 0,
            repeats: 0,
            repeat_ns: 0,
            registration_slots: vec![0; Self::SLOTS],
            pin_slots: vec![0; Self::SLOTS],
            deregistration_slots: vec![0; Self::SLOTS],
            size_slots: vec![0; Self::SLOTS],
            active: 0,
            active_bytes: 0,
            pinned_bytes: [0; PinUse::ALL.len()],
            unknown_releases: 0,
            walk_ns: 0,
        }
    }
}

/// A registration that failed, with what decided why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastFailure {
    /// By the monotonic clock.
    pub at_ns: u64,
    pub tgid: u32,
    /// Name of the process then; any text.
    pub comm: String,
    pub device: String,
    pub error: u32,
    pub cause: Cause,
    pub kind: MrKind,
    /// None where no pin was tried: the kernel side does not learn it then.
    pub range: Option<AddressRange>,
    /// Soft limit, of which [`super::Memory::NO_LIMIT`] is none.
    pub memlock_bytes: u64,
    /// VmPin, as the kernel compared it with the limit.
    pub pinned_bytes: u64,
    /// It had CAP_IPC_LOCK in the initial user namespace.
    pub memlock_exempt: bool,
}

/// What was to be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    pub address: u64,
    pub length_bytes: u64,
}

/// A registration that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    pub device: String,
    pub tgid: u32,
    pub tid: u32,
    pub age_ns: u64,
}

/// Events that could not be counted where they belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostUpdates {
    /// The map that could not take a row, or the hook whose probe was missed.
    pub source: String,
    pub reason: &'static str,
    pub count: u64,
}

/// How full a BPF map is and what kernel memory it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapUse {
    pub map: &'static str,
    pub entries: u64,
    pub max_entries: u64,
    pub memory_bytes: u64,
}

impl MapUse {
    /// A full one loses nothing that counts: of the devices' samples a few are enough, and of the
    /// last failures the newest; what the history forgets is told, and placements have the rows of pins.
    #[must_use]
    pub fn may_be_full(&self) -> bool {
        matches!(self.map, "device_samples" | "last_failures" | "history" | "placements")
    }
}

/// All maps, read once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Since when registrations are watched, on the kernel's monotonic clock. None while they are
    /// not.
    pub counting_since_ns: Option<u64>,
    pub devices: Vec<DeviceTotals>,
    pub failures: Vec<Failure>,
    /// The newest of each process, device and cause, as many as there is room for; newest first.
    pub last_failures: Vec<LastFailure>,
    pub processes: Vec<Process>,
    /// Deregistered MRs of living processes that are remembered no more.
    pub history_forgotten: u64,
    pub in_flight: Vec<InFlight>,
    /// None while they are not watched.
    pub mlocks: Option<Mlocks>,
    pub lost: Vec<LostUpdates>,
    pub maps: Vec<MapUse>,
}
