//! The cases, and how they are run in the guest.

mod churn;
mod exact;
mod failure;
mod holders;
mod lifecycle;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use crate::exporter::Exporter;

pub type Outcome = Result<(), String>;

/// What a case has: the kernel, the way of attaching, and the mrscope that all cases of it share.
pub struct Lab<'a> {
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

    /// How functions are watched then: a kernel that preempts gets no trampolines.
    pub fn attach(self, kernel: &str) -> &'static str {
        if kernel.starts_with('7') { "kprobe" } else { self.label() }
    }
}

/// Kernels whose modules carry no BTF have no trampolines on their functions: 5.10.
fn modes(kernel: &str) -> &'static [Mode] {
    if kernel == "5.10" { &[Mode::Auto] } else { &[Mode::Auto, Mode::Fentry] }
}

/// ib_umem_get is gone from 7.2 on.
fn pin_program(kernel: &str) -> &'static str {
    if kernel.starts_with('7') { "umem_get_va" } else { "umem_get" }
}

type Case = (&'static str, fn(&Lab<'_>) -> Outcome);

/// Run with a shared mrscope, in each mode; figures are compared as differences.
const SHARED: &[Case] = &[
    ("every_hook_is_attached_as_planned", lifecycle::every_hook_is_attached_as_planned),
    (
        "registrations_move_figures_exactly_and_back",
        exact::registrations_move_figures_exactly_and_back,
    ),
    (
        "a_registering_thread_that_is_gone_changes_nothing",
        exact::a_registering_thread_that_is_gone_changes_nothing,
    ),
    ("a_failing_pin_is_a_failure_and_no_mr", failure::a_failing_pin_is_a_failure_and_no_mr),
    ("memlock_stops_another_uid", failure::memlock_stops_another_uid),
    ("refused_flags_never_reach_the_pin", failure::refused_flags_never_reach_the_pin),
    ("kill_9_of_a_holder_leaves_zero", holders::kill_9_of_a_holder_leaves_zero),
    (
        "mrs_outlive_a_parent_whose_child_keeps_the_fd",
        holders::mrs_outlive_a_parent_whose_child_keeps_the_fd,
    ),
    (
        "pins_outside_a_registration_are_queue_buffers",
        holders::pins_outside_a_registration_are_queue_buffers,
    ),
    ("pingpong_has_its_one_mr", holders::pingpong_has_its_one_mr),
    (
        "a_hundred_thousand_registrations_are_all_counted",
        churn::a_hundred_thousand_registrations_are_all_counted,
    ),
    (
        "rows_that_two_cpus_make_at_once_lose_nothing",
        churn::rows_that_two_cpus_make_at_once_lose_nothing,
    ),
    (
        "processes_beyond_the_limit_are_counted_together",
        holders::processes_beyond_the_limit_are_counted_together,
    ),
    (
        "the_page_of_a_loaded_guest_satisfies_promtool",
        lifecycle::the_page_of_a_loaded_guest_satisfies_promtool,
    ),
    ("every_device_has_its_name", lifecycle::every_device_has_its_name),
];

type OwnCase = (&'static str, fn(Mode) -> Outcome);

/// Run without any other mrscope: each starts its own.
const OWN: &[OwnCase] = &[
    (
        "mrs_from_before_the_start_never_count_below_zero",
        holders::mrs_from_before_the_start_never_count_below_zero,
    ),
    ("two_mrscopes_count_the_same", lifecycle::two_mrscopes_count_the_same),
    (
        "a_stop_leaves_no_probe_and_a_kill_s_are_cleared",
        lifecycle::a_stop_leaves_no_probe_and_a_kill_s_are_cleared,
    ),
    (
        "a_process_with_queues_alone_is_forgotten_after_its_end",
        holders::a_process_with_queues_alone_is_forgotten_after_its_end,
    ),
    ("probes_wait_for_modules_that_come_later", lifecycle::probes_wait_for_modules_that_come_later),
    (
        "without_tracefs_the_perf_pmu_s_kprobes_count_the_same",
        lifecycle::without_tracefs_the_perf_pmu_s_kprobes_count_the_same,
    ),
    (
        "missed_returns_are_counted_and_explain_the_difference",
        churn::missed_returns_are_counted_and_explain_the_difference,
    ),
];

/// Cases about what happens at the same time: run in a guest whose CPUs do too.
const PARALLEL: &[&str] = &[
    "kill_9_of_a_holder_leaves_zero",
    "a_hundred_thousand_registrations_are_all_counted",
    "rows_that_two_cpus_make_at_once_lose_nothing",
    "missed_returns_are_counted_and_explain_the_difference",
];

/// Whether a case is run in that kind of guest and has `filter` in its name.
fn wanted(name: &str, parallel: bool, filter: Option<&str>) -> bool {
    PARALLEL.contains(&name) == parallel && filter.is_none_or(|filter| name.contains(filter))
}

/// Whether any case is.
pub fn any(parallel: bool, filter: Option<&str>) -> bool {
    let mut names = SHARED.iter().map(|(name, _)| name).chain(OWN.iter().map(|(name, _)| name));
    names.any(|name| wanted(name, parallel, filter))
}

/// Runs the cases of that kind of guest whose name has `filter` in it.
pub fn run(kernel: &str, parallel: bool, filter: Option<&str>) -> ExitCode {
    let wanted = |name: &str| wanted(name, parallel, filter);
    let mut tally = Tally::default();
    for mode in modes(kernel) {
        let shared: Vec<_> = SHARED.iter().filter(|(name, _)| wanted(name)).collect();
        if !shared.is_empty() {
            match Exporter::start(mode.flags()) {
                Ok(exporter) => {
                    let pin_program = pin_program(kernel);
                    let attach = mode.attach(kernel);
                    let lab = Lab { pin_program, attach, exporter: &exporter };
                    for (name, case) in shared {
                        tally.take(kernel, *mode, name, || case(&lab));
                    }
                }
                Err(error) => tally.take(kernel, *mode, "mrscope_starts", || Err(error)),
            }
        }
        for (name, case) in OWN.iter().filter(|(name, _)| wanted(name)) {
            tally.take(kernel, *mode, name, || case(*mode));
        }
    }
    println!("guest: {} passed, {} failed", tally.passed, tally.failed);
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
}

impl Tally {
    fn take(&mut self, kernel: &str, mode: Mode, name: &str, case: impl FnOnce() -> Outcome) {
        let outcome = catch_unwind(AssertUnwindSafe(case))
            .unwrap_or_else(|_| Err("the case itself panicked".to_owned()));
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("test {kernel} {} {name} ... ok", mode.label());
            }
            Err(error) => {
                self.failed += 1;
                println!("test {kernel} {} {name} ... FAILED\n    {error}", mode.label());
            }
        }
    }
}

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
pub const PIN_SECONDS: &str = "mrscope_mr_pin_duration_seconds_sum{device=\"rxe0\",kind=\"host\"}";
pub const DEREGISTRATIONS: &str =
    "mrscope_mr_deregistration_duration_seconds_count{device=\"rxe0\",kind=\"host\"}";
pub const DEREGISTRATION_SECONDS: &str =
    "mrscope_mr_deregistration_duration_seconds_sum{device=\"rxe0\",kind=\"host\"}";

/// A series of one process of the workload's usual name.
pub fn of_process(metric: &str, pid: u32) -> String {
    format!("mrscope_process_mr_{metric}{{comm=\"workload\",pid=\"{pid}\"}}")
}
