//! Processes that are gone, or hold nothing, when somebody looks.

use std::collections::BTreeMap;

use super::failure::{failures, of_process_by_cause};
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::{Workload, kernel_mrs, number};

const COUNT: &str = "mrscope_process_mr_registration_duration_seconds_count";
const FAILED: &str = "mrscope_process_mr_registration_failures_total";
const OTHER: &str = "(all other processes)";
const PROCESS_ROWS: &str = "mrscope_map_entries{map=\"processes\"}";

pub fn a_process_that_failed_and_ended_is_on_the_next_page_of_two_scrapers() -> Outcome {
    let long = Exporter::start(&[])?;
    let short = Exporter::start(&["--process.linger", "5s"])?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    workload.ask("rlimit memlock=0")?;
    workload.ask("setuid uid=1000")?;
    let refused = workload.ask("reg count=1 size=4096");
    if !refused.as_ref().is_err_and(|reply| reply.contains("EPERM")) {
        return Err(format!("with a limit of 0: {refused:?}"));
    }
    workload.end()?;

    let shown = |page: &Page| -> Outcome {
        equal("the device's", failures(page, "EPERM", "memlock_zero"), 1.0)?;
        equal("its cause", of_process_by_cause(page, pid, "memlock_zero"), 1.0)?;
        equal("all failures", page.starting(FAILED).map(|(_, count)| count).sum(), 1.0)?;
        equal("registrations", page.or_zero(&of_process(REGISTERED, pid)), 0.0)
    };
    shown(&short.page()?)?;
    // The second of two scrapers comes after many pages of the first.
    shown(&long.page()?)?;
    for _ in 0..10 {
        long.page()?;
    }
    shown(&long.page()?)?;
    wait_for("its gauges to go", || Ok(long.page()?.value(&of_process("active", pid)).is_none()))?;
    shown(&long.page()?)?;
    wait_for("it to be gone after the time it lingers", || {
        let page = short.page()?;
        Ok(!page.text.contains(&format!("pid=\"{pid}\"")))
    })?;
    // By time, not by pages: where it is not over yet, all is there.
    shown(&long.page()?)?;
    equal("the host's stays", failures(&short.page()?, "EPERM", "memlock_zero"), 1.0)?;
    long.stop()?;
    short.stop().map(|_| ())
}

const REGISTERED: &str = "registration_duration_seconds_count";

pub fn a_churner_that_holds_nothing_is_on_the_page_and_never_counts_anew() -> Outcome {
    let exporter = Exporter::start(&["--process.linger", "5s"])?;
    let mut workload = Workload::start()?;
    let count = of_process(REGISTERED, workload.pid);
    let active = of_process("active", workload.pid);
    workload.ask("churn rounds=50 size=8192")?;
    for _ in 0..3 {
        let page = exporter.page()?;
        equal("registered", page.or_zero(&count), 50.0)?;
        match page.value(&active) {
            Some(held) => equal("held", held, 0.0)?,
            None => return Err(format!("{active} is absent, expected 0")),
        }
    }
    wait_for("it to be gone without an event of late", || {
        Ok(exporter.page()?.value(&count).is_none())
    })?;
    workload.ask("churn rounds=50 size=8192")?;
    equal("after it came back", exporter.page()?.or_zero(&count), 100.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// Every process series that was ever seen, at its last value: what is gone from the page was
/// counted all the same.
#[derive(Default)]
struct Seen {
    registered: BTreeMap<String, f64>,
    failed: BTreeMap<String, f64>,
}

impl Seen {
    /// Takes a page in; no series falls, and there are no more than `most`.
    fn take(&mut self, page: &Page, most: usize) -> Outcome {
        let series = page.starting(COUNT).count();
        if series > most {
            return Err(format!("{series} series of processes, at most {most} were asked for"));
        }
        for (prefix, seen) in [(COUNT, &mut self.registered), (FAILED, &mut self.failed)] {
            for (name, value) in page.starting(prefix) {
                let before = seen.insert(name.to_owned(), value).unwrap_or(0.0);
                if value < before {
                    return Err(format!("{name} fell from {before} to {value}"));
                }
            }
        }
        Ok(())
    }

    fn registered(&self) -> f64 {
        self.registered.values().sum()
    }

    fn failed(&self) -> f64 {
        self.failed.values().sum()
    }
}

pub fn two_thousand_short_lives_add_up_in_a_bounded_number_of_series() -> Outcome {
    const MOST: usize = 10;
    let exporter = Exporter::start(&["--process.max", "10", "--process.linger", "3s"])?;
    let mut workload = Workload::start()?;
    let mut seen = Seen::default();
    let (mut registered, mut failed) = (0.0, 0.0);
    let well = ("lives count=200 parallel=8 size=4096", 200.0, 0.0);
    let bad = ("lives count=200 parallel=8 size=4096 fail=1", 0.0, 200.0);
    let held = ("lives count=100 parallel=8 size=4096 hold=1", 100.0, 0.0);
    let hundred = ("lives count=100 parallel=8 size=4096", 100.0, 0.0);
    for (lives, good, bad) in [well, well, bad, well, well, well, bad, well, well, hundred, held] {
        // Pages while they live, too.
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| workload.ask(lives).map(|_| ()));
            while !asked.is_finished() {
                seen.take(&exporter.page()?, MOST + 1)?;
            }
            asked.join().map_err(|_| "the asking thread panicked".to_owned())?
        })?;
        registered += good;
        failed += bad;
        let page = exporter.page()?;
        seen.take(&page, MOST + 1)?;
        let (well, ill) = (page.or_zero(REGISTRATIONS), failures(&page, "EFAULT", "bad_address"));
        equal("registered", well, registered)?;
        equal("failed", ill, failed)?;
        equal("of all processes", seen.registered(), well)?;
        equal("failures of all processes", seen.failed(), ill)?;
    }
    // The last hundred ended with an MR each, which their parent's file keeps.
    let page = exporter.page()?;
    equal("the kernel's count", kernel_mrs()?.0, 100.0)?;
    equal("held", page.or_zero(ACTIVE), 100.0)?;
    let active = page.starting("mrscope_process_mr_active{").map(|(_, count)| count);
    equal("held by all processes", active.sum(), 100.0)?;
    workload.kill()?;
    wait_for("the kernel to have none of its MRs", || Ok(kernel_mrs()?.0 == 0.0))?;
    equal("after", exporter.page()?.or_zero(ACTIVE), 0.0)?;
    wait_for("the dead to be gone", || {
        let page = exporter.page()?;
        let names: Vec<_> = page.starting(COUNT).map(|(name, _)| name).collect();
        Ok(names == [format!("{COUNT}{{comm=\"{OTHER}\",pid=\"\"}}")]
            && page.value(PROCESS_ROWS) == Some(0.0))
    })?;
    exporter.stop().map(|_| ())
}

