//! Lists of cases, by what they are run with.

use super::*;

/// Run with a shared mrscope, in each mode; figures are compared as differences.
pub const SHARED: &[Case] = &[
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
    (
        "a_pool_without_a_page_is_told_from_a_bad_address",
        failure::a_pool_without_a_page_is_told_from_a_bad_address,
    ),
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
        "two_processes_of_one_name_are_two_series",
        identity::two_processes_of_one_name_are_two_series,
    ),
    (
        "a_reused_pid_counts_on_under_its_name_and_from_zero_under_another",
        identity::a_reused_pid_counts_on_under_its_name_and_from_zero_under_another,
    ),
    ("a_name_of_any_bytes_is_a_label", identity::a_name_of_any_bytes_is_a_label),
    (
        "a_dead_leader_s_process_is_on_the_page_while_a_thread_lives",
        identity::a_dead_leader_s_process_is_on_the_page_while_a_thread_lives,
    ),
    (
        "a_process_of_another_pid_namespace_has_the_host_s_pid",
        identity::a_process_of_another_pid_namespace_has_the_host_s_pid,
    ),
    ("memory_of_a_process_is_what_proc_says", memory::memory_of_a_process_is_what_proc_says),
    (
        "a_lock_of_another_process_is_one_call_with_its_bytes",
        locks::a_lock_of_another_process_is_one_call_with_its_bytes,
    ),
    ("what_is_mapped_locked_is_held_and_no_call", locks::what_is_mapped_locked_is_held_and_no_call),
    (
        "a_lock_that_fails_is_a_failure_by_errno_and_no_call",
        locks::a_lock_that_fails_is_a_failure_by_errno_and_no_call,
    ),
    (
        "the_page_of_a_loaded_guest_satisfies_promtool",
        lifecycle::the_page_of_a_loaded_guest_satisfies_promtool,
    ),
    ("every_device_has_its_name", lifecycle::every_device_has_its_name),
    (
        "each_way_into_the_kernel_is_one_registration",
        paths::each_way_into_the_kernel_is_one_registration,
    ),
];

