//! What mrscope may do, and what it keeps: by /proc's word on each of its threads.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::lifecycle::{WithoutRdma, WithoutTracefs};
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::workload::{Workload, vm_pin};

/// Numbers of capabilities, as setpriv takes those it may not know by name.
pub(super) const PERFMON: &str = "cap_38";
pub(super) const BPF: &str = "cap_39";

/// Their bits in /proc.
const BPF_BIT: u64 = 1 << 39;
const PERFMON_BIT: u64 = 1 << 38;
const ADMIN_BIT: u64 = 1 << 21;
const PTRACE_BIT: u64 = 1 << 19;
/// With CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
const SAMPLING_BITS: u64 = ADMIN_BIT | PTRACE_BIT | 1 << 1 | 1 << 2;
const DAC_BIT: u64 = 1 << 1;

/// A set that suffices, at a level of kernel.perf_event_paranoid and for a user.
struct Sufficient {
    paranoid: &'static str,
    uid: &'static str,
    capabilities: &'static [(&'static str, Without)],
    /// The same in bits.
    bits: u64,
}

/// What comes of it when one capability of the set is lacking.
#[derive(Clone, Copy)]
enum Without {
    /// Registrations are not watched, and the log names the capability.
    Denied(&'static str),
    /// They are, by kprobes of the perf PMU, and the log names tracefs.
    Perf,
}

/// The documented sets: docs/capabilities.md.
const SUFFICIENT: &[Sufficient] = &[
    Sufficient {
        paranoid: "2",
        uid: "65534",
        capabilities: &[
            (BPF, Without::Denied("CAP_BPF")),
            (PERFMON, Without::Denied("CAP_PERFMON")),
            ("dac_override", Without::Perf),
        ],
        bits: BPF_BIT | PERFMON_BIT | DAC_BIT,
    },
    Sufficient {
        paranoid: "3",
        uid: "65534",
        capabilities: &[
            ("sys_admin", Without::Denied("CAP_SYS_ADMIN")),
            ("dac_override", Without::Perf),
        ],
        bits: ADMIN_BIT | DAC_BIT,
    },
    Sufficient {
        paranoid: "2",
        uid: "0",
        capabilities: &[
            (BPF, Without::Denied("CAP_BPF")),
            (PERFMON, Without::Denied("CAP_PERFMON")),
        ],
        bits: BPF_BIT | PERFMON_BIT,
    },
    Sufficient {
        paranoid: "3",
        uid: "0",
        capabilities: &[("sys_admin", Without::Denied("CAP_SYS_ADMIN"))],
        bits: ADMIN_BIT,
    },
];

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// Sets kernel.perf_event_paranoid for its lifetime.
pub(super) struct Paranoid(String);

impl Paranoid {
    pub(super) fn set(level: &str) -> Result<Self, String> {
        let before = fs::read_to_string(PARANOID).map_err(|error| error.to_string())?;
        fs::write(PARANOID, level).map_err(|error| error.to_string())?;
        Ok(Self(before))
    }
}

impl Drop for Paranoid {
    fn drop(&mut self) {
        let _ = fs::write(PARANOID, self.0.trim());
    }
}

/// mrscope of a user that has these capabilities and no others, and `memory` that it may lock.
pub(super) fn start_with(
    uid: &str,
    capabilities: &[&str],
    memory: &str,
    arguments: &[&str],
) -> Result<Exporter, String> {
    // Nobody may not reach the folder that it was built in.
    fs::copy("target/release/mrscope", "/run/mrscope").map_err(|error| error.to_string())?;
    let set = [&["-all"], capabilities].concat().join(",+");
    let limit = format!("--memlock={memory}");
    let starter = [
        &["prlimit", &limit, "setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"][..],
        &["--bounding-set", &set, "--inh-caps", &set, "--ambient-caps", &set],
        &["sh", "-c", "shift && exec /run/mrscope \"$@\"", "sh"],
    ]
    .concat();
    Exporter::start_by(&starter, arguments)
}

/// Name, permitted, in effect and no_new_privs of each thread.
fn threads(pid: u32) -> Result<Vec<(String, u64, u64, bool)>, String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
    let mut threads = Vec::new();
    for task in tasks {
        let status = task.map_err(|error| error.to_string())?.path().join("status");
        let status = fs::read_to_string(status).map_err(|error| error.to_string())?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim).ok_or_else(|| format!("no {name} in {status}"))
        };
        let mask =
            |name| u64::from_str_radix(field(name)?, 16).map_err(|error| format!("{name} {error}"));
        let (permitted, effective) = (mask("CapPrm:")?, mask("CapEff:")?);
        let no_new = field("NoNewPrivs:")? == "1";
        threads.push((field("Name:")?.to_owned(), permitted, effective, no_new));
    }
    Ok(threads)
}

