//! Why a registration failed, one cause after another: by the caller's own errno, by device, by
//! process, and as a row of the last failures, with the limit and VmPin that /proc tells.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use super::failure::{fails_as, failures, of_process_by_cause};
use super::groups::Cgroup;
use super::memlock::limit_by_proc;
use super::vendor::Vendor;
use super::write_probe::pool_file;
use super::write_probe_faults::Set;
use crate::boot::NODES;
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::{Page, get};
use crate::workload::{Workload, number, vm_pin};

pub const CASES: &[OnceCase] = &[
    (
        "who_may_not_exceed_the_memlock_limit_is_told_by_what_the_host_grants",
        who_may_not_exceed_the_memlock_limit_is_told_by_what_the_host_grants,
    ),
    (
        "what_can_t_be_pinned_is_a_row_with_its_address",
        what_can_t_be_pinned_is_a_row_with_its_address,
    ),
    (
        "hugepages_that_may_only_be_read_fail_for_what_the_kernel_minds",
        hugepages_that_may_only_be_read_fail_for_what_the_kernel_minds,
    ),
    (
        "a_cgroup_without_memory_interrupts_a_pin_or_leaves_none",
        a_cgroup_without_memory_interrupts_a_pin_or_leaves_none,
    ),
    (
        "a_driver_that_fails_after_the_pin_is_the_device_s",
        a_driver_that_fails_after_the_pin_is_the_device_s,
    ),
];

/// A row of the last failures, by the words above its columns.
type Row = BTreeMap<String, String>;

/// Texts between a tag and its end, in order.
fn between<'a>(html: &'a str, tag: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    html.split(&open).skip(1).filter_map(|rest| Some(rest.split_once(&close)?.0)).collect()
}

/// The last failures as the page for people has them, right after a page for Prometheus.
fn rows(exporter: &Exporter) -> Result<Vec<Row>, String> {
    exporter.page()?;
    let (status, _, html) = get(exporter.port, "/")?;
    if status != 200 {
        return Err(format!("/ answered {status}: {html}"));
    }
    let (_, part) = html.split_once("<h2>Last failed registrations</h2>").ok_or("no such part")?;
    let head = between(part, "th");
    let rows: Vec<Row> = between(part, "tr")
        .into_iter()
        .map(|row| between(row, "td"))
        .filter(|cells| !cells.is_empty())
        .map(|cells| head.iter().zip(cells).map(|(h, c)| ((*h).to_owned(), c.to_owned())).collect())
        .collect();
    if rows.is_sorted_by(|one, next| one["time"] >= next["time"]) {
        Ok(rows)
    } else {
        Err(format!("the newest is not first: {rows:?}"))
    }
}

/// `8 MiB`, `12 B`, or none.
fn bytes(text: &str) -> Result<f64, String> {
    if text == "none" {
        return Ok(f64::INFINITY);
    }
    let (count, unit) = text.split_once(' ').ok_or_else(|| format!("{text:?} are no bytes"))?;
    let unit = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        _ => return Err(format!("{text:?} are no bytes")),
    };
    count.parse::<f64>().map(|count| count * unit).map_err(|_| format!("{text:?} are no bytes"))
}

