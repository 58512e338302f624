//! The side that runs in the guest: which cases, in what order, and what came of each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use crate::boot::Boot;
use crate::cases::{self, BootCase, Case, KernelCase, Lab, Mode, OnceCase, Outcome, OwnCase};
use crate::exporter::Exporter;
use crate::matrix::{self, What, cannot};

/// The first line and the last that the guest says to the host.
pub const UP: &str = "guest: up";
pub const CLOSING: &str = "guest: ";

/// In the line of a case that did; the lines up to the next case say why.
pub const FAILED: &str = "... FAILED";

/// Cases that load the lab's own module.
const NEED_MODULE: &[&str] = &[
    "pins_outside_a_registration_are_queue_buffers",
    "a_process_with_queues_alone_is_forgotten_after_its_end",
    "what_a_vendor_s_driver_pins_is_counted_as_the_kernel_s",
    "memory_of_a_gpu_is_peer_memory_and_charged",
    "a_function_that_another_module_brings_later_is_watched",
    "a_driver_that_fails_after_the_pin_is_the_device_s",
    "an_mr_that_is_moved_by_rereg_is_replaced",
    "an_mr_that_is_moved_by_rereg_lies_where_it_went",
];

/// Cases about what happens at the same time: run in a guest whose CPUs do too.
const PARALLEL: &[&str] = &[
    "kill_9_of_a_holder_leaves_zero",
    "a_hundred_thousand_registrations_are_all_counted",
    "rows_that_two_cpus_make_at_once_lose_nothing",
    "missed_returns_are_counted_and_explain_the_difference",
    "two_thousand_short_lives_add_up_in_a_bounded_number_of_series",
    "every_lock_of_eight_threads_is_counted",
    "random_operations_of_several_processes_add_up",
];

/// Cases about what mrscope itself does, to which all kernels are alike: run on [`matrix::LOCKED_KERNEL`],
/// on others when they are named, or all kernels are asked for.
const ANY_KERNEL: &[&str] = &[
    "probing_without_libibverbs_says_what_to_install",
    "probing_as_another_user_tells_limits_from_missing_rights",
    "probing_takes_no_garbage_and_ends_what_has_no_end",
    "probing_notices_data_that_somebody_changes",
    "probing_ends_with_mrscope_that_is_killed",
    "probing_is_over_when_mrscope_ends",
    "probing_kills_a_child_that_is_stopped_and_pages_go_on",
    "probing_skips_a_port_that_is_down_and_tells_of_an_address_that_goes",
    "probing_never_touches_a_device_that_is_excluded",
    "probing_starts_no_second_child_while_one_can_t_be_killed",
    "probing_blames_nobody_for_runs_from_before_mr_was_allowed",
    "probing_forgets_a_device_that_goes_and_measures_it_when_it_is_back",
    "probing_measures_every_port_once_a_round_and_gives_all_back",
    "probing_takes_base_pages_where_the_pool_is_empty_and_says_so",
    "lives_that_nobody_scrapes_fill_no_map_and_are_all_counted",
    "a_churner_that_holds_nothing_is_on_the_page_and_never_counts_anew",
    "processes_beyond_the_limit_are_counted_together",
    "without_counts_of_processes_locks_are_the_host_s_alone",
    "a_write_probe_without_such_pages_says_so_or_takes_base_pages",
    "a_write_probe_of_another_user_tells_limits_from_missing_rights",
    "a_write_probe_of_what_is_not_there_says_what",
    "a_write_probe_whose_port_or_address_goes_says_which",
    "a_write_probe_ends_with_who_started_it_and_in_time",
    "a_write_probe_notices_data_that_is_not_what_it_sent",
    "a_bench_leaves_out_rows_whose_pages_others_have",
    "a_bench_that_is_stopped_or_killed_gives_all_back",
    "a_bench_of_what_is_not_there_says_what_there_is",
    "bench_prints_all_rows_with_figures_of_calls_that_were_made",
    "a_process_that_failed_and_ended_is_on_the_next_page_of_two_scrapers",
    "a_limit_that_comes_later_is_found",
    "members_of_a_cgroup_are_one_series_that_keeps_the_dead_s_events",
    "switched_off_nothing_watches_locks",
    "a_full_history_forgets_the_oldest_and_tells_how_many",
    "a_hundred_buffers_registered_once_are_no_repeats",
    "what_the_dead_had_registered_is_no_repeat_and_not_missed",
    "ranges_that_overlap_are_distinct_once_and_those_that_touch_add_up",
    "memory_that_two_processes_share_is_distinct_in_each",
    "a_pod_s_process_is_told_with_its_labels",
    "a_process_of_v1_is_told_by_all_its_hierarchies",
    "a_program_that_another_takes_over_is_told_anew",
    "without_the_right_no_program_is_told_and_that_is_said_once",
    "members_of_each_kind_of_group_keep_the_dead_s_events",
    "samples_tell_the_size_and_the_node_of_every_kind_of_page",
];

/// In place of a word that cases are chosen by: every case on every kernel.
pub const EVERY: &str = "--every";

