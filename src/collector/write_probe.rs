//! Collector `write_probe`: what a port writes to itself.

use crate::metrics::{Page, PageError, write_probe};
use crate::model::{PortFigures, PortName, ProbeFigures, ProbeTrouble};

use super::{CollectError, Collector, Scene};

const NS_PER_SECOND: f64 = 1e9;
/// Reason of a run that was not let do it.
const PERMISSION: &str = "permission";

pub struct WriteProbe;

impl Collector for WriteProbe {
    fn name(&self) -> &'static str {
        "write_probe"
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let figures = scene.write_probe.map_err(Clone::clone)?;
        for (name, port) in &figures.ports {
            write(name, port, page)?;
        }
        verdict(figures)
    }
}

fn write(
    (device, number): &PortName,
    port: &PortFigures,
    page: &mut Page,
) -> Result<(), PageError> {
    let number = number.to_string();
    for (result, count) in &port.runs {
        page.number(&write_probe::RUNS, &[device, &number, result], *count as f64)?;
    }
    let labels = [device.as_str(), number.as_str()];
    page.number(&write_probe::UNSEEN, &labels, port.unseen as f64)?;
    if !port.present {
        return Ok(());
    }
    for ((page_bytes, node), measured) in &port.measured {
        let size = page_bytes.to_string();
        let node = node.map(|node| node.to_string()).unwrap_or_default();
        let labels = [device.as_str(), number.as_str(), size.as_str(), node.as_str()];
        page.number(&write_probe::BANDWIDTH, &labels, measured.bandwidth_bytes_per_second)?;
        for (metric, ns) in [
            (&write_probe::LATENCY_P50, measured.latency_p50_ns),
            (&write_probe::LATENCY_P99, measured.latency_p99_ns),
            (&write_probe::REGISTRATION, measured.registration_ns),
        ] {
            page.number(metric, &labels, ns as f64 / NS_PER_SECOND)?;
        }
    }
    for (metric, value) in [
        (&write_probe::SUCCESS, port.success.map(f64::from)),
        (&write_probe::LAST_RUN, port.last_run),
        (&write_probe::PORT_RATE, port.rate_bytes_per_second.map(|rate| rate as f64)),
    ] {
        if let Some(value) = value {
            page.number(metric, &labels, value)?;
        }
    }
    Ok(())
}

/// What keeps all ports from being measured, else every port that failed, else what was not as
/// asked.
fn verdict(figures: &ProbeFigures) -> Result<(), CollectError> {
    match &figures.trouble {
        Some(ProbeTrouble::Unsupported(why)) => return Err(CollectError::Unsupported(why.clone())),
        Some(ProbeTrouble::Failed(why)) => return Err(CollectError::Failed(why.clone())),
        None => {}
    }
    let present: Vec<_> = figures.ports.iter().filter(|(_, port)| port.present).collect();
    let said = |(device, number): &PortName, why: &str| format!("{device} port {number}: {why}");
    let failed = present.iter().filter_map(|(name, port)| Some((name, port.failure.as_ref()?)));
    let failed: Vec<_> =
        failed.map(|(name, (word, why))| (*word, said(name, &format!("{word}: {why}")))).collect();
    if !failed.is_empty() {
        let denied = failed.iter().all(|(word, _)| *word == PERMISSION);
        let lines: Vec<_> = failed.into_iter().map(|(_, line)| line).collect();
        let all = lines.join("; ");
        return Err(if denied { CollectError::Denied(all) } else { CollectError::Failed(all) });
    }
    let on_base = present.iter().filter_map(|(name, port)| {
        Some(said(name, &format!("on base pages: {}", port.fallback.as_ref()?)))
    });
    let on_base: Vec<_> = on_base.collect();
    if !on_base.is_empty() {
        return Err(CollectError::NoData(on_base.join("; ")));
    }
    if present.iter().any(|(_, port)| port.success.is_some()) {
        return Ok(());
    }
    Err(CollectError::NoData(if present.is_empty() {
        "there is no RDMA device".to_owned()
    } else {
        "every port was skipped: mrscope_write_probe_runs_total tells why".to_owned()
    }))
}
