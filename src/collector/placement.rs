//! Collector `placement`: where registered memory lies, and how much of it is distinct.

use std::time::Duration;

use crate::ledger::Shown;
use crate::metrics::{Page, placement};
use crate::model::ProcessKey;

use super::{CollectError, Collector, Scene, SourceTimes};

pub struct Placement;

impl Collector for Placement {
    fn name(&self) -> &'static str {
        "placement"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.places
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let places = scene.places.map_err(Clone::clone)?;
        page.number(&placement::READ, &[], places.at)?;
        let distinct = &places.distinct;
        page.number(&placement::DISTINCT, &[], distinct.bytes as f64)?;
        let mut others = distinct.bytes;
        for shown in &scene.view.shown {
            let of_members = shown.members.iter().map(ProcessKey::tick);
            let known = of_members.filter_map(|tick| distinct.of_process.get(&tick));
            if let Some(bytes) = known.copied().reduce(u64::saturating_add).or_else(|| none(shown))
            {
                // Two with one pid and tick can't be: what is shown is a part of all.
                others = others.saturating_sub(bytes);
                page.process_number(
                    &placement::PROCESS_DISTINCT,
                    &shown.labels,
                    None,
                    bytes as f64,
                )?;
            }
        }
        page.process_number(&placement::PROCESS_DISTINCT, scene.others, None, others as f64)?;
        Ok(())
    }
}

/// What a series holds of which nothing was read: nothing, unless it is newer than the reading.
fn none(shown: &Shown) -> Option<u64> {
    shown.gauges.filter(|held| held.active <= 0).map(|_| 0)
}
