//! The limit on locked memory, and who needs none, told by the iterator and by /proc.

use super::causes::WITH_CAPABILITY;
use crate::cases::*;
use crate::exporter::Exporter;
use crate::page::Page;
use crate::workload::Workload;

/// A process that holds a lock, with what it then gives up, and whether the limit is none of its.
struct Holder {
    what: &'static str,
    starter: &'static [&'static str],
    commands: &'static [&'static str],
    cap_ipc_lock: bool,
    exempt: f64,
}

const HOLDERS: [Holder; 6] = [
    Holder { what: "root", starter: &[], commands: &[], cap_ipc_lock: true, exempt: 1.0 },
    Holder {
        what: "root without the capability",
        starter: &[],
        commands: &["dropcap"],
        cap_ipc_lock: false,
        exempt: 0.0,
    },
    Holder {
        what: "another user",
        starter: &[],
        commands: &["setuid uid=1000"],
        cap_ipc_lock: false,
        exempt: 0.0,
    },
    Holder {
        what: "another user with the capability",
        starter: &WITH_CAPABILITY,
        commands: &[],
        cap_ipc_lock: true,
        exempt: 1.0,
    },
    // There the capability is over nothing that the host limits.
    Holder {
        what: "who has it in a user namespace alone",
        starter: &[],
        commands: &["userns"],
        cap_ipc_lock: true,
        exempt: 0.0,
    },
    Holder {
        what: "another user in a user namespace",
        starter: &[],
        commands: &["setuid uid=1000", "userns"],
        cap_ipc_lock: true,
        exempt: 0.0,
    },
];

fn told(page: &Page, metric: &str, pid: u32) -> Result<f64, String> {
    let series = of_named(metric, "workload", pid);
    page.value(&series).ok_or_else(|| format!("{series} is absent"))
}

/// In one's limit there is no end, in the others' there is.
fn holders_are_told(exporter: &Exporter, tasks: &str) -> Outcome {
    let mut holders = Vec::new();
    for holder in &HOLDERS {
        let mut workload = Workload::start_by(holder.starter)?;
        workload.ask("map size=64K lock=1")?;
        let limited = if holder.exempt == 1.0 { "unlimited" } else { "128K" };
        let _ = workload.ask(&format!("rlimit memlock={limited}"));
        for command in holder.commands {
            workload.ask(command)?;
        }
        let status = workload.ask("status")?;
        if status["cap_ipc_lock"] != holder.cap_ipc_lock {
            return Err(format!("{}: {status}: the case proves nothing", holder.what));
        }
        holders.push((holder, workload));
    }
    let page = exporter.page()?;
    in_state(&page, "process", "ok")?;
    let series = format!("mrscope_program_attached{{attach=\"{tasks}\",program=\"tasks\"}}");
    if page.value(&series).is_none() {
        return Err(format!("{series} is absent: the case proves nothing"));
    }
    for (holder, workload) in &holders {
        let what = holder.what;
        let exempt = told(&page, "memlock_exempt", workload.pid);
        let exempt = exempt.map_err(|error| format!("{what}: {error}"))?;
        equal(&format!("{what}: exempt"), exempt, holder.exempt)?;
        let limit = told(&page, "memlock_limit_bytes", workload.pid)?;
        equal(&format!("{what}: limit"), limit, limit_by_proc(workload.pid)?)?;
    }
    holders.into_iter().try_for_each(|(_, workload)| workload.end())
}

/// The soft limit in bytes, by /proc.
pub(super) fn limit_by_proc(pid: u32) -> Result<f64, String> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"));
    let limits = limits.map_err(|error| error.to_string())?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => Ok(f64::INFINITY),
        Some(bytes) => bytes.parse().map_err(|_| format!("{bytes} is no limit")),
        None => Err(format!("{pid} has no limit on locked memory")),
    }
}

pub fn who_needs_no_memlock_limit_is_told_by_the_iterator() -> Outcome {
    let exporter = Exporter::start(&[])?;
    holders_are_told(&exporter, "iterator")?;
    exporter.stop().map(|_| ())
}

pub fn who_needs_no_memlock_limit_is_told_by_proc() -> Outcome {
    let exporter = super::degraded::start_after("mount -t tmpfs none /sys/kernel/btf")?;
    exporter.says(&["level=warn", "tasks", "/proc is read"])?;
    holders_are_told(&exporter, "none")?;
    exporter.stop().map(|_| ())
}
