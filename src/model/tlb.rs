//! What a CPU's translations cost, as its counters say.

use super::ProcessKey;

/// Counters that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TlbEvent {
    DataLoad,
    DataStore,
    InstructionLoad,
    PageWalk,
}

impl TlbEvent {
    pub const ALL: [Self; 4] =
        [Self::DataLoad, Self::DataStore, Self::InstructionLoad, Self::PageWalk];

    /// The word for it in the configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::DataLoad => "dtlb_load",
            Self::DataStore => "dtlb_store",
            Self::InstructionLoad => "itlb_load",
            Self::PageWalk => "page_walk",
        }
    }
}

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlbOptions {
    /// Each once.
    pub events: Vec<TlbEvent>,
    /// Counts in processes that hold MRs too.
    pub per_process: bool,
    /// So many of them at most.
    pub max_processes: usize,
}

impl Default for TlbOptions {
    fn default() -> Self {
        Self { events: vec![TlbEvent::DataLoad], per_process: false, max_processes: 20 }
    }
}

/// What one counter of an event counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TlbRole {
    Access,
    Miss,
    /// Of a page walk: the CPU's cycles, walks, and cycles in which one was under way.
    Cycles,
    Walks,
    WalkCycles,
}

impl TlbRole {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::Miss => "miss",
            Self::Cycles => "cycles",
            Self::Walks => "walks",
            Self::WalkCycles => "walk_cycles",
        }
    }
}

/// Whether a counter's figures are to be believed; why not, and what helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counting {
    Counted,
    /// It has counted nothing yet.
    NoData(String),
    Unsupported(String),
    Denied(String),
    Failed(String),
}

/// A counter of all CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlbCounter {
    pub event: TlbEvent,
    pub role: TlbRole,
    pub counting: Counting,
    /// By NUMA node; nothing unless it is counted.
    pub nodes: Vec<TlbNode>,
}

/// What the CPUs of a NUMA node have counted. All of it only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TlbNode {
    pub node: u32,
    pub count: u64,
    /// How long their counters were to count, and did.
    pub enabled_ns: u64,
    pub running_ns: u64,
}

/// What a process has counted in user mode since it was first asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlbProcess {
    pub key: ProcessKey,
    pub event: TlbEvent,
    pub role: TlbRole,
    pub count: u64,
}

/// One reading of all counters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlbFigures {
    pub counters: Vec<TlbCounter>,
    pub processes: Vec<TlbProcess>,
    /// Why some that were asked for have no figures.
    pub missing: Option<Counting>,
}