/// Run without any other mrscope: each starts its own.
pub const OWN: &[OwnCase] = &[
    (
        "mrs_from_before_the_start_count_and_never_below_zero",
        holders::mrs_from_before_the_start_count_and_never_below_zero,
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
    (
        "what_a_vendor_s_driver_pins_is_counted_as_the_kernel_s",
        vendor::what_a_vendor_s_driver_pins_is_counted_as_the_kernel_s,
    ),
    (
        "memory_of_a_gpu_is_peer_memory_and_charged",
        vendor::memory_of_a_gpu_is_peer_memory_and_charged,
    ),
    (
        "a_function_that_another_module_brings_later_is_watched",
        vendor::a_function_that_another_module_brings_later_is_watched,
    ),
];

/// Run once for each kernel, without any other mrscope: how functions are watched is not their
/// concern.
pub const ONCE: &[OnceCase] = &[
    (
        "a_process_that_failed_and_ended_is_on_the_next_page_of_two_scrapers",
        lives::a_process_that_failed_and_ended_is_on_the_next_page_of_two_scrapers,
    ),
    (
        "a_churner_that_holds_nothing_is_on_the_page_and_never_counts_anew",
        lives::a_churner_that_holds_nothing_is_on_the_page_and_never_counts_anew,
    ),
    (
        "two_thousand_short_lives_add_up_in_a_bounded_number_of_series",
        lives::two_thousand_short_lives_add_up_in_a_bounded_number_of_series,
    ),
    (
        "lives_that_nobody_scrapes_fill_no_map_and_are_all_counted",
        lives::lives_that_nobody_scrapes_fill_no_map_and_are_all_counted,
    ),
    (
        "lives_that_find_the_map_full_are_counted_for_the_host_and_said_to_be_lost",
        lives::lives_that_find_the_map_full_are_counted_for_the_host_and_said_to_be_lost,
    ),
    (
        "in_another_pid_namespace_mrscope_says_that_it_sees_a_part",
        identity::in_another_pid_namespace_mrscope_says_that_it_sees_a_part,
    ),
    (
        "what_is_shown_and_what_others_hold_is_all_that_proc_has",
        memory::what_is_shown_and_what_others_hold_is_all_that_proc_has,
    ),
    (
        "members_of_a_cgroup_are_one_series_that_keeps_the_dead_s_events",
        groups::members_of_a_cgroup_are_one_series_that_keeps_the_dead_s_events,
    ),
    (
        "a_full_map_of_pins_is_said_counted_and_recovered_from",
        degraded::a_full_map_of_pins_is_said_counted_and_recovered_from,
    ),
    (
        "without_rdma_modules_the_processes_are_still_shown",
        degraded::without_rdma_modules_the_processes_are_still_shown,
    ),
    (
        "what_comes_later_is_watched_where_nothing_could_be_at_the_start",
        lifecycle::what_comes_later_is_watched_where_nothing_could_be_at_the_start,
    ),
    (
        "without_btf_proc_is_read_and_mr_says_why",
        degraded::without_btf_proc_is_read_and_mr_says_why,
    ),
    (
        "without_root_proc_is_read_and_mr_is_denied",
        degraded::without_root_proc_is_read_and_mr_is_denied,
    ),
    (
        "with_tracefs_read_only_it_says_what_it_does",
        degraded::with_tracefs_read_only_it_says_what_it_does,
    ),
    (
        "the_documented_capabilities_suffice_and_none_is_in_effect_while_it_serves",
        privilege::the_documented_capabilities_suffice_and_none_is_in_effect_while_it_serves,
    ),
    ("with_one_capability_less_it_says_which", privilege::with_one_capability_less_it_says_which),
    (
        "what_modules_took_is_attached_again_with_the_rights_that_were_kept",
        privilege::what_modules_took_is_attached_again_with_the_rights_that_were_kept,
    ),
    (
        "what_was_refused_is_attached_once_it_is_allowed",
        privilege::what_was_refused_is_attached_once_it_is_allowed,
    ),
    (
        "where_proc_hides_processes_their_end_is_seen_all_the_same",
        privilege::where_proc_hides_processes_their_end_is_seen_all_the_same,
    ),
    (
        "what_is_dropped_for_good_is_gone_and_probes_still_wait",
        privilege::what_is_dropped_for_good_is_gone_and_probes_still_wait,
    ),
    (
        "with_little_memory_to_lock_it_is_watched_or_says_what_helps",
        privilege::with_little_memory_to_lock_it_is_watched_or_says_what_helps,
    ),
    (
        "check_tells_how_each_program_stands_and_leaves_none",
        privilege::check_tells_how_each_program_stands_and_leaves_none,
    ),
    (
        "a_device_that_comes_is_renamed_and_goes_is_counted_under_each_name",
        devices::a_device_that_comes_is_renamed_and_goes_is_counted_under_each_name,
    ),
    (
        "modules_that_go_and_come_again_are_watched_each_time",
        devices::modules_that_go_and_come_again_are_watched_each_time,
    ),
    ("every_lock_of_eight_threads_is_counted", locks::every_lock_of_eight_threads_is_counted),
    (
        "locks_of_shown_and_other_processes_are_all_the_host_s",
        locks::locks_of_shown_and_other_processes_are_all_the_host_s,
    ),
    (
        "without_counts_of_processes_locks_are_the_host_s_alone",
        locks::without_counts_of_processes_locks_are_the_host_s_alone,
    ),
    ("switched_off_nothing_watches_locks", locks::switched_off_nothing_watches_locks),
    (
        "who_needs_no_memlock_limit_is_told_by_the_iterator",
        memlock::who_needs_no_memlock_limit_is_told_by_the_iterator,
    ),
    (
        "who_needs_no_memlock_limit_is_told_by_proc",
        memlock::who_needs_no_memlock_limit_is_told_by_proc,
    ),
    (
        "hugepages_are_what_sysfs_says_of_each_size_and_node",
        hugepages::hugepages_are_what_sysfs_says_of_each_size_and_node,
    ),
    (
        "pages_that_a_process_takes_of_a_node_are_free_no_more",
        hugepages::pages_that_a_process_takes_of_a_node_are_free_no_more,
    ),
    (
        "what_is_mapped_untouched_is_reserved_and_beyond_the_pool_surplus",
        hugepages::what_is_mapped_untouched_is_reserved_and_beyond_the_pool_surplus,
    ),
    (
        "a_cgroup_s_limit_on_hugepages_is_told_with_what_it_refused",
        hugepages::a_cgroup_s_limit_on_hugepages_is_told_with_what_it_refused,
    ),
    ("a_limit_that_comes_later_is_found", hugepages::a_limit_that_comes_later_is_found),
    ("memory_of_the_host_is_what_proc_says", hugepages::memory_of_the_host_is_what_proc_says),
    (
        "a_write_probe_holds_the_pages_and_the_node_it_was_asked_for",
        write_probe::a_write_probe_holds_the_pages_and_the_node_it_was_asked_for,
    ),
    (
        "a_write_probe_s_report_is_what_mrscope_and_the_device_counted",
        write_probe::a_write_probe_s_report_is_what_mrscope_and_the_device_counted,
    ),
    (
        "a_write_probe_runs_over_dummy_veth_and_lo",
        write_probe::a_write_probe_runs_over_dummy_veth_and_lo,
    ),
    (
        "a_write_probe_without_such_pages_says_so_or_takes_base_pages",
        write_probe_faults::a_write_probe_without_such_pages_says_so_or_takes_base_pages,
    ),
    (
        "a_write_probe_in_a_cgroup_without_hugepages_says_so_and_lives",
        write_probe_faults::a_write_probe_in_a_cgroup_without_hugepages_says_so_and_lives,
    ),
    (
        "a_write_probe_of_another_user_tells_limits_from_missing_rights",
        write_probe_faults::a_write_probe_of_another_user_tells_limits_from_missing_rights,
    ),
    (
        "a_write_probe_of_what_is_not_there_says_what",
        write_probe_faults::a_write_probe_of_what_is_not_there_says_what,
    ),
    (
        "a_write_probe_whose_port_or_address_goes_says_which",
        write_probe_faults::a_write_probe_whose_port_or_address_goes_says_which,
    ),
    (
        "a_write_probe_lets_a_device_go_that_is_deleted",
        write_probe_faults::a_write_probe_lets_a_device_go_that_is_deleted,
    ),
    (
        "a_write_probe_ends_with_who_started_it_and_in_time",
        write_probe_faults::a_write_probe_ends_with_who_started_it_and_in_time,
    ),
    (
        "a_write_probe_notices_data_that_is_not_what_it_sent",
        write_probe_faults::a_write_probe_notices_data_that_is_not_what_it_sent,
    ),
    (
        "bench_prints_all_rows_with_figures_of_calls_that_were_made",
        bench_table::bench_prints_all_rows_with_figures_of_calls_that_were_made,
    ),
    (
        "a_bench_leaves_out_rows_whose_pages_others_have",
        bench_table::a_bench_leaves_out_rows_whose_pages_others_have,
    ),
    (
        "a_bench_that_is_stopped_or_killed_gives_all_back",
        bench_table::a_bench_that_is_stopped_or_killed_gives_all_back,
    ),
    (
        "a_bench_of_what_is_not_there_says_what_there_is",
        bench_table::a_bench_of_what_is_not_there_says_what_there_is,
    ),
];

/// Run in guests of their own, on [`crate::matrix::LOCKED_KERNEL`] only.
pub const LOCKED: &[BootCase] = &[
    (
        Boot::Integrity,
        "under_lockdown_integrity_it_does_what_it_can",
        lockdown::under_lockdown_integrity_it_does_what_it_can,
    ),
    (
        Boot::Confidentiality,
        "under_lockdown_confidentiality_it_says_what_is_denied",
        lockdown::under_lockdown_confidentiality_it_says_what_is_denied,
    ),
];

/// Run once for each kernel, whose series they take.
pub const KERNEL: &[KernelCase] = &[
    ("every_program_of_every_object_loads", programs::every_program_of_every_object_loads),
    (
        "without_storage_for_threads_no_program_uses_it",
        programs::without_storage_for_threads_no_program_uses_it,
    ),
    (
        "trampolines_on_system_calls_load_where_their_argument_has_a_type",
        programs::trampolines_on_system_calls_load_where_their_argument_has_a_type,
    ),
    ("how_each_function_is_watched_is_told", programs::how_each_function_is_watched_is_told),
    (
        "functions_that_a_kernel_lacks_are_not_there",
        programs::functions_that_a_kernel_lacks_are_not_there,
    ),
];

/// Run once where the table says that there are no trampolines, with trampolines asked for.
pub const KPROBES_ALONE: &[KernelCase] = &[
    (
        "asked_for_trampolines_every_hook_is_a_kprobe",
        programs::asked_for_trampolines_every_hook_is_a_kprobe,
    ),
    (
        "asked_for_trampolines_the_log_says_why_there_are_none",
        programs::asked_for_trampolines_the_log_says_why_there_are_none,
    ),
];
