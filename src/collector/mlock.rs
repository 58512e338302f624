//! Collector `mlock`: calls that lock memory.

use std::time::Duration;

use crate::metrics::Page;

use super::{CollectError, Collector, Scene, SourceTimes};

pub struct Mlock;

impl Collector for Mlock {
    fn name(&self) -> &'static str {
        "mlock"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.events
    }

    fn collect(&mut self, scene: &Scene<'_>, _page: &mut Page) -> Result<(), CollectError> {
        let _snapshot = scene.events.map_err(Clone::clone)?;
        Ok(())
    }
}
