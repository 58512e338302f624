//! Joins sources to words: each collector writes its part of a page, and says what stopped it.
//! A collector's failure hides nothing of another.

mod exporter;
mod mr;
mod run;

use crate::ebpf::EventsError;
use crate::ledger::Ledger;
use crate::metrics::{Page, PageError};
use crate::model::{HookState, Snapshot};

pub use run::{Engine, Pages, RenderError};

/// What all collectors of one page see.
#[derive(Debug)]
pub struct Scene<'a> {
    pub events: Result<&'a Snapshot, &'a CollectError>,
    pub hooks: &'a [HookState],
    pub ledger: &'a Ledger,
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
}

/// Why a collector has nothing, or not all, to show.
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
}

/// Every collector, in the order of the page.
#[must_use]
pub fn all() -> Vec<Box<dyn Collector>> {
    vec![Box::new(mr::Mr), Box::new(exporter::Exporter)]
}

/// The label `state` of each outcome, and every value that it can take.
pub const STATES: [&str; 5] = ["ok", "no_data", "unsupported", "denied", "failed"];

impl CollectError {
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self {
            Self::NoData(_) => "no_data",
            Self::Unsupported(_) => "unsupported",
            Self::Denied(_) => "denied",
            Self::Failed(_) => "failed",
        }
    }
}

impl From<PageError> for CollectError {
    fn from(error: PageError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<&EventsError> for CollectError {
    fn from(error: &EventsError) -> Self {
        match error {
            EventsError::Denied(_) => Self::Denied(error.to_string()),
            EventsError::Unsupported(_) => Self::Unsupported(error.to_string()),
            EventsError::Map { .. } => Self::Failed(error.to_string()),
        }
    }
}
