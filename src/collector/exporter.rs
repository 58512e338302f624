//! Collector `exporter`: what mrscope watches, what it lost, and what it costs.

use std::time::Duration;

use crate::metrics::{Page, PageError, exporter};

use super::{CollectError, Collector, STATES, Scene};

pub struct Exporter;

impl Collector for Exporter {
    fn name(&self) -> &'static str {
        "exporter"
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        page.number(&exporter::BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1.0)?;
        for hook in scene.hooks {
            let watched = hook.attach.watches();
            let labels = [hook.hook, hook.attach.label()];
            page.number(&exporter::PROGRAM_ATTACHED, &labels, f64::from(watched))?;
        }
        // The collector `mr` says why there are no events.
        let Ok(snapshot) = scene.events else {
            return Ok(());
        };
        for lost in &snapshot.lost {
            let labels = [lost.source.as_str(), lost.reason];
            page.number(&exporter::LOST_UPDATES, &labels, lost.count as f64)?;
        }
        for map in &snapshot.maps {
            page.number(&exporter::MAP_ENTRIES, &[map.map], map.entries as f64)?;
            page.number(&exporter::MAP_MAX_ENTRIES, &[map.map], map.max_entries as f64)?;
            page.number(&exporter::MAP_MEMORY, &[map.map], map.memory_bytes as f64)?;
        }
        Ok(())
    }
}

/// How a collector's turn went.
pub struct Report {
    pub collector: &'static str,
    pub outcome: Result<(), CollectError>,
    pub took: Duration,
}

/// Writes how all collectors did.
pub fn write_reports(reports: &[Report], page: &mut Page) -> Result<(), PageError> {
    for report in reports {
        let state = report.outcome.as_ref().err().map_or("ok", CollectError::state);
        let success = !matches!(state, "failed" | "denied");
        let name = report.collector;
        page.number(&exporter::COLLECTOR_SUCCESS, &[name], f64::from(success))?;
        page.number(&exporter::COLLECTOR_SECONDS, &[name], report.took.as_secs_f64())?;
        for possible in STATES {
            let labels = [name, possible];
            page.number(&exporter::COLLECTOR_STATE, &labels, f64::from(possible == state))?;
        }
    }
    Ok(())
}
