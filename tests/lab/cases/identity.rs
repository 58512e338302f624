//! Who a series is about: pids, names, and processes without their leader.

use super::lifecycle::satisfies_promtool;
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::{Workload, child_of, number, stat_field, status_bytes, vm_pin, whole_pages};

const REGISTERED: &str = "mr_registration_duration_seconds_count";

/// Seconds since the epoch, by /proc.
pub fn start_time(pid: u32) -> Result<f64, String> {
    let stat = std::fs::read_to_string("/proc/stat").map_err(|error| error.to_string())?;
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime "));
    let boot: f64 = boot.and_then(|text| text.parse().ok()).ok_or("no btime in /proc/stat")?;
    let ticks: f64 = stat_field(pid, 22)?.parse().map_err(|_| format!("no start of {pid}"))?;
    Ok(boot + ticks / 100.0)
}

/// As /proc has it, but for the second to which the kernel rounds its boot time anew each time.
pub fn started_as_proc_says(page: &Page, comm: &str, pid: u32) -> Outcome {
    let series = of_named("start_time_seconds", comm, pid);
    let shown = page.value(&series).ok_or_else(|| format!("{series} is absent"))?;
    let known = start_time(pid)?;
    if (shown - known).abs() <= 1.0 {
        Ok(())
    } else {
        Err(format!("{series} is {shown}, /proc says {known}"))
    }
}

pub fn two_processes_of_one_name_are_two_series(lab: &Lab<'_>) -> Outcome {
    let (mut one, mut two) = (Workload::start()?, Workload::start()?);
    one.ask("reg count=3 size=8192")?;
    two.ask("reg count=4 size=4096")?;
    let page = lab.exporter.page()?;
    for (pid, count, bytes) in [(one.pid, 3.0, 3.0 * 8192.0), (two.pid, 4.0, 4.0 * 4096.0)] {
        equal("held", page.or_zero(&of_process("active", pid)), count)?;
        equal("bytes", page.or_zero(&of_process("active_bytes", pid)), bytes)?;
        started_as_proc_says(&page, "workload", pid)?;
    }
    one.end()?;
    two.end()
}

/// The pid is forced by ns_last_pid: once without a page between the two, once with.
pub fn a_reused_pid_counts_on_under_its_name_and_from_zero_under_another(lab: &Lab<'_>) -> Outcome {
    let before = lab.exporter.page()?.or_zero(REGISTRATIONS);
    let mut first = Workload::start()?;
    let pid = first.pid;
    let registered = of_named(REGISTERED, "workload", pid);
    first.ask("reg count=5 size=4096")?;
    equal("the first", lab.exporter.page()?.or_zero(&registered), 5.0)?;
    first.end()?;

    let mut second = Workload::start_with_pid(pid)?;
    second.ask("reg count=3 size=8192")?;
    for _ in 0..2 {
        let page = lab.exporter.page()?;
        equal("both", page.or_zero(&registered), 8.0)?;
        equal("the second's", page.or_zero(&of_process("active", pid)), 3.0)?;
        equal("its bytes", page.or_zero(&of_process("active_bytes", pid)), 3.0 * 8192.0)?;
        equal("pinned", page.or_zero(&of_named("pinned_bytes", "workload", pid)), vm_pin(pid)?)?;
        started_as_proc_says(&page, "workload", pid)?;
    }
    second.end()?;
    wait_for("the second's gauges to go", || {
        Ok(lab.exporter.page()?.value(&of_process("active", pid)).is_none())
    })?;

    let mut third = Workload::start_with_pid(pid)?;
    third.ask("name comm=other")?;
    third.ask("reg count=2 size=4096")?;
    let page = lab.exporter.page()?;
    equal("what the dead did", page.or_zero(&registered), 8.0)?;
    equal("the third", page.or_zero(&of_named(REGISTERED, "other", pid)), 2.0)?;
    equal("what it holds", page.or_zero(&of_named("mr_active", "other", pid)), 2.0)?;
    started_as_proc_says(&page, "other", pid)?;
    for gone in ["mr_active", "pinned_bytes", "start_time_seconds"] {
        if let Some(value) = page.value(&of_named(gone, "workload", pid)) {
            return Err(format!("{gone} of the dead is {value}, expected none"));
        }
    }
    equal("the host", page.or_zero(REGISTRATIONS) - before, 10.0)?;
    third.end()
}

/// Quotes, a backslash, a line's end, and a byte that is no UTF-8.
pub fn a_name_of_any_bytes_is_a_label(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    workload.ask("name comm=a%22b%5Cc%0Ad%FFe")?;
    workload.ask("reg count=2 size=4096")?;
    let page = lab.exporter.page()?;
    let comm = "a\\\"b\\\\c\\nd\u{fffd}e";
    equal("held", page.or_zero(&of_named("mr_active", comm, workload.pid)), 2.0)?;
    satisfies_promtool(&page)?;
    workload.end()
}

