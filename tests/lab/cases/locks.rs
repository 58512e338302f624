//! Calls that lock memory, against the caller's own count and clock, and VmLck.

use libbpf_rs::query::ProgInfoIter;
use serde_json::Value;

use crate::cases::*;
use crate::exporter::Exporter;
use crate::page::Page;
use crate::workload::{Workload, number, status_bytes, whole_pages};

const MIB: f64 = 1024.0 * 1024.0;

/// In the order in which the workload makes them.
const SYSCALLS: [&str; 5] = ["mlock", "munlock", "mlock2", "mlockall", "munlockall"];

fn calls(page: &Page, syscall: &str) -> f64 {
    page.or_zero(&format!("mrscope_mlock_duration_seconds_count{{syscall=\"{syscall}\"}}"))
}

fn seconds(page: &Page, syscall: &str) -> f64 {
    page.or_zero(&format!("mrscope_mlock_duration_seconds_sum{{syscall=\"{syscall}\"}}"))
}

fn bytes_of(page: &Page, syscall: &str) -> f64 {
    page.or_zero(&format!("mrscope_mlock_bytes_total{{syscall=\"{syscall}\"}}"))
}

fn failures(page: &Page, syscall: &str, errno: &str) -> f64 {
    let labels = format!("errno=\"{errno}\",syscall=\"{syscall}\"");
    page.or_zero(&format!("mrscope_mlock_failures_total{{{labels}}}"))
}

/// All series of a metric.
fn sum(page: &Page, metric: &str) -> f64 {
    page.starting(&format!("{metric}{{")).map(|(_, value)| value).sum()
}

fn all_bytes(page: &Page) -> f64 {
    sum(page, "mrscope_mlock_bytes_total")
}

fn all_failures(page: &Page) -> f64 {
    sum(page, "mrscope_mlock_failures_total")
}

fn all_calls(page: &Page) -> f64 {
    sum(page, "mrscope_mlock_duration_seconds_count")
}

/// Two pages, one before something was done and one after it.
struct Moved {
    before: Page,
    after: Page,
    pid: u32,
}

impl Moved {
    fn by(&self, figure: impl Fn(&Page) -> f64) -> f64 {
        figure(&self.after) - figure(&self.before)
    }

    /// A metric of the process that did it.
    fn its(&self, metric: &str) -> f64 {
        self.by(|page| page.or_zero(&of_named(metric, "workload", self.pid)))
    }

    /// Successful calls by syscall, zero for those not named; nothing failed.
    fn is_calls(&self, what: &str, expected: &[(&str, f64)]) -> Outcome {
        for syscall in SYSCALLS {
            let count = expected.iter().find(|(name, _)| *name == syscall).map_or(0.0, |e| e.1);
            equal(&format!("{what}: {syscall}"), self.by(|page| calls(page, syscall)), count)?;
            let buckets = format!(
                "mrscope_mlock_duration_seconds_bucket{{syscall=\"{syscall}\",le=\"+Inf\"}}"
            );
            equal(&format!("{what}: {buckets}"), self.by(|page| page.or_zero(&buckets)), count)?;
        }
        let all: f64 = expected.iter().map(|(_, count)| count).sum();
        let of_process = self.its("mlock_calls_total");
        equal(&format!("{what}: calls of the process"), of_process, all)?;
        equal(&format!("{what}: failures"), self.by(all_failures), 0.0)
    }

    /// Positive where there were calls, and no more than what the caller measured around them.
    fn is_seconds(&self, reply: &Value, expected: &[(&str, f64)]) -> Outcome {
        let mut all = 0.0;
        for (syscall, _) in expected {
            let at_most = number(reply, &format!("{syscall}_ns_sum"))? * 1e-9;
            within(syscall, self.by(|page| seconds(page, syscall)), at_most)?;
            all += at_most;
        }
        within("of the process", self.its("mlock_seconds_total"), all)
    }
}

fn within(what: &str, seconds: f64, at_most: f64) -> Outcome {
    if seconds > 0.0 && seconds <= at_most {
        Ok(())
    } else {
        Err(format!("{what}: mrscope says {seconds} s, the caller {at_most} s"))
    }
}

