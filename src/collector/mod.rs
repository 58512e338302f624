//! Joins sources to words: each collector writes its part of a page, and says what stopped it.
//! A collector's failure hides nothing of another.

mod accounts;
mod counting;
mod devices;
mod exporter;
mod found;
mod hugepages;
mod journal;
mod labels;
mod mlock;
mod mr;
mod nics;
mod pages;
mod placement;
mod places;
mod probing;
mod process;
mod readings;
mod resources;
mod run;
mod source;
mod sources;
mod status;
mod tlb;
mod who;
mod write_probe;

use std::time::Duration;

use crate::ebpf::EventsError;
use crate::host::{HostError, HostMemory, OwnFigures};
use crate::ledger::View;
use crate::metrics::{Page, PageError};
use crate::model::{Found, HookState, Labels, ProbeFigures, Snapshot, TlbFigures};

pub use accounts::Resources;
pub use counting::LiveTlb;
pub use exporter::Report;
pub use nics::Devices;
pub use pages::{Choice, ChoiceError, Pages, RenderError, Rendered};
pub use places::Places;
pub use probing::{Prober, Probes};
pub use readings::{Openers, SourceOptions};
pub use run::{Engine, EngineOptions, Look};
pub use sources::{CountsTlb, ListsTasks, LiveTasks, ProcessList};
pub use status::{CollectorStatus, FailedRegistration, Status};
use who::Who;

/// What all collectors of one page see.
#[derive(Debug)]
pub struct Scene<'a> {
    pub events: Result<&'a Snapshot, &'a CollectError>,
    /// How the kernel's functions are watched.
    pub hooks: &'a [HookState],
    /// The same of the program that lists processes; None while there is no list.
    pub lister: Option<&'a HookState>,
    pub tasks: Result<&'a ProcessList, &'a CollectError>,
    pub devices: Result<&'a Devices, &'a CollectError>,
    pub memory: Result<&'a HostMemory, &'a CollectError>,
    pub tlb: Result<&'a TlbFigures, &'a CollectError>,
    pub write_probe: Result<&'a ProbeFigures, &'a CollectError>,
    pub resources: Result<&'a Resources, &'a CollectError>,
    pub places: Result<&'a Places, &'a CollectError>,
    /// MRs from before registrations were watched, which the ledger has taken in.
    pub found: &'a [Found],
    /// VmPin beyond what is known to be pinned by RDMA; None where one of both is not known.
    pub beyond_pins_bytes: Option<i64>,
    /// Names of the devices, as far as they are known.
    pub present: &'a [String],
    pub view: &'a View,
    /// Who the shown processes are.
    pub who: &'a Who,
    /// Labels of all processes without a series.
    pub others: &'a Labels,
    /// What mrscope itself costs; None where the host does not tell.
    pub own: Option<&'a OwnFigures>,
    pub took: SourceTimes,
}

/// What the readings of the sources took.
#[derive(Debug, Clone, Copy, Default)]
pub struct SourceTimes {
    pub events: Duration,
    pub tasks: Duration,
    pub devices: Duration,
    pub memory: Duration,
    pub tlb: Duration,
    pub resources: Duration,
    pub places: Duration,
}

/// One part of the page.
pub trait Collector: Send {
    /// The word for it: file name, flag, config key and label.
    fn name(&self) -> &'static str;

    /// Writes its samples.
    ///
    /// # Errors
    /// Why some or all are missing; what was written stays.
    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError>;

    /// What the reading behind its samples took; nothing where it has no source of its own.
    fn reading(&self, _: &SourceTimes) -> Duration {
        Duration::ZERO
    }
}

/// Why a collector has nothing, or not all, to show; each says what helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectError {
    /// There is nothing to see yet.
    #[error("{0}")]
    NoData(String),
    /// This kernel or machine can't tell.
    #[error("{0}")]
    Unsupported(String),
    /// It can, but not to this process.
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    Failed(String),
    /// The source has not answered for too long: what it said is dropped.
    #[error("{0}")]
    Stale(String),
}

/// Every collector, in the order of the page: [`crate::model::COLLECTORS`].
#[must_use]
pub fn all() -> Vec<Box<dyn Collector>> {
    vec![
        Box::new(mr::Mr::default()),
        Box::new(process::Process),
        Box::new(mlock::Mlock),
        Box::new(hugepages::Hugepages),
        Box::new(tlb::Tlb),
        Box::new(write_probe::WriteProbe),
        Box::new(devices::DeviceInfo),
        Box::new(resources::Resources),
        Box::new(placement::Placement),
        Box::new(exporter::Exporter),
    ]
}

/// State of a collector that is switched off.
pub const OFF: &str = "off";

/// Every value of the label `state`.
pub const STATES: [&str; 7] = ["ok", OFF, "no_data", "unsupported", "denied", "failed", "stale"];

impl CollectError {
    /// The value of the label `state`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self {
            Self::NoData(_) => "no_data",
            Self::Unsupported(_) => "unsupported",
            Self::Denied(_) => "denied",
            Self::Failed(_) => "failed",
            Self::Stale(_) => "stale",
        }
    }
}

impl From<PageError> for CollectError {
    fn from(error: PageError) -> Self {
        Self::Failed(format!("{error}: a defect of mrscope, please report it"))
    }
}

impl From<HostError> for CollectError {
    fn from(error: HostError) -> Self {
        let HostError::Read { source, .. } = &error;
        if source.kind() == std::io::ErrorKind::PermissionDenied {
            Self::Denied(format!("{error}; run mrscope as root"))
        } else {
            Self::Failed(error.to_string())
        }
    }
}

impl From<&EventsError> for CollectError {
    fn from(error: &EventsError) -> Self {
        match error {
            EventsError::Denied(_) | EventsError::LockedDown(_) => Self::Denied(error.to_string()),
            EventsError::Unsupported(_) => Self::Unsupported(error.to_string()),
            EventsError::Map { .. } => Self::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_collector_is_in_the_written_list_and_in_its_order() {
        let names: Vec<_> = super::all().iter().map(|collector| collector.name()).collect();
        assert_eq!(names, crate::model::COLLECTORS);
    }
}
