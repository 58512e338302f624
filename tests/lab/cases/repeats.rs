//! MRs that are registered again after they were deregistered.

use super::devices::{add_device, run};
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::{Workload, number};

pub const CASES: &[OnceCase] = &[
    (
        "a_buffer_that_is_registered_again_and_again_is_a_repeat_each_time_but_the_first",
        a_buffer_that_is_registered_again_and_again_is_a_repeat_each_time_but_the_first,
    ),
    (
        "a_hundred_buffers_registered_once_are_no_repeats",
        a_hundred_buffers_registered_once_are_no_repeats,
    ),
    (
        "one_buffer_on_eight_devices_is_no_repeat_until_it_comes_again",
        one_buffer_on_eight_devices_is_no_repeat_until_it_comes_again,
    ),
    (
        "a_full_history_forgets_the_oldest_and_tells_how_many",
        a_full_history_forgets_the_oldest_and_tells_how_many,
    ),
    (
        "what_the_dead_had_registered_is_no_repeat_and_not_missed",
        what_the_dead_had_registered_is_no_repeat_and_not_missed,
    ),
];

const FORGOTTEN: &str = "mrscope_mr_history_forgotten_total";
const REMEMBERED: &str = "mrscope_map_entries{map=\"history\"}";
const ROOM: &str = "mrscope_map_max_entries{map=\"history\"}";

/// Count and seconds of a device's repeats.
fn of_device(page: &Page, device: &str) -> Result<(f64, f64), String> {
    let value = |metric: &str| {
        let series = format!("mrscope_mr_repeat_registration{metric}{{device=\"{device}\"}}");
        page.value(&series).ok_or_else(|| format!("{series} is absent"))
    };
    Ok((value("s_total")?, value("_seconds_total")?))
}

/// The same of a process; what rxe0 has, as long as no other process registers.
fn repeats(page: &Page, pid: u32) -> Result<(f64, f64), String> {
    let value = |metric: &str| {
        let series = of_process(&format!("repeat_registration{metric}"), pid);
        page.value(&series).ok_or_else(|| format!("{series} is absent"))
    };
    let of_process = (value("s_total")?, value("_seconds_total")?);
    let of_device = of_device(page, "rxe0")?;
    equal("repeats of the device", of_device.0, of_process.0)?;
    equal("their seconds", of_device.1, of_process.1)?;
    Ok(of_process)
}

/// A workload that holds an MR, by which mrscope has learned what the device is called: where the
/// modules have no BTF a device has another identity before.
fn start(exporter: &Exporter, mut workload: Workload) -> Result<Workload, String> {
    workload.ask("reg count=1 size=12288")?;
    equal("the first MR", exporter.page()?.or_zero(REGISTRATIONS), 1.0)?;
    Ok(workload)
}

/// One that remembers so many MRs.
fn exporter_with(history: u32) -> Result<Exporter, String> {
    const FILE: &str = "/tmp/mrscope-lab-history.yaml";
    let text = format!("mr:\n  history: {history}\n");
    std::fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"))?;
    Exporter::start(&["--config.file", FILE])
}

fn nothing_lost(page: &Page) -> Outcome {
    in_state(page, "mr", "ok")?;
    if page.lost().is_empty() { Ok(()) } else { Err(format!("lost: {:?}", page.lost())) }
}

fn a_buffer_that_is_registered_again_and_again_is_a_repeat_each_time_but_the_first() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = start(&exporter, Workload::start()?)?;
    let pid = workload.pid;
    equal("before", repeats(&exporter.page()?, pid)?.0, 0.0)?;

    let small = workload.ask("cycle rounds=100 size=4096")?;
    let page = exporter.page()?;
    let (count, seconds) = repeats(&page, pid)?;
    equal("registered by itself", number(&small, "registered")?, 100.0)?;
    equal("repeats of a small one", count, 99.0)?;
    let own = number(&small, "later_ns_sum")? * 1e-9;
    println!("  99 x 4 KiB: {seconds:.6} s of {own:.6} s");
    if !(seconds > 0.0 && seconds <= own) {
        return Err(format!("{seconds} s of repeats, the caller's own were {own} s"));
    }

    let looked = page.or_zero(LOOKING_SECONDS);
    let large = workload.ask("cycle rounds=100 size=16M")?;
    let page = exporter.page()?;
    let (both, total) = repeats(&page, pid)?;
    equal("repeats of both", both, 198.0)?;
    let (own, seconds) = (number(&large, "later_ns_sum")? * 1e-9, total - seconds);
    // The caller waits for it, the more the more its pages are scattered; no repeat has it.
    let looked = page.or_zero(LOOKING_SECONDS) - looked;
    println!("  99 x 16 MiB: {seconds:.6} s of {own:.6} s, {looked:.6} s to look at pages");
    if !(seconds + looked >= 0.9 * own && seconds <= own) {
        return Err(format!(
            "{seconds} s of repeats, {looked} s to look, the caller's own were {own} s"
        ));
    }
    // A call that fails is none, nor is a length that was not there before.
    workload.ask("fail how=protnone count=5 size=4096")?;
    workload.ask("cycle rounds=1 size=8192")?;
    equal("after others", repeats(&exporter.page()?, pid)?.0, 198.0)?;
    equal("remembered", exporter.page()?.or_zero(REMEMBERED), 3.0)?;
    equal("forgotten", exporter.page()?.or_zero(FORGOTTEN), 0.0)?;
    nothing_lost(&exporter.page()?)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

