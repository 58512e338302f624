//! The cases, and the words that they share.

mod bench_table;
mod causes;
mod churn;
mod degraded;
mod devices;
mod distinct;
mod exact;
mod failure;
mod groups;
mod held;
mod holders;
mod hugepages;
mod identity;
mod late;
mod lifecycle;
mod lists;
mod lives;
mod lockdown;
mod locks;
mod memlock;
mod memory;
mod nldev;
mod paths;
mod placement;
mod privilege;
mod probing;
mod probing_faults;
mod programs;
mod random;
mod repeats;
mod rereg;
mod sampled;
mod stall;
mod vendor;
mod who;
mod write_probe;
mod write_probe_faults;

use crate::boot::Boot;
use crate::exporter::Exporter;
use crate::page::Page;

pub use lists::*;

pub type Outcome = Result<(), String>;

/// What a case has: the kernel, the way of attaching, and the mrscope that all cases of it share.
pub struct Lab<'a> {
    pub kernel: &'a str,
    /// The hook that sees host memory being pinned on this kernel.
    pub pin_program: &'static str,
    /// The rung that its hooks must stand on.
    pub attach: &'static str,
    pub exporter: &'a Exporter,
}

/// How mrscope watches functions of modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Auto,
    Fentry,
}

impl Mode {
    pub const ALL: [Self; 2] = [Self::Auto, Self::Fentry];

    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Auto => &[],
            Self::Fentry => &["--ebpf.attach", "fentry"],
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            Self::Auto => "kprobe",
            Self::Fentry => "fentry",
        }
    }
}

pub type Case = (&'static str, fn(&Lab<'_>) -> Outcome);
pub type OwnCase = (&'static str, fn(Mode) -> Outcome);
pub type OnceCase = (&'static str, fn() -> Outcome);
pub type BootCase = (Boot, &'static str, fn() -> Outcome);
pub type KernelCase = (&'static str, fn(&str) -> Outcome);

/// Run as [`ONCE`].
pub const MORE: &[&[OnceCase]] = &[
    probing::CASES,
    probing_faults::CASES,
    nldev::CASES,
    causes::CASES,
    distinct::CASES,
    held::CASES,
    repeats::CASES,
    rereg::CASES,
    sampled::CASES,
    stall::CASES,
    random::CASES,
    late::CASES,
    placement::CASES,
    who::CASES,
];

/// Fails with both values unless they are equal.
pub fn equal(what: &str, seen: f64, expected: f64) -> Outcome {
    if seen == expected {
        Ok(())
    } else {
        Err(format!("{what}: mrscope says {seen}, expected {expected}"))
    }
}

pub const ACTIVE: &str = "mrscope_mr_active{device=\"rxe0\",kind=\"host\"}";
pub const ACTIVE_BYTES: &str = "mrscope_mr_active_bytes{device=\"rxe0\",kind=\"host\"}";
pub const PINNED_MR: &str = "mrscope_umem_pinned_bytes{device=\"rxe0\",use=\"mr\"}";
pub const PINNED_QUEUE: &str = "mrscope_umem_pinned_bytes{device=\"rxe0\",use=\"queue\"}";
pub const REGISTRATIONS: &str =
    "mrscope_mr_registration_duration_seconds_count{device=\"rxe0\",kind=\"host\"}";
pub const REGISTRATION_SECONDS: &str =
    "mrscope_mr_registration_duration_seconds_sum{device=\"rxe0\",kind=\"host\"}";
pub const LOOKING_SECONDS: &str = "mrscope_mr_placement_seconds_total{device=\"rxe0\"}";
pub const PIN_SECONDS: &str = "mrscope_mr_pin_duration_seconds_sum{device=\"rxe0\",kind=\"host\"}";
pub const DEREGISTRATIONS: &str =
    "mrscope_mr_deregistration_duration_seconds_count{device=\"rxe0\",kind=\"host\"}";
pub const DEREGISTRATION_SECONDS: &str =
    "mrscope_mr_deregistration_duration_seconds_sum{device=\"rxe0\",kind=\"host\"}";

/// A series of a process, whatever its name.
pub fn of_named(metric: &str, comm: &str, pid: u32) -> String {
    format!("mrscope_process_{metric}{{comm=\"{comm}\",pid=\"{pid}\"}}")
}

/// A collector is in that state, and in no other.
pub fn in_state(page: &Page, collector: &str, state: &str) -> Outcome {
    let prefix = format!("mrscope_collector_state{{collector=\"{collector}\",");
    let set: Vec<_> = page.starting(&prefix).filter(|(_, on)| *on == 1.0).collect();
    let wanted = format!("{prefix}state=\"{state}\"}}");
    if set.iter().map(|(name, _)| *name).eq([wanted.as_str()]) {
        Ok(())
    } else {
        Err(format!("the state of {collector} is {set:?}, expected {state}"))
    }
}

/// A series of one process of the workload's usual name.
pub fn of_process(metric: &str, pid: u32) -> String {
    format!("mrscope_process_mr_{metric}{{comm=\"workload\",pid=\"{pid}\"}}")
}
