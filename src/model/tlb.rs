//! What a CPU's translations cost, as its counters say.

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

/// One reading of all counters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlbFigures {}
