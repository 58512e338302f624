//! MRs from before the start are in the figures from the first page on.

use crate::cases::*;
use crate::exporter::{Exporter, signal, wait_for};
use crate::page::Page;
use crate::workload::{Workload, kernel_mrs, number, vm_pin};

pub const CASES: &[OnceCase] = &[(
    "mrs_from_before_the_start_are_counted_from_the_first_page_on",
    mrs_from_before_the_start_are_counted_from_the_first_page_on,
)];

/// A page without a negative figure.
fn page_of(exporter: &Exporter) -> Result<Page, String> {
    let page = exporter.page()?;
    let below = page.starting("mrscope_").find(|(_, value)| *value < 0.0);
    let below = below.map(|(series, value)| format!("{series} is {value}"));
    below.map_or(Ok(page), Err)
}

/// What each process has registered that lives: count and bytes. None where they differ.
fn differs(page: &Page, held: &[(u32, f64, f64)]) -> Option<String> {
    let of_pid = held.iter().flat_map(|(pid, count, bytes)| {
        [(of_process("active", *pid), *count), (of_process("active_bytes", *pid), *bytes)]
    });
    let count: f64 = held.iter().map(|(_, count, _)| count).sum();
    let bytes: f64 = held.iter().map(|(_, _, bytes)| bytes).sum();
    let of_device = [(ACTIVE.to_owned(), count), (ACTIVE_BYTES.to_owned(), bytes)];
    let mut all = of_pid.chain(of_device);
    all.find(|(series, known)| page.or_zero(series) != *known).map(|(series, known)| {
        format!("{series}: mrscope says {}, expected {known}", page.or_zero(&series))
    })
}

fn becomes(exporter: &Exporter, held: &[(u32, f64, f64)]) -> Outcome {
    let mut last = None;
    let known: f64 = held.iter().map(|(_, count, _)| count).sum();
    equal("the kernel's count", kernel_mrs()?.0, known)?;
    // A negative figure ends it at once, whatever comes later.
    let mut negative = Ok(());
    let waited = wait_for("figures to follow", || match page_of(exporter) {
        Ok(page) => {
            last = differs(&page, held);
            Ok(last.is_none())
        }
        Err(error) => {
            negative = Err(error);
            Ok(true)
        }
    });
    negative?;
    waited.map_err(|error| format!("{error}{}", last.unwrap_or_default()))
}

fn mrs_from_before_the_start_are_counted_from_the_first_page_on() -> Outcome {
    let [mut plain, mut threads, mut shared] =
        [Workload::start()?, Workload::start()?, Workload::start()?];
    plain.ask("reg count=40 size=10000 offset=7")?;
    threads.ask("reg count=15 size=8192")?;
    threads.ask("thread count=15 size=5000")?;
    shared.ask("reg count=30 size=64K")?;
    let child = number(&shared.ask("fork")?, "child_pid")? as u32;
    let (plain_pid, threads_pid, shared_pid) = (plain.pid, threads.pid, shared.pid);
    let held = |plain: f64, in_threads: (f64, f64), shared: f64| {
        [
            (plain_pid, plain, plain * 10_000.0),
            (
                threads_pid,
                in_threads.0 + in_threads.1,
                in_threads.0 * 8192.0 + in_threads.1 * 5000.0,
            ),
            (shared_pid, shared, shared * 65536.0),
        ]
    };

    let exporter = Exporter::start(&[])?;
    let page = page_of(&exporter)?;
    if let Some(difference) = differs(&page, &held(40.0, (15.0, 15.0), 30.0)) {
        return Err(format!("on the first page, {difference}"));
    }
    equal("of the device", page.or_zero(ACTIVE), 100.0)?;
    equal("in bytes", page.or_zero(ACTIVE_BYTES), kernel_mrs()?.1)?;
    let pinned = vm_pin(plain_pid)? + vm_pin(threads_pid)? + vm_pin(shared_pid)?;
    // Where in its first page an MR begins nobody can tell any more: a page each.
    let (least, most) = (page.or_zero(ACTIVE_BYTES), pinned + 100.0 * 4096.0);
    let said = page.or_zero(PINNED_MR);
    if said < least || said > most {
        return Err(format!("pinned: mrscope says {said}, expected {least} to {most}"));
    }

    for released in 1..=5 {
        let released = f64::from(released);
        plain.ask("dereg count=1")?;
        threads.ask("dereg count=1")?;
        shared.ask("dereg count=1")?;
        becomes(&exporter, &held(40.0 - released, (15.0, 15.0 - released), 30.0 - released))?;
    }
    plain.ask("reg count=10 size=10000 offset=7")?;
    threads.ask("reg count=3 size=5000")?;
    threads.ask("thread count=2 size=5000")?;
    shared.ask("reg count=5 size=64K")?;
    becomes(&exporter, &held(45.0, (15.0, 15.0), 30.0))?;

    // Its MRs live on with the child, which made none of them.
    shared.kill()?;
    wait_for("the process to be gone", || Ok(vm_pin(shared_pid).is_err()))?;
    becomes(&exporter, &held(45.0, (15.0, 15.0), 30.0))?;
    signal(child, "KILL")?;
    wait_for("the kernel to have none of its MRs", || Ok(kernel_mrs()?.0 == 75.0))?;
    becomes(&exporter, &held(45.0, (15.0, 15.0), 0.0))?;
    threads.kill()?;
    wait_for("the kernel to have none of its MRs", || Ok(kernel_mrs()?.0 == 45.0))?;
    becomes(&exporter, &held(45.0, (0.0, 0.0), 0.0))?;
    plain.ask("dereg count=all")?;
    becomes(&exporter, &held(0.0, (0.0, 0.0), 0.0))?;
    let page = page_of(&exporter)?;
    for series in [ACTIVE, ACTIVE_BYTES, PINNED_MR, PINNED_QUEUE] {
        equal(series, page.or_zero(series), 0.0)?;
    }
    plain.ask("reg count=3 size=10000 offset=7")?;
    becomes(&exporter, &held(3.0, (0.0, 0.0), 0.0))?;
    plain.end()?;
    exporter.stop().map(|_| ())
}