/// More than twice as many as the map of processes has rows. At 700 a second what two ticks leave
/// finds room: as fast as it goes, 1,900 a second fill the 8,192 rows before the first tick.
/// Without series of their own, so that none is exchanged for another and off the page.
pub fn lives_that_nobody_scrapes_fill_no_map_and_are_all_counted() -> Outcome {
    let exporter = Exporter::start(&["--process.max", "0"])?;
    let mut workload = Workload::start()?;
    let reply = workload.ask("lives count=20000 rate=700 share=1 size=4096")?;
    equal("lives", number(&reply, "lives")?, 20_000.0)?;
    let page = exporter.page()?;
    if !page.lost().is_empty() {
        return Err(format!("lost: {:?}", page.lost()));
    }
    equal("registrations", page.or_zero(REGISTRATIONS), 20_000.0)?;
    equal("deregistrations", page.or_zero(DEREGISTRATIONS), 20_000.0)?;
    let registered = "mrscope_mr_registered_bytes_total{device=\"rxe0\",kind=\"host\"}";
    equal("bytes", page.or_zero(registered), number(&reply, "bytes")?)?;
    let counts = page.starting(COUNT).map(|(_, count)| count);
    equal("of all processes", counts.sum(), 20_000.0)?;
    equal("held", page.or_zero(ACTIVE), 0.0)?;
    wait_for("the rows of the dead to be freed", || {
        Ok(exporter.page()?.value(PROCESS_ROWS) == Some(0.0))
    })?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// Lives that come faster than their rows are freed: the host's figures hold, and what no process
/// has is said to be lost.
pub fn lives_that_find_the_map_full_are_counted_for_the_host_and_said_to_be_lost() -> Outcome {
    const FILE: &str = "/tmp/mrscope-lab-lives.yaml";
    let text = "ebpf:\n  max_processes: 64\n";
    std::fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"))?;
    let exporter = Exporter::start(&["--config.file", FILE])?;
    let mut workload = Workload::start()?;
    workload.ask("lives count=200 share=1 size=4096")?;
    let page = exporter.page()?;
    equal("registrations", page.or_zero(REGISTRATIONS), 200.0)?;
    let counted: f64 = page.starting(COUNT).map(|(_, count)| count).sum();
    equal("of all processes", counted, 64.0)?;
    equal("held", page.or_zero(ACTIVE), 0.0)?;
    let lost = page.or_zero("mrscope_lost_updates_total{reason=\"full\",source=\"processes\"}");
    // Of each registration two: the pin's owner, and the call.
    equal("lost", lost, 2.0 * 136.0)?;
    in_state(&page, "mr", "failed")?;
    exporter.says(&["level=warn", "processes", "full", "raise ebpf.max_processes"])?;
    wait_for("the rows of the dead to be freed", || {
        Ok(exporter.page()?.value(PROCESS_ROWS) == Some(0.0))
    })?;
    in_state(&exporter.page()?, "mr", "ok")?;
    workload.ask("reg count=2 size=4096")?;
    let page = exporter.page()?;
    equal("later ones", page.or_zero(&of_process("active", workload.pid)), 2.0)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}
