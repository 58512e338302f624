//! One reading of all maps. Rows of one device under several kernel ids are already joined.

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

/// Why a registration failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    Refused,
    Device,
    MemlockZero,
    MemlockLimit,
    NoMemory,
    Interrupted,
    BadAddress,
    HugepageUnavailable,
    Invalid,
    Other,
}

impl Cause {
    /// In the order of `enum failure_cause` of bpf/process.h.
    pub const ALL: [Self; 10] = [
        Self::Refused,
        Self::Device,
        Self::MemlockZero,
        Self::MemlockLimit,
        Self::NoMemory,
        Self::Interrupted,
        Self::BadAddress,
        Self::HugepageUnavailable,
        Self::Invalid,
        Self::Other,
    ];

    /// The value of the label `cause`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Device => "device",
            Self::MemlockZero => "memlock_zero",
            Self::MemlockLimit => "memlock_limit",
            Self::NoMemory => "no_memory",
            Self::Interrupted => "interrupted",
            Self::BadAddress => "bad_address",
            Self::HugepageUnavailable => "hugepage_unavailable",
            Self::Invalid => "invalid",
            Self::Other => "other",
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
            registration_slots: vec![0; Self::SLOTS],
            pin_slots: vec![0; Self::SLOTS],
            deregistration_slots: vec![0; Self::SLOTS],
            size_slots: vec![0; Self::SLOTS],
            active: 0,
            active_bytes: 0,
            pinned_bytes: [0; PinUse::ALL.len()],
            unknown_releases: 0,
        }
    }
}

/// Failed registrations of one device, errno and cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub device: String,
    /// The positive errno that the kernel returned.
    pub error: u32,
    pub cause: Cause,
    pub count: u64,
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

/// All maps, read once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Since when registrations are watched, on the kernel's monotonic clock. None while they are
    /// not.
    pub counting_since_ns: Option<u64>,
    pub devices: Vec<DeviceTotals>,
    pub failures: Vec<Failure>,
    pub processes: Vec<Process>,
    pub in_flight: Vec<InFlight>,
    /// None while they are not watched.
    pub mlocks: Option<Mlocks>,
    pub lost: Vec<LostUpdates>,
    pub maps: Vec<MapUse>,
}