/// A process with a series, which a call alone does not give it: it holds an MR all along.
fn holder(exporter: &Exporter) -> Result<Workload, String> {
    let mut workload = Workload::start()?;
    workload.ask("reg count=1 size=4096")?;
    let page = exporter.page()?;
    equal("its MR", page.or_zero(&of_process("active", workload.pid)), 1.0)?;
    Ok(workload)
}

/// Does it between two pages.
fn around(
    exporter: &Exporter,
    workload: &mut Workload,
    commands: &[&str],
) -> Result<(Moved, Value), String> {
    let before = exporter.page()?;
    let mut reply = Value::Null;
    for command in commands {
        reply = workload.ask(command)?;
    }
    let after = exporter.page()?;
    Ok((Moved { before, after, pid: workload.pid }, reply))
}

/// VmLck as /proc has it, and not another value of the page.
fn is_locked(page: &Page, pid: u32, bytes: f64) -> Outcome {
    equal("VmLck itself", status_bytes(&pid.to_string(), "VmLck")?, bytes)?;
    equal("locked", page.or_zero(&of_named("locked_bytes", "workload", pid)), bytes)
}

pub fn a_lock_of_another_process_is_one_call_with_its_bytes(lab: &Lab<'_>) -> Outcome {
    let mut workload = holder(lab.exporter)?;
    let pid = workload.pid;
    workload.ask("map size=4M touch=0")?;
    // The lengths are those that were asked for, the locked pages whole.
    let steps: [(&str, &str, f64, f64); 4] = [
        ("lock call=mlock size=3M", "mlock", 3.0 * MIB, 3.0 * MIB),
        ("lock call=munlock size=3M", "munlock", 0.0, 0.0),
        ("lock call=mlock2 size=5000 offset=100", "mlock2", 5000.0, whole_pages(5100.0)),
        ("lock call=mlock size=4M", "mlock", 4.0 * MIB, 4.0 * MIB),
    ];
    for (command, syscall, bytes, locked) in steps {
        let (moved, reply) = around(lab.exporter, &mut workload, &[command])?;
        moved.is_calls(command, &[(syscall, 1.0)])?;
        moved.is_seconds(&reply, &[(syscall, 1.0)])?;
        equal(&format!("{command}: bytes"), moved.by(|page| bytes_of(page, syscall)), bytes)?;
        equal(&format!("{command}: bytes of all"), moved.by(all_bytes), bytes)?;
        is_locked(&moved.after, pid, locked).map_err(|error| format!("{command}: {error}"))?;
    }
    // Nobody unlocks it, and it is not locked any more.
    let (moved, _) = around(lab.exporter, &mut workload, &["unmap"])?;
    moved.is_calls("unmap", &[])?;
    equal("unmap: bytes", moved.by(all_bytes), 0.0)?;
    is_locked(&moved.after, pid, 0.0)?;
    workload.end()
}

pub fn what_is_mapped_locked_is_held_and_no_call(lab: &Lab<'_>) -> Outcome {
    let mut workload = holder(lab.exporter)?;
    let pid = workload.pid;
    let (moved, _) = around(lab.exporter, &mut workload, &["map size=2M lock=1"])?;
    moved.is_calls("MAP_LOCKED", &[])?;
    equal("bytes", moved.by(all_bytes), 0.0)?;
    is_locked(&moved.after, pid, 2.0 * MIB)?;
    workload.ask("unmap")?;

    let future = of_named("mlockall_future", "workload", pid);
    // MCL_FUTURE: what is mapped from then on is locked by no call either.
    let (moved, reply) = around(lab.exporter, &mut workload, &["lock call=mlockall mode=2"])?;
    moved.is_calls("MCL_FUTURE", &[("mlockall", 1.0)])?;
    moved.is_seconds(&reply, &[("mlockall", 1.0)])?;
    equal("mlockall_future", moved.after.or_zero(&future), 1.0)?;
    let (moved, reply) = around(lab.exporter, &mut workload, &["map size=1M touch=0"])?;
    moved.is_calls("mapped under MCL_FUTURE", &[])?;
    let locked = number(&reply, "vmlck")?;
    if locked < MIB {
        return Err(format!("{locked} bytes are locked: the case proves nothing"));
    }
    is_locked(&moved.after, pid, locked)?;
    let (moved, _) = around(lab.exporter, &mut workload, &["lock call=munlockall"])?;
    moved.is_calls("munlockall", &[("munlockall", 1.0)])?;
    equal("no mlockall_future", moved.after.or_zero(&future), 0.0)?;
    is_locked(&moved.after, pid, 0.0)?;
    workload.end()
}