/// No thread has anything in effect, none gains any, and these alone have these left.
fn rests(exporter: &Exporter, kept: &[(&str, u64)]) -> Outcome {
    // Where no program can look at pages.
    let samples = !Path::new("/sys/kernel/btf/ib_core").exists();
    let at_rest = || {
        let threads = threads(exporter.pid())?;
        if threads.len() < 6 {
            return Err(format!("not the threads that it should have: {threads:?}"));
        }
        let restless = threads.iter().find(|(name, permitted, effective, no_new)| {
            let expected = kept.iter().find(|(thread, _)| thread == name).map_or(0, |(_, it)| *it);
            // What it was started with, of what sampling takes.
            let sampling = if name == "placement" && samples { SAMPLING_BITS } else { 0 };
            permitted & !sampling != expected || *effective != 0 || !no_new
        });
        restless.map_or(Ok(()), |thread| Err(format!("{thread:x?}, expected {kept:x?}")))
    };
    if asks_readers()? {
        // It may be reading just now.
        wait_for("it to rest", || at_rest().map(|()| true))
    } else {
        at_rest()
    }
}

/// Before 5.19 the kernel asks who reads maps and walks for a capability.
fn asks_readers() -> Result<bool, String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").map_err(|e| e.to_string())?;
    Ok(release.starts_with("5."))
}

/// What threads keep of these to attach again, and to read.
fn kept_of(bits: u64) -> Result<Vec<(&'static str, u64)>, String> {
    let reading = if bits & BPF_BIT == 0 { bits & ADMIN_BIT } else { BPF_BIT };
    let reading = if asks_readers()? { reading } else { 0 };
    Ok(vec![("events", bits | reading), ("processes", reading)])
}

/// The same of who may not attach again, and has all.
fn kept_to_read() -> Result<Vec<(&'static str, u64)>, String> {
    let reading = if asks_readers()? { BPF_BIT } else { 0 };
    Ok(vec![("events", reading), ("processes", reading), NAMES_PROGRAMS])
}

/// What is kept, where it is given, to name the programs of others.
const NAMES_PROGRAMS: (&str, u64) = ("pages", PTRACE_BIT);

fn counts_exactly(exporter: &Exporter) -> Outcome {
    let before = exporter.page()?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=5 size=12345")?;
    let page = exporter.page()?;
    for collector in ["mr", "process", "mlock", "hugepages", "devices", "exporter"] {
        in_state(&page, collector, "ok")?;
    }
    let moved = |series: &str| page.or_zero(series) - before.or_zero(series);
    equal("mr_active", moved(ACTIVE), 5.0)?;
    equal("pinned", moved(PINNED_MR), vm_pin(workload.pid)?)?;
    equal("of the process", page.or_zero(&of_process("active", workload.pid)), 5.0)?;
    workload.ask("dereg count=all")?;
    let page = exporter.page()?;
    equal("after", page.or_zero(ACTIVE), before.or_zero(ACTIVE))?;
    let lost = page.lost();
    if lost.is_empty() { workload.end() } else { Err(format!("lost: {lost:?}")) }
}

pub fn the_documented_capabilities_suffice_and_none_is_in_effect_while_it_serves() -> Outcome {
    for Sufficient { paranoid, uid, capabilities, bits } in SUFFICIENT {
        let _level = Paranoid::set(paranoid)?;
        let named: Vec<&str> = capabilities.iter().map(|(name, _)| *name).collect();
        let told = |error| format!("uid {uid}, paranoid {paranoid}, {named:?}: {error}");
        let exporter = start_with(uid, &named, "unlimited", &[])?;
        counts_exactly(&exporter).map_err(told)?;
        rests(&exporter, &kept_of(*bits)?).map_err(told)?;
        // The guest's CPUs have no counters, whatever is allowed.
        let warns = |line: &str| line.contains("level=warn") && !line.contains("collector=tlb");
        if exporter.log().lines().any(warns) {
            return Err(told(exporter.log()));
        }
        exporter.stop()?;
        let events = "/sys/kernel/tracing/kprobe_events";
        let left = fs::read_to_string(events).map_err(|error| error.to_string())?;
        if left.contains("mrscope_") {
            return Err(told(format!("left after a stop: {left}")));
        }
    }
    // Who has all keeps no more.
    for (paranoid, bits) in [("2", BPF_BIT | PERFMON_BIT), ("3", BPF_BIT | PERFMON_BIT | ADMIN_BIT)]
    {
        let _level = Paranoid::set(paranoid)?;
        let exporter = Exporter::start(&[])?;
        let kept = [kept_of(bits)?, vec![NAMES_PROGRAMS]].concat();
        rests(&exporter, &kept).map_err(|error| format!("root, {paranoid}: {error}"))?;
        exporter.stop()?;
    }
    Ok(())
}

