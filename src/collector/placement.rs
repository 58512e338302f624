//! Collector `placement`: where registered memory lies, and how much of it is distinct.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ledger::Shown;
use crate::ledger::distinct::{Distinct, Tick};
use crate::ledger::layout::{Holding, Layout, Method, Scatter};
use crate::metrics::{Page, PageError, placement};
use crate::model::{Labels, Place, ProcessKey};

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
        distinct(&places.distinct, scene, page)?;
        if let Some(layout) = &places.layout {
            devices(layout, scene.present, page)?;
            looks(scene, page)?;
            processes(layout, scene, page)?;
        }
        match &places.trouble {
            Some(why) => Err(why.clone()),
            None => Ok(()),
        }
    }
}

fn distinct(all: &Distinct, scene: &Scene<'_>, page: &mut Page) -> Result<(), PageError> {
    page.number(&placement::DISTINCT, &[], all.bytes as f64)?;
    let mut others = all.bytes;
    for shown in &scene.view.shown {
        let known = members(shown).filter_map(|tick| all.of_process.get(&tick));
        let Some(bytes) = known.copied().reduce(u64::saturating_add).or_else(|| none(shown)) else {
            continue;
        };
        others = others.saturating_sub(bytes);
        let labels = &shown.labels;
        page.process_number(&placement::PROCESS_DISTINCT, labels, None, bytes as f64)?;
    }
    page.process_number(&placement::PROCESS_DISTINCT, scene.others, None, others as f64)
}

/// Those that are there and hold nothing have their zeros.
fn devices(layout: &Layout, present: &[String], page: &mut Page) -> Result<(), PageError> {
    for (device, holding) in &layout.of_device {
        for (place, bytes) in holding.placement.iter() {
            let [size, node] = words(place);
            page.number(&placement::PLACED, &[device, &size, &node], bytes as f64)?;
        }
    }
    let idle = present.iter().filter(|name| !layout.of_device.contains_key(*name));
    let idle = idle.map(|name| (name, Scatter::default()));
    let busy = layout.of_device.iter().map(|(name, holding)| (name, holding.scatter));
    for (device, Scatter { entries, bytes }) in busy.chain(idle) {
        page.number(&placement::SCATTER_ENTRIES, &[device], entries as f64)?;
        page.number(&placement::SCATTER_BYTES, &[device], bytes as f64)?;
    }
    for (method, bytes) in Method::ALL.iter().zip(layout.by_method) {
        page.number(&placement::BY_METHOD, &[method.label()], bytes as f64)?;
    }
    Ok(())
}

/// Of all devices that registrations were seen on, or that are there.
fn looks(scene: &Scene<'_>, page: &mut Page) -> Result<(), PageError> {
    let mut seconds: BTreeMap<&str, f64> =
        scene.present.iter().map(|name| (name.as_str(), 0.0)).collect();
    for totals in scene.events.iter().flat_map(|snapshot| &snapshot.devices) {
        *seconds.entry(&totals.device).or_default() += totals.walk_ns as f64 * 1e-9;
    }
    for (device, seconds) in seconds {
        page.number(&placement::LOOK_SECONDS, &[device], seconds)?;
    }
    Ok(())
}

fn processes(layout: &Layout, scene: &Scene<'_>, page: &mut Page) -> Result<(), PageError> {
    let mut others: BTreeMap<Place, u64> = layout.all.placement.iter().collect();
    let mut scattered = layout.all.scatter;
    for shown in &scene.view.shown {
        let known: Vec<&Holding> =
            members(shown).filter_map(|tick| layout.of_process.get(&tick)).collect();
        let mut holding = Holding::default();
        for of_one in &known {
            holding.merge(of_one);
        }
        if known.is_empty() && none(shown).is_none() {
            continue;
        }
        for (place, bytes) in holding.placement.iter() {
            let rest = others.entry(place).or_default();
            *rest = rest.saturating_sub(bytes);
        }
        scattered.entries = scattered.entries.saturating_sub(holding.scatter.entries);
        scattered.bytes = scattered.bytes.saturating_sub(holding.scatter.bytes);
        process(&shown.labels, holding.placement.iter(), holding.scatter, page)?;
    }
    process(scene.others, others.into_iter(), scattered, page)
}

fn process(
    labels: &Labels,
    places: impl Iterator<Item = (Place, u64)>,
    scatter: Scatter,
    page: &mut Page,
) -> Result<(), PageError> {
    for (place, bytes) in places {
        let words = words(place);
        page.process_number_at(&placement::PROCESS_PLACED, labels, words, bytes as f64)?;
    }
    let Scatter { entries, bytes } = scatter;
    page.process_number(&placement::PROCESS_SCATTER_ENTRIES, labels, None, entries as f64)?;
    page.process_number(&placement::PROCESS_SCATTER_BYTES, labels, None, bytes as f64)
}

/// Values of `page_size` and `numa_node`.
fn words(place: Place) -> [String; 2] {
    let unknown = || "unknown".to_owned();
    [
        place.page_bytes.map_or_else(unknown, |bytes| bytes.to_string()),
        place.node.map_or_else(unknown, |node| node.to_string()),
    ]
}

fn members(shown: &Shown) -> impl Iterator<Item = Tick> + '_ {
    shown.members.iter().map(ProcessKey::tick)
}

/// What a series holds of which nothing was read: nothing, unless it is newer than the reading.
fn none(shown: &Shown) -> Option<u64> {
    shown.gauges.filter(|held| held.active <= 0).map(|_| 0)
}
