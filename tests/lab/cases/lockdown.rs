//! Kernels that nobody may change, or read, root included.

use super::degraded::{claims_no_registrations, shows_what_is_pinned};
use crate::cases::*;
use crate::exporter::Exporter;
use crate::workload::Workload;

fn is_locked_down(level: &str) -> Outcome {
    let path = "/sys/kernel/security/lockdown";
    if !std::path::Path::new(path).exists() {
        let mount = ["-t", "securityfs", "securityfs", "/sys/kernel/security"];
        let _ = std::process::Command::new("mount").args(mount).status();
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    if text.contains(&format!("[{level}]")) {
        Ok(())
    } else {
        Err(format!("lockdown is {text:?}, not {level}: the case proves nothing"))
    }
}

pub fn under_lockdown_integrity_it_does_what_it_can() -> Outcome {
    is_locked_down("integrity")?;
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=5 size=8192")?;
    let page = exporter.page()?;
    in_state(&page, "mr", "ok")?;
    equal("held", page.or_zero(ACTIVE), 5.0)?;
    equal("of the process", page.or_zero(&of_process("active", workload.pid)), 5.0)?;
    shows_what_is_pinned(&exporter, &workload, "iterator")?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

pub fn under_lockdown_confidentiality_it_says_what_is_denied() -> Outcome {
    is_locked_down("confidentiality")?;
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=5 size=8192")?;
    let page = exporter.page()?;
    in_state(&page, "mr", "denied")?;
    exporter.says(&["level=warn", "mr: denied", "lockdown is confidentiality", "integrity"])?;
    claims_no_registrations(&page)?;
    // The walk over processes asks for none of the functions that are refused.
    shows_what_is_pinned(&exporter, &workload, "iterator")?;
    workload.end()?;
    exporter.stop().map(|_| ())
}
