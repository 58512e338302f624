//! Collector `tlb`: translations that the CPUs had to look up.

use std::time::Duration;

use crate::host::{Host, Rights};
use crate::metrics::Page;
use crate::model::{ProcessKey, TlbFigures, TlbOptions};

use super::{CollectError, Collector, CountsTlb, Scene, SourceTimes};

#[derive(Default)]
pub struct Tlb {}

impl Collector for Tlb {
    fn name(&self) -> &'static str {
        "tlb"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.tlb
    }

    fn collect(&mut self, scene: &Scene<'_>, _page: &mut Page) -> Result<(), CollectError> {
        let _figures = scene.tlb.map_err(Clone::clone)?;
        Ok(())
    }
}

/// The counters of this machine's CPUs.
pub struct LiveTlb;

impl LiveTlb {
    /// The calling thread keeps what opening counters takes of its capabilities, permitted alone;
    /// with `permanent_drop` nothing once all are open.
    #[must_use]
    pub fn open(_host: Host, _options: &TlbOptions, _permanent_drop: bool) -> Self {
        let _ = Rights::NONE.keep();
        Self
    }
}

impl CountsTlb for LiveTlb {
    fn count(&mut self, _processes: &[ProcessKey]) -> Result<TlbFigures, CollectError> {
        Ok(TlbFigures {})
    }
}