pub fn with_one_capability_less_it_says_which() -> Outcome {
    for Sufficient { paranoid, uid, capabilities, .. } in SUFFICIENT {
        let _level = Paranoid::set(paranoid)?;
        for (missing, without) in *capabilities {
            let named: Vec<&str> =
                capabilities.iter().map(|(name, _)| *name).filter(|name| name != missing).collect();
            let told = |error| format!("uid {uid}, paranoid {paranoid}, {named:?}: {error}");
            let exporter = start_with(uid, &named, "unlimited", &[])?;
            match without {
                Without::Denied(name) => {
                    let page = exporter.page()?;
                    in_state(&page, "mr", "denied").map_err(told)?;
                    in_state(&page, "mlock", "denied").map_err(told)?;
                    in_state(&page, "process", "ok").map_err(told)?;
                    exporter.says(&["collector mr: denied", "lacking", name]).map_err(told)?;
                    rests(&exporter, &[]).map_err(told)?;
                }
                Without::Perf => {
                    exporter.says(&["tracefs can't be written"]).map_err(told)?;
                    counts_exactly(&exporter).map_err(told)?;
                }
            }
            exporter.stop()?;
        }
    }
    Ok(())
}

/// What re-attaching takes was kept, and is used: kprobes of the perf PMU die with their module.
pub fn what_modules_took_is_attached_again_with_the_rights_that_were_kept() -> Outcome {
    let _level = Paranoid::set("2")?;
    let exporter = start_with("65534", &[BPF, PERFMON], "unlimited", &[])?;
    counts_exactly(&exporter)?;
    let before = exporter.page()?.or_zero(REGISTRATIONS);
    let without = WithoutRdma::begin()?;
    wait_for("nothing to be watched", || Ok(in_state(&exporter.page()?, "mr", "ok").is_err()))?;
    drop(without);
    wait_for("mr to be ok", || Ok(in_state(&exporter.page()?, "mr", "ok").is_ok()))?;
    counts_exactly(&exporter)?;
    equal("in all", exporter.page()?.or_zero(REGISTRATIONS), before + 5.0)?;
    equal("queue buffers", exporter.page()?.or_zero(PINNED_QUEUE), 0.0)?;
    rests(&exporter, &kept_of(BPF_BIT | PERFMON_BIT)?)?;

    // Gone and there again between two looks.
    drop(WithoutRdma::begin()?);
    wait_for("a registration to be counted again", || {
        let before = exporter.page()?.or_zero(REGISTRATIONS);
        let mut workload = Workload::start()?;
        workload.ask("reg count=1 size=4096")?;
        workload.end()?;
        Ok(exporter.page()?.or_zero(REGISTRATIONS) == before + 1.0)
    })?;
    counts_exactly(&exporter)?;
    exporter.stop().map(|_| ())
}

/// Whoever follows the advice need not restart it: the next module that comes is looked at anew.
pub fn what_was_refused_is_attached_once_it_is_allowed() -> Outcome {
    let level = Paranoid::set("3")?;
    let exporter = start_with("65534", &[BPF, PERFMON, "dac_override"], "unlimited", &[])?;
    in_state(&exporter.page()?, "mr", "denied")?;
    exporter.says(&["collector mr: denied", "lacking: CAP_SYS_ADMIN", "at 2"])?;
    let allowed = Paranoid::set("2")?;
    drop(WithoutRdma::begin()?);
    wait_for("mr to be ok", || Ok(in_state(&exporter.page()?, "mr", "ok").is_ok()))?;
    counts_exactly(&exporter)?;
    exporter.stop()?;
    drop(allowed);
    drop(level);
    Ok(())
}

/// Mounts /proc so that it hides processes of others, for its lifetime.
struct Hidden;

impl Hidden {
    fn begin(how: &str) -> Result<Self, String> {
        remount_proc(how).map(|()| Self)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = remount_proc("0");
    }
}

fn remount_proc(hidepid: &str) -> Outcome {
    let options = format!("remount,hidepid={hidepid}");
    match Command::new("/bin/mount").args(["-o", &options, "/proc"]).status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("mount -o {options} /proc: {other:?}")),
    }
}

/// Root too sees processes of others only by a capability then.
pub fn where_proc_hides_processes_their_end_is_seen_all_the_same() -> Outcome {
    let _level = Paranoid::set("2")?;
    for how in ["1", "2"] {
        let hidden = Hidden::begin(how)?;
        let exporter = Exporter::start(&[])?;
        let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let mut workload = Workload::start_by(&nobody)?;
        workload.ask("reg count=2 size=8192")?;
        let row = of_process("active", workload.pid);
        equal("its MRs", exporter.page()?.or_zero(&row), 2.0)?;
        let rows = "mrscope_map_entries{map=\"processes\"}";
        equal("rows", exporter.page()?.or_zero(rows), 1.0)?;
        let mut kept = kept_of(BPF_BIT | PERFMON_BIT)?;
        kept.extend([("pages", 0), ("resources", 0)]);
        let kept: Vec<_> = kept.iter().map(|(thread, bits)| (*thread, bits | PTRACE_BIT)).collect();
        // It may be looking at processes just now.
        wait_for("it to rest", || rests(&exporter, &kept).map(|()| true))?;
        workload.kill()?;
        wait_for("its row to be freed", || Ok(exporter.page()?.or_zero(rows) == 0.0))?;
        exporter.stop()?;
        drop(hidden);
    }
    Ok(())
}