/// It fails `count` times with that errno, and nothing else moves.
fn fails_as(
    exporter: &Exporter,
    workload: &mut Workload,
    command: &str,
    (syscall, errno, count): (&str, &str, f64),
) -> Outcome {
    let command = format!("lock call={syscall} fail=1 {command}");
    let (moved, reply) = around(exporter, workload, &[&command])?;
    if reply["errno_name"] != errno {
        return Err(format!("{command}: the caller got {reply}, expected {errno}"));
    }
    equal(
        &format!("{command}: of the caller"),
        number(&reply, &format!("{syscall}_failed"))?,
        count,
    )?;
    equal(&format!("{command}: {errno}"), moved.by(|page| failures(page, syscall, errno)), count)?;
    equal(&format!("{command}: all failures"), moved.by(all_failures), count)?;
    equal(&format!("{command}: calls"), moved.by(all_calls), 0.0)?;
    equal(&format!("{command}: bytes"), moved.by(all_bytes), 0.0)?;
    for metric in ["mlock_calls_total", "mlock_seconds_total"] {
        equal(&format!("{command}: {metric}"), moved.its(metric), 0.0)?;
    }
    is_locked(&moved.after, workload.pid, number(&reply, "vmlck")?)
}

pub fn a_lock_that_fails_is_a_failure_by_errno_and_no_call(lab: &Lab<'_>) -> Outcome {
    let exporter = lab.exporter;
    let mut workload = holder(exporter)?;
    workload.ask("map size=2M touch=0")?;
    let unmapped = "size=64K how=unmapped rounds=3";
    fails_as(exporter, &mut workload, unmapped, ("mlock", "ENOMEM", 3.0))?;
    fails_as(exporter, &mut workload, unmapped, ("munlock", "ENOMEM", 3.0))?;
    fails_as(exporter, &mut workload, "size=4096 mode=77", ("mlock2", "EINVAL", 1.0))?;
    fails_as(exporter, &mut workload, "mode=64", ("mlockall", "EINVAL", 1.0))?;
    workload.ask("rlimit memlock=1M")?;
    // Root needs no limit.
    workload.ask("lock call=mlock size=2M")?;
    workload.ask("lock call=munlock size=2M")?;
    workload.ask("setuid uid=1000")?;
    fails_as(exporter, &mut workload, "size=2M rounds=2", ("mlock", "ENOMEM", 2.0))?;
    fails_as(exporter, &mut workload, "mode=1", ("mlockall", "ENOMEM", 1.0))?;
    let (moved, _) = around(exporter, &mut workload, &["lock call=mlock size=1M"])?;
    moved.is_calls("up to the limit", &[("mlock", 1.0)])?;
    is_locked(&moved.after, workload.pid, MIB)?;
    workload.ask("rlimit memlock=0")?;
    fails_as(exporter, &mut workload, "size=4096 offset=1M", ("mlock", "EPERM", 1.0))?;
    fails_as(exporter, &mut workload, "mode=2", ("mlockall", "EPERM", 1.0))?;
    workload.end()
}

pub fn every_lock_of_eight_threads_is_counted() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = holder(&exporter)?;
    workload.ask("map size=1M")?;
    let command = "lock call=each threads=8 rounds=125 size=10000";
    let (moved, reply) = around(&exporter, &mut workload, &[command])?;
    let expected = SYSCALLS.map(|syscall| (syscall, 1000.0));
    for (syscall, count) in expected {
        equal("of the caller", number(&reply, &format!("{syscall}_count"))?, count)?;
    }
    moved.is_calls("eight threads", &expected)?;
    moved.is_seconds(&reply, &expected)?;
    for syscall in ["mlock", "mlock2"] {
        equal("bytes", moved.by(|page| bytes_of(page, syscall)), 1000.0 * 10_000.0)?;
    }
    equal("bytes of all", moved.by(all_bytes), number(&reply, "bytes")?)?;
    is_locked(&moved.after, workload.pid, 0.0)?;
    let lost = |page: &Page| page.lost().into_iter().map(|(_, count)| count).sum::<f64>();
    equal("lost", lost(&moved.after), lost(&moved.before))?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// With one series for many.