/// The time of day, by date.
fn time_of_day() -> Result<String, String> {
    let output = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S.%3NZ"]).output();
    let output = output.map_err(|error| format!("date: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What is known of a failure apart from mrscope.
struct Known<'a> {
    errno: &'a str,
    cause: &'a str,
    /// Address and bytes; None where no pin was tried.
    range: Option<(f64, f64)>,
    /// By /proc, before it failed.
    limit: f64,
    pinned: f64,
    exempt: bool,
    /// Earlier than it, by date.
    since: String,
}

impl Known<'_> {
    /// The newest row of that process and cause is this.
    fn is_noted(&self, exporter: &Exporter, pid: u32) -> Outcome {
        let (rows, until) = (rows(exporter)?, time_of_day()?);
        let mine = |row: &&Row| row["pid"] == pid.to_string() && row["cause"] == self.cause;
        let row = rows.iter().find(mine).ok_or_else(|| format!("no row of {pid} in {rows:?}"))?;
        let same = |what: &str, expected: &str| {
            let seen = row[what].as_str();
            (seen == expected)
                .then_some(())
                .ok_or_else(|| format!("{what}: {seen}, expected {expected}: {row:?}"))
        };
        same("errno", self.errno)?;
        same("process", "workload")?;
        same("kind", "host")?;
        same("CAP_IPC_LOCK", if self.exempt { "yes" } else { "no" })?;
        equal("limit of the row", bytes(&row["memlock limit"])?, self.limit)?;
        equal("pinned of the row", bytes(&row["pinned"])?, self.pinned)?;
        if let Some((address, length)) = self.range {
            same("device", "rxe0")?;
            same("address", &format!("{:#x}", address as u64))?;
            equal("length of the row", bytes(&row["length"])?, length)?;
        } else {
            same("address", "not known")?;
            same("length", "not known")?;
        }
        if self.since > row["time"] || row["time"] > until {
            return Err(format!("{} is not from {} to {until}", row["time"], self.since));
        }
        Ok(())
    }
}

/// `fail how=HOW`, three times: as the caller saw it, by device, by process, and in the newest row.
fn fails_and_is_noted(
    exporter: &Exporter,
    workload: &mut Workload,
    command: &str,
    (errno, cause): (&str, &str),
    exempt: bool,
) -> Outcome {
    let lab = Lab { kernel: "any", pin_program: "any", attach: "kprobe", exporter };
    let (pid, since) = (workload.pid, time_of_day()?);
    let (limit, pinned) = (limit_by_proc(pid)?, vm_pin(pid)?);
    fails_as(&lab, workload, &format!("{command} count=3"), (3.0, errno, cause))?;
    let reply = workload.ask(&format!("{command} count=1"))?;
    let range = Some((number(&reply, "address")?, number(&reply, "size")?));
    let known = Known { errno, cause, range, limit, pinned, exempt, since };
    known.is_noted(exporter, pid).map_err(|error| format!("{command}: {error}"))
}

/// What starts a process as another user with the capability.
pub const WITH_CAPABILITY: [&str; 10] = [
    "setpriv",
    "--reuid",
    "1000",
    "--regid",
    "1000",
    "--clear-groups",
    "--inh-caps",
    "+ipc_lock",
    "--ambient-caps",
    "+ipc_lock",
];

pub fn who_may_not_exceed_the_memlock_limit_is_told_by_what_the_host_grants() -> Outcome {
    const LIMITED: [(&str, &[&str]); 4] = [
        ("another user", &["setuid uid=1000"]),
        ("root without the capability", &["dropcap"]),
        ("root of a user namespace", &["userns"]),
        ("another user, root of a user namespace", &["setuid uid=1000", "userns"]),
    ];
    let exporter = Exporter::start(&[])?;
    for (what, commands) in LIMITED {
        let told = |error: String| format!("{what}: {error}");
        let mut workload = Workload::start()?;
        workload.ask("rlimit memlock=1M")?;
        commands.iter().try_for_each(|command| workload.ask(command).map(|_| ()))?;
        // Up to the limit is well; a byte of the next page is not.
        workload.ask("reg count=1 size=1M").map_err(told)?;
        let as_limit = ("ENOMEM", "memlock_limit");
        fails_and_is_noted(&exporter, &mut workload, "fail how=sound size=1", as_limit, false)
            .map_err(told)?;
        workload.end()?;

        let mut workload = Workload::start()?;
        workload.ask("rlimit memlock=0")?;
        commands.iter().try_for_each(|command| workload.ask(command).map(|_| ()))?;
        let as_zero = ("EPERM", "memlock_zero");
        fails_and_is_noted(&exporter, &mut workload, "fail how=sound size=64K", as_zero, false)
            .map_err(told)?;
        workload.end()?;
    }
    for (what, starter) in [("root", &[][..]), ("another user with it", &WITH_CAPABILITY[..])] {
        // No more than the hard limit of 5.10, which another user can't raise.
        for limit in ["64K", "0"] {
            let mut workload = Workload::start_by(starter)?;
            workload.ask(&format!("rlimit memlock={limit}"))?;
            let before = exporter.page()?;
            workload.ask("reg count=3 size=1M").map_err(|error| format!("{what}: {error}"))?;
            let after = exporter.page()?;
            equal(what, after.or_zero(ACTIVE) - before.or_zero(ACTIVE), 3.0)?;
            equal(what, all_failures(&after), all_failures(&before))?;
            // What fails for another reason says that no limit held.
            let as_unmapped = ("EFAULT", "bad_address");
            fails_and_is_noted(
                &exporter,
                &mut workload,
                "fail how=unmapped size=64K",
                as_unmapped,
                true,
            )
            .map_err(|error| format!("{what}: {error}"))?;
            workload.end()?;
        }
    }
    exporter.stop().map(|_| ())
}

fn all_failures(page: &Page) -> f64 {
    page.starting("mrscope_mr_registration_failures_total").map(|(_, count)| count).sum()
}

pub fn what_can_t_be_pinned_is_a_row_with_its_address() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    workload.ask("reg count=2 size=10000")?;
    workload.ask("rlimit memlock=unlimited")?;
    for how in ["protnone", "unmapped"] {
        let command = format!("fail how={how} size=12345");
        let as_bad = ("EFAULT", "bad_address");
        fails_and_is_noted(&exporter, &mut workload, &command, as_bad, true)?;
    }
    // Remote write without local write: refused before any pin, where only BTF tells the device.
    let (before, since) = (exporter.page()?, time_of_day()?);
    let (limit, pinned) = (limit_by_proc(pid)?, vm_pin(pid)?);
    let reply = workload.ask("fail how=access size=64K count=2")?;
    let after = exporter.page()?;
    let errno = reply["errno_name"].as_str().unwrap_or_default();
    let refused = |page: &Page| -> f64 {
        let of = |device| format!("cause=\"refused\",device=\"{device}\",errno=\"{errno}\"");
        let of = |device| format!("mrscope_mr_registration_failures_total{{{}}}", of(device));
        page.or_zero(&of("rxe0")) + page.or_zero(&of("unknown"))
    };
    equal("refused", refused(&after) - refused(&before), 2.0)?;
    equal("all failures", all_failures(&after) - all_failures(&before), 2.0)?;
    equal("of the process", of_process_by_cause(&after, pid, "refused"), 2.0)?;
    let known = Known { errno, cause: "refused", range: None, limit, pinned, exempt: true, since };
    known.is_noted(&exporter, pid)?;
    // What failed before for another cause is still there, and once.
    let causes: Vec<_> = rows(&exporter)?.into_iter().map(|row| row["cause"].clone()).collect();
    if causes != ["refused", "bad_address"] {
        return Err(format!("the last failures are {causes:?}"));
    }
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// Whether it is for want of pages is told by the same registration with pages in the pool.
pub fn hugepages_that_may_only_be_read_fail_for_what_the_kernel_minds() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    let reading = "fail how=readonly size=4M access=remote_only";
    let writing = "fail how=readonly size=4M access=local";
    let pools = |pages: &str| {
        let pool = |node| Set::to(&pool_file(node, "hugepages-2048kB", "nr_hugepages"), pages);
        (0..NODES).map(pool).collect::<Result<Vec<_>, _>>()
    };
    let as_bad = ("EFAULT", "bad_address");
    let cause = {
        let _full = pools("4")?;
        fails_and_is_noted(&exporter, &mut workload, writing, as_bad, true)?;
        match number(&workload.ask_freely(reading)?, "registered")? {
            1.0 => "hugepage_unavailable",
            _ => "bad_address",
        }
    };
    if cause == "bad_address" {
        println!("    this kernel refuses them with pages in the pool too");
    }
    let _empty = pools("0")?;
    fails_and_is_noted(&exporter, &mut workload, reading, ("EFAULT", cause), true)?;
    fails_and_is_noted(&exporter, &mut workload, writing, as_bad, true)?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// A number of a cgroup's memory.events.
fn memory_event(group: &Cgroup, name: &str) -> Result<f64, String> {
    let path = format!("/sys/fs/cgroup/{}/memory.events", group.0);
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let count = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    count.ok_or_else(|| format!("no {name} in {text}"))
}

pub fn a_cgroup_without_memory_interrupts_a_pin_or_leaves_none() -> Outcome {
    const TOO_MUCH: &str = "fail how=sound size=256M";
    let control = "/sys/fs/cgroup/cgroup.subtree_control";
    fs::write(control, "+memory").map_err(|error| format!("{control}: {error}"))?;
    let group = Cgroup::make("lab_small")?;
    let limit = format!("/sys/fs/cgroup/{}/memory.max", group.0);
    fs::write(&limit, "64M").map_err(|error| format!("{limit}: {error}"))?;
    let exporter = Exporter::start(&[])?;

    let mut workload = Workload::start_in(group.0)?;
    workload.ask("reg count=1 size=1M")?;
    let (pid, since) = (workload.pid, time_of_day()?);
    let (limit, pinned) = (limit_by_proc(pid)?, vm_pin(pid)?);
    let before = exporter.page()?;
    let killed = workload.ask(TOO_MUCH);
    if killed.is_ok() || workload.ended_by()? != Some(9) {
        return Err(format!("it was not killed: {killed:?}: the case proves nothing"));
    }
    equal("OOM kills of the cgroup", memory_event(&group, "oom_kill ")?, 1.0)?;
    let interrupted = |page: &Page| failures(page, "EINTR", "interrupted");
    wait_for("the interrupted registration", || {
        Ok(interrupted(&exporter.page()?) - interrupted(&before) == 1.0)
    })?;
    let after = exporter.page()?;
    equal("all failures", all_failures(&after) - all_failures(&before), 1.0)?;
    equal("of the process", of_process_by_cause(&after, pid, "interrupted"), 1.0)?;
    // The dead can't tell where their mapping was.
    let row = rows(&exporter)?.into_iter().find(|row| row["pid"] == pid.to_string());
    let row = row.ok_or("no row of it")?;
    let address = row["address"].strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    let address = address.and_then(Result::ok).ok_or("no address")? as f64;
    let range = Some((address, 256.0 * 1_048_576.0));
    let (errno, cause) = ("EINTR", "interrupted");
    Known { errno, cause, range, limit, pinned, exempt: true, since }.is_noted(&exporter, pid)?;

    let mut workload = Workload::start_in(group.0)?;
    let spared = format!("/proc/{}/oom_score_adj", workload.pid);
    fs::write(&spared, "-1000").map_err(|error| format!("{spared}: {error}"))?;
    workload.ask("reg count=1 size=1M")?;
    // MCL_CURRENT: pages of its programs that the cgroup had to give up could not be had again.
    workload.ask("lock call=mlockall mode=1")?;
    fails_and_is_noted(&exporter, &mut workload, TOO_MUCH, ("ENOMEM", "no_memory"), true)?;
    equal("OOM kills after", memory_event(&group, "oom_kill ")?, 1.0)?;
    // Without the capability, but within the limit, it is the same.
    workload.ask("rlimit memlock=1G")?;
    workload.ask("dropcap")?;
    fails_and_is_noted(&exporter, &mut workload, TOO_MUCH, ("ENOMEM", "no_memory"), false)?;
    workload.end()?;
    exporter.stop()?;
    drop(group);
    Ok(())
}

pub fn a_driver_that_fails_after_the_pin_is_the_device_s() -> Outcome {
    let vendor = Vendor::load()?;
    let exporter = Exporter::start(&[])?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=1 size=8192")?;
    {
        // EIO
        let _fails = Set::to("/sys/module/mrscope_vendor/parameters/fail_after_pin", "5")?;
        let command = "fail how=sound size=64K";
        fails_and_is_noted(&exporter, &mut workload, command, ("EIO", "device"), true)?;
        // What fails in the pin is no fault of the device.
        let command = "fail how=unmapped size=64K";
        fails_and_is_noted(&exporter, &mut workload, command, ("EFAULT", "bad_address"), true)?;
    }
    workload.ask("reg count=1 size=8192")?;
    workload.end()?;
    exporter.stop()?;
    drop(vendor);
    Ok(())
}
