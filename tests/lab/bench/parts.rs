//! A registration and its end, with all that mrscope does, and with each part of it off in turn.

use std::fs;

use super::ROUNDS;
use super::registrations::pairs;
use super::rounds::Rounds;
use crate::exporter::Exporter;
use crate::workload::Workload;

/// Each part, and the file that leaves it out; None for no mrscope at all.
const PARTS: [(&str, Option<&str>); 12] = [
    ("everything", Some("")),
    ("without placement.pages", Some("placement: {pages: false}")),
    ("without placement", Some("placement: {enabled: false}")),
    ("without process", Some("process: {enabled: false}")),
    ("without mlock", Some("mlock: {enabled: false}")),
    ("without hugepages", Some("hugepages: {enabled: false}")),
    ("without tlb", Some("tlb: {enabled: false}")),
    ("without write_probe", Some("write_probe: {enabled: false}")),
    ("without devices", Some("devices: {enabled: false}")),
    ("without resources", Some("resources: {enabled: false}")),
    ("without mr", Some("mr: {enabled: false}")),
    ("no mrscope", None),
];

const FIGURES: [&str; 2] =
    ["register + deregister of 4 KiB, ns, p10", "register + deregister of 4 KiB, ns, median"];

pub fn run() -> Result<(), String> {
    Rounds::run(ROUNDS, &PARTS, &FIGURES, |part| measure(*part))?.print();
    Ok(())
}

fn measure(part: Option<&str>) -> Result<Vec<f64>, String> {
    const FILE: &str = "/run/mrscope-bench.yaml";
    let mut workload = Workload::start()?;
    let Some(part) = part else { return pairs(&mut workload) };
    fs::write(FILE, part).map_err(|error| format!("{FILE}: {error}"))?;
    let exporter = Exporter::start(&["--config.file", FILE])?;
    let figures = pairs(&mut workload)?;
    exporter.stop()?;
    Ok(figures)
}