/// The main thread has ended; one with a name of its own lives and registers.
pub fn a_dead_leader_s_process_is_on_the_page_while_a_thread_lives(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    workload.ask("leave")?;
    wait_for("the leader's death", || Ok(stat_field(pid, 3)? == "Z"))?;
    workload.ask("name comm=thread")?;
    workload.ask("reg count=4 size=65536")?;
    let thread = thread_of(pid)?;
    if vm_pin(pid).is_ok() {
        return Err("the leader still has its memory: the case proves nothing".to_owned());
    }
    // Twice: once it was known, an end that is none would show.
    for _ in 0..2 {
        let page = lab.exporter.page()?;
        equal("held", page.or_zero(&of_process("active", pid)), 4.0)?;
        for (metric, name) in
            [("pinned_bytes", "VmPin"), ("locked_bytes", "VmLck"), ("page_table_bytes", "VmPTE")]
        {
            let shown = page.value(&of_named(metric, "workload", pid));
            let known = status_bytes(&format!("{pid}/task/{thread}"), name)?;
            equal(name, shown.ok_or_else(|| format!("{metric} is absent"))?, known)?;
        }
    }
    workload.end()?;
    wait_for("its gauges to go", || {
        let page = lab.exporter.page()?;
        let gauges = [of_process("active", pid), of_named("pinned_bytes", "workload", pid)];
        Ok(gauges.iter().all(|gauge| page.value(gauge).is_none()))
    })?;
    let page = lab.exporter.page()?;
    equal("its counters", page.or_zero(&of_named(REGISTERED, "workload", pid)), 4.0)
}

/// The one thread that is not the leader.
fn thread_of(pid: u32) -> Result<u32, String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| e.to_string())?;
    let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    tids.into_iter().find(|tid| *tid != pid).ok_or_else(|| format!("{pid} has no other thread"))
}

const OWN_PIDS: [&str; 4] = ["unshare", "-pf", "--mount-proc", "--kill-child"];

pub fn a_process_of_another_pid_namespace_has_the_host_s_pid(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start_by(&OWN_PIDS)?;
    let pid = child_of(workload.pid)?;
    equal("its own word on its pid", number(&workload.ask("status")?, "pid")?, 1.0)?;
    workload.ask("reg count=3 size=8192")?;
    workload.ask("mlock size=12288")?;
    let page = lab.exporter.page()?;
    equal("held", page.or_zero(&of_process("active", pid)), 3.0)?;
    equal("pinned", page.or_zero(&of_named("pinned_bytes", "workload", pid)), vm_pin(pid)?)?;
    equal(
        "locked",
        page.or_zero(&of_named("locked_bytes", "workload", pid)),
        whole_pages(12288.0),
    )?;
    started_as_proc_says(&page, "workload", pid)?;
    if page.text.contains("pid=\"1\"") {
        return Err("it is shown with the pid of its namespace".to_owned());
    }
    workload.end()?;
    wait_for("its gauges to go", || {
        Ok(lab.exporter.page()?.value(&of_process("active", pid)).is_none())
    })
}

pub fn in_another_pid_namespace_mrscope_says_that_it_sees_a_part() -> Outcome {
    let exporter = Exporter::start_by(&OWN_PIDS, &[])?;
    in_state(&exporter.page()?, "process", "denied")?;
    in_state(&exporter.page()?, "mr", "ok")?;
    exporter.says(&["level=warn", "/proc shows", "hostPID"])?;

    let mut outside = Workload::start()?;
    let pid = outside.pid;
    outside.ask("reg count=3 size=8192")?;
    // One that mrscope can see: of its own namespace.
    let mrscope = child_of(exporter.pid())?.to_string();
    let mut inside = Workload::start_by(&["nsenter", "-t", &mrscope, "-p", "-m", "-w"])?;
    let inner = child_of(inside.pid)?;
    inside.ask("reg count=2 size=4096")?;
    let page = exporter.page()?;
    equal("the host", page.or_zero(ACTIVE), 5.0)?;
    equal("who is out of sight", page.or_zero(&of_process("active", pid)), 3.0)?;
    equal("who is in sight", page.or_zero(&of_process("active", inner)), 2.0)?;
    equal("pinned", page.or_zero(&of_named("pinned_bytes", "workload", inner)), vm_pin(inner)?)?;
    for unknown in ["pinned_bytes", "locked_bytes", "memlock_limit_bytes"] {
        if let Some(value) = page.value(&of_named(unknown, "workload", pid)) {
            return Err(format!("{unknown} of who is out of sight is {value}, expected none"));
        }
    }
    // The end of who is out of sight is not known: its row says what it holds, which is nothing.
    outside.end()?;
    inside.end()?;
    let page = exporter.page()?;
    equal("the host after", page.or_zero(ACTIVE), 0.0)?;
    equal("its count", page.or_zero(&of_named(REGISTERED, "workload", pid)), 3.0)?;
    equal("its MRs", page.or_zero(&of_process("active", pid)), 0.0)?;
    in_state(&page, "process", "denied")?;
    exporter.kill()
}
