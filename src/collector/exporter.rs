//! Collector `exporter`: what mrscope watches, what it lost, and what it costs.

use std::time::Duration;

use crate::host::OwnFigures;
use crate::metrics::{Page, PageError, exporter};

use super::{CollectError, Collector, OFF, STATES, Scene};

pub struct Exporter;

impl Collector for Exporter {
    fn name(&self) -> &'static str {
        "exporter"
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        page.number(&exporter::BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1.0)?;
        for hook in scene.hooks.iter().chain(scene.lister) {
            let labels = [hook.hook, hook.attach.label()];
            let watched = f64::from(hook.attach.watches());
            page.number(&exporter::PROGRAM_ATTACHED, &labels, watched)?;
        }
        if let Some(figures) = scene.own {
            own(figures, page)?;
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

fn own(figures: &OwnFigures, page: &mut Page) -> Result<(), PageError> {
    let count = |value: Option<u64>| value.map(|value| value as f64);
    for (metric, value) in [
        (&exporter::OWN_CPU_SECONDS, Some(figures.cpu_seconds)),
        (&exporter::OWN_RESIDENT_BYTES, count(Some(figures.resident_bytes))),
        (&exporter::OWN_VIRTUAL_BYTES, count(Some(figures.virtual_bytes))),
        (&exporter::OWN_THREADS, count(Some(figures.threads))),
        (&exporter::OWN_START_SECONDS, figures.start_seconds),
        (&exporter::OWN_OPEN_FILES, count(figures.open_files)),
        (&exporter::OWN_MAX_FILES, count(figures.max_files)),
    ] {
        if let Some(value) = value {
            page.number(metric, &[], value)?;
        }
    }
    Ok(())
}

/// How a collector's turn went.
#[derive(Debug)]
pub struct Report {
    pub collector: &'static str,
    pub outcome: Result<(), CollectError>,
    pub took: Duration,
}

/// Writes how collectors did, and which are switched off.
pub fn write_reports(
    reports: &[Report],
    off: &[&'static str],
    page: &mut Page,
) -> Result<(), PageError> {
    for Report { collector, outcome, took } in reports {
        let state = outcome.as_ref().err().map_or("ok", CollectError::state);
        let success = f64::from(!matches!(state, "failed" | "denied"));
        page.number(&exporter::COLLECTOR_SUCCESS, &[collector], success)?;
        page.number(&exporter::COLLECTOR_SECONDS, &[collector], took.as_secs_f64())?;
        write_state(collector, state, page)?;
    }
    off.iter().try_for_each(|collector| write_state(collector, OFF, page))
}

fn write_state(collector: &str, state: &str, page: &mut Page) -> Result<(), PageError> {
    for possible in STATES {
        let is_it = f64::from(possible == state);
        page.number(&exporter::COLLECTOR_STATE, &[collector, possible], is_it)?;
    }
    Ok(())
}