fn a_hundred_buffers_registered_once_are_no_repeats() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = start(&exporter, Workload::start()?)?;
    workload.ask("cycle count=100 rounds=1 size=16384")?;
    let page = exporter.page()?;
    equal("repeats", repeats(&page, workload.pid)?.0, 0.0)?;
    equal("remembered", page.or_zero(REMEMBERED), 100.0)?;
    equal("room", page.or_zero(ROOM), 65_536.0)?;
    equal("forgotten", page.or_zero(FORGOTTEN), 0.0)?;
    nothing_lost(&page)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

fn one_buffer_on_eight_devices_is_no_repeat_until_it_comes_again() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = start(&exporter, Workload::start()?)?;
    for n in 1..8 {
        add_device(&format!("rxe{n}"), &format!("dummy{n}"))?;
    }
    let of_process = of_process("repeat_registrations_total", workload.pid);
    let count = |page: &Page| page.or_zero(&of_process);
    let reply = workload.ask("spread rounds=1 size=65536")?;
    equal("devices", number(&reply, "devices")?, 8.0)?;
    equal("registered by itself", number(&reply, "registered")?, 8.0)?;
    let page = exporter.page()?;
    equal("repeats", count(&page), 0.0)?;
    equal("remembered", page.or_zero(REMEMBERED), 8.0)?;

    let reply = workload.ask("spread rounds=3 size=131072")?;
    equal("registered by itself", number(&reply, "registered")?, 24.0)?;
    let page = exporter.page()?;
    equal("repeats", count(&page), 16.0)?;
    for n in 0..8 {
        equal(&format!("repeats on rxe{n}"), of_device(&page, &format!("rxe{n}"))?.0, 2.0)?;
    }
    nothing_lost(&page)?;
    workload.end()?;
    for n in 1..8 {
        run(&format!("rdma link delete rxe{n}"))?;
        run(&format!("ip link delete dummy{n}"))?;
    }
    exporter.stop().map(|_| ())
}

fn a_full_history_forgets_the_oldest_and_tells_how_many() -> Outcome {
    let exporter = exporter_with(8)?;
    let mut workload = start(&exporter, Workload::start()?)?;
    let pid = workload.pid;
    let told = |what: &str, expected: [f64; 3]| -> Outcome {
        let page = exporter.page()?;
        equal(&format!("{what}: room"), page.or_zero(ROOM), 8.0)?;
        equal(&format!("{what}: repeats"), repeats(&page, pid)?.0, expected[0])?;
        equal(&format!("{what}: remembered"), page.or_zero(REMEMBERED), expected[1])?;
        equal(&format!("{what}: forgotten"), page.or_zero(FORGOTTEN), expected[2])?;
        nothing_lost(&page)
    };
    told("at first", [0.0, 0.0, 0.0])?;
    workload.ask("cycle count=8 rounds=3 size=4096")?;
    told("as many as there is room for", [16.0, 8.0, 0.0])?;
    // The oldest goes each time just before it would have come back.
    workload.ask("cycle count=9 rounds=3 size=8192")?;
    told("one more", [16.0, 8.0, 27.0])?;
    workload.ask("cycle count=7 rounds=3 size=16384")?;
    told("fewer again", [30.0, 8.0, 34.0])?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

fn what_the_dead_had_registered_is_no_repeat_and_not_missed() -> Outcome {
    // Without it their buffers would be at other addresses.
    const SAME_ADDRESSES: [&str; 2] = ["setarch", "-R"];
    let exporter = exporter_with(8)?;
    let mut first = start(&exporter, Workload::start_by(&SAME_ADDRESSES)?)?;
    let before = first.ask("cycle count=8 rounds=2 size=8192")?;
    first.ask("reg count=20 size=16384")?;
    equal("repeats of the first", repeats(&exporter.page()?, first.pid)?.0, 8.0)?;
    first.kill()?;
    // Its 21 MRs go with it: who ends comes back for none.
    wait_for("its row to be freed", || {
        Ok(exporter.page()?.value("mrscope_map_entries{map=\"processes\"}") == Some(0.0))
    })?;
    let page = exporter.page()?;
    equal("deregistered", page.or_zero(DEREGISTRATIONS), 37.0)?;
    equal("remembered", page.or_zero(REMEMBERED), 8.0)?;
    equal("forgotten at its end", page.or_zero(FORGOTTEN), 0.0)?;

    let mut second = Workload::start_by(&SAME_ADDRESSES)?;
    second.ask("reg count=1 size=12288")?;
    let after = second.ask("cycle count=8 rounds=1 size=8192")?;
    equal("the address", number(&after, "address")?, number(&before, "address")?)?;
    let page = exporter.page()?;
    let count = of_process("repeat_registrations_total", second.pid);
    equal("repeats of the second", page.or_zero(&count), 0.0)?;
    equal("of the device", of_device(&page, "rxe0")?.0, 8.0)?;
    equal("remembered of both", page.or_zero(REMEMBERED), 8.0)?;
    equal("the dead's that went", page.or_zero(FORGOTTEN), 0.0)?;
    nothing_lost(&page)?;
    second.end()?;
    exporter.stop().map(|_| ())
}