pub fn locks_of_shown_and_other_processes_are_all_the_host_s() -> Outcome {
    let exporter = Exporter::start(&["--process.max", "1"])?;
    let mut workloads = Vec::new();
    for rounds in [3, 5, 7] {
        let mut workload = Workload::start()?;
        workload.ask("reg count=1 size=4096")?;
        workload.ask("map size=64K")?;
        exporter.page()?;
        workload.ask(&format!("lock call=each rounds={rounds} size=4096"))?;
        workloads.push(workload);
    }
    let sums_are = |calls: f64| -> Outcome {
        let page = exporter.page()?;
        equal("the host's", all_calls(&page), calls)?;
        let of_processes = "mrscope_process_mlock_calls_total";
        equal("series", page.starting(of_processes).count() as f64, 2.0)?;
        equal("calls of processes", sum(&page, of_processes), calls)?;
        let of_processes = sum(&page, "mrscope_process_mlock_seconds_total");
        let of_host = sum(&page, "mrscope_mlock_duration_seconds_sum");
        // Sums of the same nanoseconds, divided before they were added.
        if (of_processes - of_host).abs() > 1e-9 * of_host {
            return Err(format!("{of_processes} s of processes, {of_host} s of the host"));
        }
        Ok(())
    };
    sums_are(75.0)?;
    let last = workloads.pop().ok_or("no workload")?;
    last.end()?;
    sums_are(75.0)?;
    workloads[0].ask("lock call=each size=4096")?;
    sums_are(80.0)?;
    workloads.into_iter().try_for_each(Workload::end)?;
    exporter.stop().map(|_| ())
}

fn with_config(text: &str) -> Result<Exporter, String> {
    const FILE: &str = "/tmp/mrscope-locks.yaml";
    std::fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"))?;
    Exporter::start(&["--config.file", FILE])
}

pub fn without_counts_of_processes_locks_are_the_host_s_alone() -> Outcome {
    let exporter = with_config("mlock:\n  per_process: false\n")?;
    let mut workload = Workload::start()?;
    workload.ask("map size=64K")?;
    workload.ask("lock call=mlock size=64K rounds=4")?;
    let page = exporter.page()?;
    in_state(&page, "mlock", "ok")?;
    equal("calls", calls(&page, "mlock"), 4.0)?;
    let of_processes: Vec<_> = page.starting("mrscope_process_mlock_").collect();
    if !of_processes.is_empty() {
        return Err(format!("there are series of processes: {of_processes:?}"));
    }
    is_locked(&page, workload.pid, 65_536.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// Programs in the kernel that watch calls that lock, by their names.
fn watching_locks() -> Vec<String> {
    let names = ProgInfoIter::default().map(|info| info.name.to_string_lossy().into_owned());
    names.filter(|name| name.contains("lock")).collect()
}

pub fn switched_off_nothing_watches_locks() -> Outcome {
    let mut workload = Workload::start()?;
    workload.ask("map size=64K")?;
    let exporter = Exporter::start(&[])?;
    let watching = watching_locks();
    if watching.is_empty() {
        return Err("no program watches locks by default: the case proves nothing".to_owned());
    }
    exporter.stop()?;
    let exporter = Exporter::start(&["--no-collector.mlock"])?;
    workload.ask("lock call=mlock size=64K")?;
    let page = exporter.page()?;
    in_state(&page, "mlock", "off")?;
    if !watching_locks().is_empty() {
        return Err(format!("switched off, {:?} are in the kernel", watching_locks()));
    }
    let attached = |series: &str| {
        series.starts_with("mrscope_program_attached{") && series.contains("program=\"mlock")
    };
    let claimed: Vec<_> = page
        .starting("mrscope_")
        .filter(|(series, value)| {
            let of_locks = ["mrscope_mlock_", "mrscope_process_mlock_"];
            of_locks.iter().any(|prefix| series.starts_with(prefix))
                || attached(series) && *value != 0.0
        })
        .collect();
    if !claimed.is_empty() {
        return Err(format!("switched off, it says {claimed:?}"));
    }
    is_locked(&page, workload.pid, 65_536.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}