pub fn what_is_dropped_for_good_is_gone_and_probes_still_wait() -> Outcome {
    const FILE: &str = "/run/mrscope-drop.yaml";
    let text = "capabilities:\n  permanent_drop: true\n";
    fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"))?;
    let arguments = ["--config.file", FILE];

    // Those that wait for modules need nobody.
    let exporter = Exporter::start(&arguments)?;
    exporter.says(&["given up for good"])?;
    rests(&exporter, &kept_to_read()?)?;
    let threads = threads(exporter.pid())?;
    let looks = threads.iter().find(|(name, ..)| name == "placement").ok_or("no placement")?;
    equal("kept to sample", looks.1 as f64, 0.0)?;
    drop(WithoutRdma::begin()?);
    wait_for("mr to be ok", || Ok(in_state(&exporter.page()?, "mr", "ok").is_ok()))?;
    counts_exactly(&exporter)?;
    exporter.stop()?;

    let tracefs = WithoutTracefs::begin()?;
    let exporter = Exporter::start(&arguments)?;
    counts_exactly(&exporter)?;
    drop(WithoutRdma::begin()?);
    exporter.says(&["level=warn", "verbs_reg_mr", "permanent_drop gave up the right"])?;
    in_state(&exporter.page()?, "mr", "denied")?;
    exporter.stop()?;
    drop(tracefs);
    Ok(())
}

/// 5.10 counts maps against RLIMIT_MEMLOCK.
pub fn with_little_memory_to_lock_it_is_watched_or_says_what_helps() -> Outcome {
    let _level = Paranoid::set("2")?;
    let usual = [BPF, PERFMON, "dac_override"];
    let exporter = start_with("65534", &usual, "65536", &[])?;
    if asks_readers()? {
        in_state(&exporter.page()?, "mr", "denied")?;
        exporter.says(&["mr: denied", "RLIMIT_MEMLOCK is 65536 bytes", "CAP_SYS_RESOURCE"])?;
    } else {
        counts_exactly(&exporter)?;
    }
    exporter.stop()?;
    let raises = [&usual[..], &["sys_resource"]].concat();
    let exporter = start_with("65534", &raises, "65536", &[])?;
    counts_exactly(&exporter)?;
    rests(&exporter, &kept_of(BPF_BIT | PERFMON_BIT | DAC_BIT)?)?;
    exporter.stop().map(|_| ())
}

/// Runs `mrscope check` by a program that starts it.
fn check(starter: &[&str], arguments: &[&str]) -> Result<(Option<i32>, String), String> {
    let words =
        [starter, &["/run/mrscope", "check", "--no-collector.write_probe"], arguments].concat();
    let output = Command::new(words[0]).args(&words[1..]).output().map_err(|e| e.to_string())?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

pub fn check_tells_how_each_program_stands_and_leaves_none() -> Outcome {
    fs::copy("target/release/mrscope", "/run/mrscope").map_err(|error| error.to_string())?;
    // The guest's CPUs have no counters.
    let strict = ["--strict", "--no-collector.tlb"];
    let (code, said) = check(&[], &strict)?;
    if code != Some(0) || !said.ends_with("All that is asked for is there.\n") {
        return Err(format!("{code:?}: {said}"));
    }
    let attached = |program: &str, how: &str| {
        said.lines().any(|line| line.split_whitespace().take(2).eq([program, how]))
    };
    for program in ["verbs_reg_mr", "verbs_dereg_mr", "umem_release"] {
        if !attached(program, "kprobe") {
            return Err(format!("{program} is no kprobe: {said}"));
        }
    }
    let events = fs::read_to_string("/sys/kernel/tracing/kprobe_events");
    if events.map_err(|error| error.to_string())?.contains("mrscope_") {
        return Err("it left probes".to_owned());
    }

    let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let (code, said) = check(&nobody, &[])?;
    equal("exit status", f64::from(code.unwrap_or(-1)), 0.0)?;
    if !said.contains("lacking: CAP_") || !said.contains("Not there: collector mr (denied)") {
        return Err(said);
    }
    let (code, _) = check(&nobody, &strict)?;
    equal("exit status", f64::from(code.unwrap_or(-1)), 1.0)
}
