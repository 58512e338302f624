//! Collector `write_probe`: what a port writes to itself.

use crate::metrics::{Page, PageError, write_probe};
use crate::model::{PortFigures, PortName, ProbeFigures, ProbeTrouble};

use super::{CollectError, Collector, Scene};

const NS: f64 = 1e-9;

pub struct WriteProbe;

impl Collector for WriteProbe {
    fn name(&self) -> &'static str {
        "write_probe"
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let Some(figures) = scene.write_probe else {
            return Err(CollectError::NoData("the first run has not come to an end".to_owned()));
        };
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
    // Of an excluded device nobody knows the ports.
    let number = if *number == 0 { String::new() } else { number.to_string() };
    for (result, count) in &port.runs {
        page.number(&write_probe::RUNS, &[device, &number, result], *count as f64)?;
    }
    if number.is_empty() {
        return Ok(());
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
            page.number(metric, &labels, ns as f64 * NS)?;
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

/// What keeps all ports from being measured, else what failed last, else what was not as asked.
fn verdict(figures: &ProbeFigures) -> Result<(), CollectError> {
    match &figures.trouble {
        Some(ProbeTrouble::Unsupported(why)) => return Err(CollectError::Unsupported(why.clone())),
        Some(ProbeTrouble::Failed(why)) => return Err(CollectError::Failed(why.clone())),
        None => {}
    }
    let present = || figures.ports.iter().filter(|(_, port)| port.present);
    let of = |(device, number): &PortName, why: &str| format!("{device} port {number}: {why}");
    if let Some((name, why)) =
        present().find_map(|(name, port)| Some((name, port.failure.as_ref()?)))
    {
        let said = of(name, why);
        return Err(if why.starts_with("permission:") {
            CollectError::Denied(said)
        } else {
            CollectError::Failed(said)
        });
    }
    if let Some((name, why)) =
        present().find_map(|(name, port)| Some((name, port.fallback.as_ref()?)))
    {
        return Err(CollectError::NoData(of(name, &format!("on base pages: {why}"))));
    }
    if present().any(|(_, port)| port.success.is_some()) {
        return Ok(());
    }
    Err(CollectError::NoData("no port was measured yet: runs_total tells what was skipped".into()))
}
