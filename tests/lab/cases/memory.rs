//! What memory processes pin and lock, against /proc.

use std::process::Command;

use super::identity::started_as_proc_says;
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::{Workload, number, status_bytes};

/// Metrics of a process with what /proc calls them.
const AS_IN_PROC: [(&str, &str); 4] = [
    ("pinned_bytes", "VmPin"),
    ("locked_bytes", "VmLck"),
    ("hugetlb_bytes", "HugetlbPages"),
    ("page_table_bytes", "VmPTE"),
];

fn shown(page: &Page, metric: &str, pid: u32) -> Result<f64, String> {
    let series = of_named(metric, "workload", pid);
    page.value(&series).ok_or_else(|| format!("{series} is absent"))
}

fn as_proc_says(page: &Page, pid: u32) -> Outcome {
    for (metric, name) in AS_IN_PROC {
        equal(name, shown(page, metric, pid)?, status_bytes(&pid.to_string(), name)?)?;
    }
    started_as_proc_says(page, "workload", pid)
}

/// The soft limit on locked memory in bytes, by prlimit.
fn memlock_limit(pid: u32) -> Result<f64, String> {
    let output = Command::new("prlimit")
        .args(["--pid", &pid.to_string(), "--memlock", "--output", "SOFT", "--noheadings", "--raw"])
        .output()
        .map_err(|error| format!("prlimit: {error}"))?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "unlimited" => Ok(f64::INFINITY),
        number => number.parse().map_err(|_| format!("prlimit says {number:?}")),
    }
}

pub fn memory_of_a_process_is_what_proc_says(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    workload.ask("rlimit memlock=64M")?;
    workload.ask("reg count=3 size=1M")?;
    workload.ask("reg count=2 size=2M pages=2m")?;
    workload.ask("mlock size=3M")?;
    let page = lab.exporter.page()?;
    as_proc_says(&page, pid)?;
    equal("pinned", shown(&page, "pinned_bytes", pid)?, 7.0 * 1024.0 * 1024.0)?;
    equal("locked", shown(&page, "locked_bytes", pid)?, 3.0 * 1024.0 * 1024.0)?;
    equal("hugepages", shown(&page, "hugetlb_bytes", pid)?, 4.0 * 1024.0 * 1024.0)?;
    equal("limit", shown(&page, "memlock_limit_bytes", pid)?, 64.0 * 1024.0 * 1024.0)?;
    equal("limit by prlimit", shown(&page, "memlock_limit_bytes", pid)?, memlock_limit(pid)?)?;
    equal("mlockall", shown(&page, "mlockall_future", pid)?, 0.0)?;

    workload.ask("mlockall")?;
    workload.ask("rlimit memlock=unlimited")?;
    let reply = workload.ask("reg count=1 size=1M")?;
    if number(&reply, "vmlck_after")? < 4.0 * 1024.0 * 1024.0 {
        return Err(format!("what was mapped is not locked: {reply}: the case proves nothing"));
    }
    let page = lab.exporter.page()?;
    as_proc_says(&page, pid)?;
    equal("mlockall", shown(&page, "mlockall_future", pid)?, 1.0)?;
    equal("no limit", shown(&page, "memlock_limit_bytes", pid)?, memlock_limit(pid)?)?;
    workload.end()?;
    wait_for("all of it to go", || {
        let page = lab.exporter.page()?;
        let series = AS_IN_PROC.map(|(metric, _)| of_named(metric, "workload", pid));
        Ok(series.iter().all(|series| page.value(series).is_none()))
    })
}

/// The sum over all of /proc, one process excepted; who has no memory, or vanishes, has nothing.
fn all_of_proc(name: &str, except: u32) -> Result<f64, String> {
    let entries = std::fs::read_dir("/proc").map_err(|error| error.to_string())?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = pids.filter(|pid: &u32| *pid != except);
    Ok(others.map(|pid| status_bytes(&pid.to_string(), name).unwrap_or(0.0)).sum())
}

/// With one series for many, and a process that shares another's memory.
pub fn what_is_shown_and_what_others_hold_is_all_that_proc_has() -> Outcome {
    let exporter = Exporter::start(&["--process.max", "1"])?;
    let mut workloads = Vec::new();
    for pages in 1..=3 {
        let mut workload = Workload::start()?;
        workload.ask(&format!("reg count={pages} size=8192"))?;
        workload.ask(&format!("mlock size={}", pages * 4096))?;
        workloads.push(workload);
    }
    let child = number(&workloads[2].ask("share")?, "child_pid")? as u32;
    let parent = workloads[2].pid;
    for (metric, name) in [("pinned_bytes", "VmPin"), ("locked_bytes", "VmLck")] {
        let (its, childs) = (parent.to_string(), child.to_string());
        equal("/proc shows it twice", status_bytes(&childs, name)?, status_bytes(&its, name)?)?;
        let page = exporter.page()?;
        let series: Vec<_> = page.starting(&format!("mrscope_process_{metric}{{")).collect();
        equal("series", series.len() as f64, 2.0)?;
        let sum = series.iter().map(|(_, bytes)| bytes).sum();
        equal(name, sum, all_of_proc(name, child)?)?;
        if sum < 6.0 * 4096.0 {
            return Err(format!("{name} is {sum}, less than what the workloads hold"));
        }
    }
    workloads.into_iter().try_for_each(Workload::end)?;
    exporter.stop().map(|_| ())
}