/// The cases of one guest.
#[derive(Default)]
struct Selection {
    shared: Vec<(Mode, &'static Case)>,
    own: Vec<(Mode, &'static OwnCase)>,
    once: Vec<&'static OnceCase>,
    kernel: Vec<(Mode, &'static KernelCase)>,
    locked: Vec<&'static BootCase>,
}

impl Selection {
    fn of(kernel: &str, boot: Boot, filter: Option<&str>) -> Self {
        let words = filter.filter(|words| *words != EVERY);
        let here = kernel == matrix::LOCKED_KERNEL || filter == Some(EVERY);
        let named = |name: &str| {
            words.map_or(here || !ANY_KERNEL.contains(&name), |words| {
                words.split(',').any(|word| name.contains(word))
            })
        };
        let built = |name: &str| !NEED_MODULE.contains(&name) || has_module(kernel);
        let wanted = |name: &str| {
            let home = if PARALLEL.contains(&name) { Boot::Parallel } else { Boot::home(name) };
            home == boot && named(name) && built(name)
        };
        let no_trampolines = cannot(kernel, What::Mode(Mode::Fentry)).is_some();
        let mut chosen = Self::default();
        for mode in matrix::modes(kernel) {
            chosen.shared.extend(cases::SHARED.iter().filter(|c| wanted(c.0)).map(|c| (mode, c)));
            chosen.own.extend(cases::OWN.iter().filter(|c| wanted(c.0)).map(|c| (mode, c)));
        }
        let once = cases::ONCE.iter().chain(cases::MORE.iter().copied().flatten());
        chosen.once.extend(once.filter(|c| wanted(c.0)));
        chosen.kernel.extend(cases::KERNEL.iter().map(|c| (Mode::Auto, c)));
        if no_trampolines {
            chosen.kernel.extend(cases::KPROBES_ALONE.iter().map(|c| (Mode::Fentry, c)));
        }
        chosen.kernel.retain(|(_, case)| wanted(case.0));
        if kernel == matrix::LOCKED_KERNEL {
            let locked = cases::LOCKED.iter().filter(|c| c.0 == boot && named(c.1));
            chosen.locked.extend(locked);
        }
        chosen
    }

    fn has(&self, mode: Mode, name: &str) -> bool {
        let shared = self.shared.iter().map(|(of, case)| (*of, case.0));
        let own = self.own.iter().map(|(of, case)| (*of, case.0));
        let kernel = self.kernel.iter().map(|(of, case)| (*of, case.0));
        let once = self.once.iter().map(|case| (Mode::Auto, case.0));
        let locked = self.locked.iter().map(|case| (Mode::Auto, case.1));
        shared.chain(own).chain(kernel).chain(once).chain(locked).any(|case| case == (mode, name))
    }

    fn count(&self) -> usize {
        let once = self.once.len() + self.kernel.len() + self.locked.len();
        self.shared.len() + self.own.len() + once
    }
}

fn has_module(kernel: &str) -> bool {
    cannot(kernel, What::Module).is_none()
}

/// How many cases that guest would run.
pub fn count(kernel: &str, boot: Boot, filter: Option<&str>) -> usize {
    Selection::of(kernel, boot, filter).count()
}

/// A row of the table about a case that is not run would hold whatever the kernel does.
pub fn every_row_has_its_case() -> Result<(), String> {
    for row in matrix::CANNOT {
        let What::Case(mode, name) = row.what else { continue };
        for kernel in row.kernels {
            let run = |boot| Selection::of(kernel, boot, Some(name)).has(mode, name);
            if !Boot::ALL.into_iter().any(run) {
                return Err(format!("matrix.rs: {name} is not run in that mode on {kernel}"));
            }
        }
    }
    Ok(())
}

/// Runs the cases of that kind of guest whose name has `filter` in it.
pub fn run(kernel: &str, boot: Boot, filter: Option<&str>) -> ExitCode {
    println!("{UP}");
    let chosen = Selection::of(kernel, boot, filter);
    let mut tally = Tally { kernel, passed: 0, failed: 0 };
    for mode in matrix::modes(kernel) {
        let mut shared = chosen.shared.iter().filter(|(of, _)| *of == mode).peekable();
        if shared.peek().is_some() {
            match Exporter::start(mode.flags()) {
                Ok(exporter) => {
                    let pin_program = matrix::pin_program(kernel);
                    let lab =
                        Lab { kernel, pin_program, attach: mode.label(), exporter: &exporter };
                    for (_, (name, case)) in shared {
                        tally.take(mode, name, || case(&lab));
                    }
                }
                Err(error) => tally.take(mode, "mrscope_starts", || Err(error)),
            }
        }
        for (_, (name, case)) in chosen.own.iter().filter(|(of, _)| *of == mode) {
            tally.take(mode, name, || case(mode));
        }
    }
    for (name, case) in chosen.once {
        tally.take(Mode::Auto, name, case);
    }
    for (mode, (name, case)) in chosen.kernel {
        tally.take(mode, name, || case(kernel));
    }
    for (_, name, case) in chosen.locked {
        tally.take(Mode::Auto, name, case);
    }
    println!("{CLOSING}{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Tally<'a> {
    kernel: &'a str,
    passed: u32,
    failed: u32,
}

impl Tally<'_> {
    fn take(&mut self, mode: Mode, name: &'static str, case: impl FnOnce() -> Outcome) {
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(case))
            .unwrap_or_else(|_| Err("the case itself panicked".to_owned()));
        let seconds = begun.elapsed().as_secs_f64();
        let how = match judge(outcome, cannot(self.kernel, What::Case(mode, name))) {
            Ok(how) => {
                self.passed += 1;
                format!("... ok ({seconds:.1} s){how}")
            }
            Err(error) => {
                self.failed += 1;
                format!("{FAILED} ({seconds:.1} s)\n    {error}")
            }
        };
        println!("test {} {name} {how}", mode.label());
    }
}

/// What a case's outcome comes to, where the table may say that the kernel can't.
fn judge(outcome: Outcome, cannot: Option<&str>) -> Result<String, String> {
    match (outcome, cannot) {
        (Ok(()), None) => Ok(String::new()),
        (Err(error), None) => Err(error),
        (Err(error), Some(why)) => Ok(format!("\n    it fails, as it must, for {why}: {error}")),
        (Ok(()), Some(why)) => Err(format!("it works: take its row out of matrix.rs ({why})")),
    }
}
