//! What befalls the write probe while mrscope runs it: the reason is told once, all is given back,
//! and mrscope serves on.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::devices::{add_device, run};
use super::groups::Cgroup;
use super::write_probe::{Device, ENDLESS, free_pages, nothing_is_held, read};
use super::write_probe_faults::{allow_verbs, hugepages_of};
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::probe::PROGRAM;
use crate::probing::{
    EVERY_SECOND, ONCE, child_with_mr, children, is_gone, measured, no_child, of_port, probe_with,
    results, runs, says_once, script, start, start_by, stopped_with_mr, wait_for_runs,
};
use crate::workload::stat_field;

pub const CASES: &[OnceCase] = &[
    (
        "probing_survives_a_device_that_is_deleted_during_a_run",
        probing_survives_a_device_that_is_deleted_during_a_run,
    ),
    (
        "probing_kills_a_child_that_is_stopped_and_pages_go_on",
        probing_kills_a_child_that_is_stopped_and_pages_go_on,
    ),
    (
        "probing_without_libibverbs_says_what_to_install",
        probing_without_libibverbs_says_what_to_install,
    ),
    (
        "probing_as_another_user_tells_limits_from_missing_rights",
        probing_as_another_user_tells_limits_from_missing_rights,
    ),
    (
        "probing_in_a_cgroup_without_hugepages_takes_base_pages_and_says_why",
        probing_in_a_cgroup_without_hugepages_takes_base_pages_and_says_why,
    ),
    (
        "probing_skips_a_port_that_is_down_and_tells_of_an_address_that_goes",
        probing_skips_a_port_that_is_down_and_tells_of_an_address_that_goes,
    ),
    (
        "probing_takes_no_garbage_and_ends_what_has_no_end",
        probing_takes_no_garbage_and_ends_what_has_no_end,
    ),
    ("probing_notices_data_that_somebody_changes", probing_notices_data_that_somebody_changes),
    ("probing_ends_with_mrscope_that_is_killed", probing_ends_with_mrscope_that_is_killed),
    ("probing_is_over_when_mrscope_ends", probing_is_over_when_mrscope_ends),
    (
        "probing_starts_no_second_child_while_one_can_t_be_killed",
        probing_starts_no_second_child_while_one_can_t_be_killed,
    ),
];

const ALONE: &str = "exclude: [rxe0]";

/// A device's one failure: counted, told once, and nothing left behind.
fn failed_once(exporter: &Exporter, device: &str, reason: &str) -> Outcome {
    wait_for_runs(exporter, device, reason, 1.0)?;
    says_once(exporter, &["level=warn", device, &format!("{reason}: ")])?;
    let page = exporter.page()?;
    let known = |word: &str| word == reason || word == "ok" || word.starts_with("skipped_");
    let results = results(&page, device);
    if results.iter().any(|(word, _)| !known(word)) {
        return Err(format!("runs of {device}: {results:?}, expected {reason}"));
    }
    in_state(&page, "mr", "ok")
}

pub fn probing_survives_a_device_that_is_deleted_during_a_run() -> Outcome {
    let free = free_pages()?;
    let device = Device::make("rxe1", "dummy1", "10.9.1.1/24")?;
    let exporter = start(&[EVERY_SECOND, ALONE, &probe_with(ENDLESS)?])?;
    let child = child_with_mr(&exporter)?;
    // Where the driver can't take it from its users, this waits for the probe.
    run("rdma link delete rxe1")?;
    wait_for_runs(&exporter, device.name, "gone", 1.0)?;
    wait_for("its gauges to go", || {
        Ok(exporter.page()?.value(&of_port("success", device.name)).is_none())
    })?;
    if !is_gone(child) {
        return Err("the probe is still there".to_owned());
    }
    no_child(&exporter)?;
    nothing_is_held(&free)?;
    equal("runs", runs(&exporter.page()?, device.name, "gone"), 1.0)?;
    in_state(&exporter.page()?, "mr", "ok")?;
    exporter.stop().map(|_| ())
}

/// One that is stopped can't even end itself in time.
pub fn probing_kills_a_child_that_is_stopped_and_pages_go_on() -> Outcome {
    let free = free_pages()?;
    let exporter = start(&[EVERY_SECOND, "timeout: 4s"])?;
    wait_for_runs(&exporter, "rxe0", "ok", 1.0)?;
    let child = stopped_with_mr(&exporter)?;
    let mut pages = 0;
    wait_for("its end", || {
        exporter.page()?;
        pages += 1;
        Ok(is_gone(child))
    })?;
    if pages < 2 {
        return Err(format!("{pages} pages while the probe was stopped"));
    }
    failed_once(&exporter, "rxe0", "timeout")?;
    says_once(&exporter, &["timeout: ", "killed after 4 s"])?;
    in_state(&exporter.page()?, "write_probe", "failed")?;
    equal("success", exporter.page()?.value(&of_port("success", "rxe0")).unwrap_or(-1.0), 0.0)?;
    // The next round is left out.
    wait_for("another run", || Ok(in_state(&exporter.page()?, "write_probe", "ok").is_ok()))?;
    equal("left out", runs(&exporter.page()?, "rxe0", "skipped_back_off"), 1.0)?;
    exporter.stop()?;
    nothing_is_held(&free)
}

/// A file that has another name for a while.
struct Away(PathBuf, PathBuf);

impl Away {
    fn take(path: &Path) -> Result<Self, String> {
        let mut other = path.to_owned().into_os_string();
        other.push(".away");
        let away = Self(path.to_owned(), other.into());
        fs::rename(&away.0, &away.1).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(away)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let _ = fs::rename(&self.1, &self.0);
    }
}

/// Where the dynamic loader finds libibverbs.
fn libibverbs() -> Result<PathBuf, String> {
    let output = Command::new("ldd").arg(PROGRAM).output().map_err(|e| format!("ldd: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.contains("libibverbs.so"));
    let path = line.and_then(|line| line.split_whitespace().nth(2));
    path.map(PathBuf::from).ok_or_else(|| format!("no libibverbs in {text}"))
}

pub fn probing_without_libibverbs_says_what_to_install() -> Outcome {
    let library = Away::take(&libibverbs()?)?;
    let exporter = start(&[EVERY_SECOND])?;
    // Also while nothing is tried.
    for result in ["not_started", "skipped_back_off"] {
        wait_for_runs(&exporter, "rxe0", result, 1.0)?;
        in_state(&exporter.page()?, "write_probe", "unsupported")?;
    }
    says_once(&exporter, &["level=warn", "unsupported", "libibverbs.so", "install libibverbs1"])?;
    in_state(&exporter.page()?, "mr", "ok")?;
    no_child(&exporter)?;
    drop(library);
    wait_for_runs(&exporter, "rxe0", "ok", 1.0)?;
    in_state(&exporter.page()?, "write_probe", "ok")?;
    exporter.stop().map(|_| ())
}

/// mrscope of another user, who may lock so much memory.
fn start_as_another_user(memlock: &str, keys: &[&str]) -> Result<Exporter, String> {
    for (from, to) in
        [("target/release/mrscope", "/run/mrscope"), (PROGRAM, "/run/mrscope-write-probe")]
    {
        fs::copy(from, to).map_err(|error| format!("{to}: {error}"))?;
    }
    let limit = format!("--memlock={memlock}");
    let starter = [
        &["prlimit", &limit, "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"][..],
        &["sh", "-c", "shift && exec /run/mrscope \"$@\"", "sh"],
    ];
    start_by(&starter.concat(), keys, &[])
}

pub fn probing_as_another_user_tells_limits_from_missing_rights() -> Outcome {
    allow_verbs(0o600)?;
    let verdict = is_denied();
    allow_verbs(0o666)?;
    verdict?;
    let exporter = start_as_another_user("1048576", &[ONCE])?;
    wait_for_runs(&exporter, "rxe0", "memlock", 1.0)?;
    in_state(&exporter.page()?, "write_probe", "failed")?;
    says_once(&exporter, &["level=warn", "rxe0", "memlock: ibv_reg_mr (ENOMEM)", "1048576"])?;
    no_child(&exporter)?;
    exporter.stop()?;
    // As much as the limit is well, and the mrscope that starts it needs no rights for it.
    let exporter = start_as_another_user("4194304", &[ONCE])?;
    wait_for_runs(&exporter, "rxe0", "ok", 1.0)?;
    in_state(&exporter.page()?, "write_probe", "ok")?;
    exporter.stop().map(|_| ())
}

fn is_denied() -> Outcome {
    let exporter = start_as_another_user("67108864", &[ONCE])?;
    wait_for_runs(&exporter, "rxe0", "permission", 1.0)?;
    in_state(&exporter.page()?, "write_probe", "denied")?;
    let words = ["level=warn", "denied", "rxe0", "permission: ibv_open_device", "uverbs"];
    says_once(&exporter, &words)?;
    no_child(&exporter)?;
    exporter.stop().map(|_| ())
}

pub fn probing_in_a_cgroup_without_hugepages_takes_base_pages_and_says_why() -> Outcome {
    let free = free_pages()?;
    let control = "/sys/fs/cgroup/cgroup.subtree_control";
    fs::write(control, "+hugetlb").map_err(|error| format!("{control}: {error}"))?;
    let group = Cgroup::make("lab_probing")?;
    let path = format!("/sys/fs/cgroup/{}/hugetlb.2MB.max", group.0);
    fs::write(&path, "0").map_err(|error| format!("{path}: {error}"))?;
    let join =
        ["sh", "-c", "echo $$ >/sys/fs/cgroup/lab_probing/cgroup.procs && exec \"$@\"", "sh"];
    let exporter = start_by(&join, &[ONCE], &[])?;
    wait_for_runs(&exporter, "rxe0", "ok", 1.0)?;
    let page = exporter.page()?;
    in_state(&page, "write_probe", "no_data")?;
    says_once(&exporter, &["rxe0", "base pages", "2m"])?;
    let base = rustix::param::page_size() as f64;
    if measured(&page, "latency_p50_seconds", "rxe0", base).is_none() {
        return Err("nothing was measured on base pages".to_owned());
    }
    exporter.stop()?;
    nothing_is_held(&free)
}

pub fn probing_skips_a_port_that_is_down_and_tells_of_an_address_that_goes() -> Outcome {
    let free = free_pages()?;
    let device = Device::make("rxe1", "dummy1", "10.9.1.1/24")?;
    run("ip link set dummy1 down")?;
    let exporter = start(&[EVERY_SECOND, ALONE, &probe_with(ENDLESS)?])?;
    wait_for_runs(&exporter, device.name, "skipped_port_down", 2.0)?;
    let page = exporter.page()?;
    equal("kinds of results", results(&page, device.name).len() as f64, 1.0)?;
    in_state(&page, "write_probe", "no_data")?;
    run("ip link set dummy1 up")?;
    wait_for("its GID", || device.gid().map(|gid| gid.contains(":ffff:")))?;
    address_goes(&exporter, device.name)?;
    no_child(&exporter)?;
    exporter.stop()?;
    nothing_is_held(&free)
}

/// A run that began before there was a GID of version 4 writes to another.
fn address_goes(exporter: &Exporter, device: &str) -> Outcome {
    child_with_mr(exporter)?;
    run("ip addr del 10.9.1.1/24 dev dummy1")?;
    failed_once(exporter, device, "no_gid")
}

/// One device for each thing that a program may say instead of an answer.
pub fn probing_takes_no_garbage_and_ends_what_has_no_end() -> Outcome {
    add_device("rxe1", "dummy1")?;
    add_device("rxe2", "dummy2")?;
    add_device("rxe3", "dummy3")?;
    let verdict = each_says_something_else();
    for (device, interface) in [("rxe1", "dummy1"), ("rxe2", "dummy2"), ("rxe3", "dummy3")] {
        run(&format!("rdma link delete {device}"))?;
        run(&format!("ip link delete {interface}"))?;
    }
    verdict
}

fn each_says_something_else() -> Outcome {
    let program = script(
        "lab-fake",
        "case \"$*\" in\n\
         *rxe0*) echo all is well ;;\n\
         *rxe1*) printf '{\"result\":\"ok\",\"device\":\"rxe1\",' ;;\n\
         *rxe2*) trap '' TERM PIPE; while :; do echo '{\"result\":\"ok\"}'; done ;;\n\
         *rxe3*) trap '' TERM; echo $$ >/run/lab-fake.pid; exec sleep 1000 ;;\n\
         esac",
    )?;
    let exporter = start(&[ONCE, "timeout: 2s", &program])?;
    for (device, reason, says) in [
        ("rxe0", "garbage", "expected one JSON object"),
        ("rxe1", "garbage", "expected one JSON object"),
        ("rxe2", "garbage", "more than 65536 bytes"),
        ("rxe3", "timeout", "it was killed after 2 s"),
    ] {
        failed_once(&exporter, device, reason).map_err(|error| format!("{device}: {error}"))?;
        exporter.says(&["level=warn", device, says])?;
    }
    no_child(&exporter)?;
    in_state(&exporter.page()?, "write_probe", "failed")?;
    let sleeper = read("/run/lab-fake.pid")?;
    if !is_gone(sleeper.trim().parse().map_err(|_| sleeper)?) {
        return Err("the one that sleeps is still there".to_owned());
    }
    exporter.stop().map(|_| ())
}

pub fn probing_notices_data_that_somebody_changes() -> Outcome {
    let free = free_pages()?;
    let program = probe_with(
        "--message 65536 --count 300 --depth 8 --latency-count 1 --max-bytes 100000000 \
         --max-ms 60000 --guard-ms 600000",
    )?;
    let exporter = start(&[EVERY_SECOND, "timeout: 1m", &program])?;
    let child = child_with_mr(&exporter)?;
    let at = hugepages_of(child)?;
    let memory = fs::OpenOptions::new().write(true).open(format!("/proc/{child}/mem"));
    let memory = memory.map_err(|error| format!("/proc/{child}/mem: {error}"))?;
    // Until its memory is gone.
    while memory.write_all_at(&[0xa5], at).is_ok() {}
    failed_once(&exporter, "rxe0", "data_mismatch")?;
    in_state(&exporter.page()?, "write_probe", "failed")?;
    // One that nobody disturbs is well.
    wait_for_runs(&exporter, "rxe0", "ok", 1.0)?;
    in_state(&exporter.page()?, "write_probe", "ok")?;
    exporter.stop()?;
    nothing_is_held(&free)
}

/// Keys of one that runs until it is ended.
fn endless() -> Result<[String; 3], String> {
    Ok([EVERY_SECOND.to_owned(), "timeout: 1m".to_owned(), probe_with(ENDLESS)?])
}

pub fn probing_ends_with_mrscope_that_is_killed() -> Outcome {
    let free = free_pages()?;
    let exporter = start(&endless()?.each_ref().map(String::as_str))?;
    let child = child_with_mr(&exporter)?;
    has_no_rights(&exporter, child)?;
    exporter.kill()?;
    wait_for("its end", || Ok(is_gone(child) || stat_field(child, 3)? == "Z"))?;
    nothing_is_held(&free)
}

pub fn probing_is_over_when_mrscope_ends() -> Outcome {
    let free = free_pages()?;
    let exporter = start(&endless()?.each_ref().map(String::as_str))?;
    let child = child_with_mr(&exporter)?;
    let status = exporter.stop()?;
    // Mrscope has taken note of its end, or it would be somebody else's now.
    if !is_gone(child) || !status.success() {
        return Err(format!("{child} is still there, or {status} is no good end"));
    }
    nothing_is_held(&free)
}

/// Who starts it has none, and nor has it.
fn has_no_rights(exporter: &Exporter, child: u32) -> Outcome {
    let pid = exporter.pid();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
    let mut threads: Vec<String> =
        tasks.flatten().map(|task| task.path().to_string_lossy().into_owned()).collect();
    threads.retain(|task| read(&format!("{task}/comm")).is_ok_and(|it| it == "write_probe\n"));
    equal("threads write_probe", threads.len() as f64, 1.0)?;
    threads.push(format!("/proc/{child}"));
    for place in threads {
        let status = read(&format!("{place}/status"))?;
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            let line = format!("{set}:\t0000000000000000");
            if !status.lines().any(|it| it == line) {
                return Err(format!("{place} has rights: {status}"));
            }
        }
    }
    Ok(())
}

/// The freezer of cgroup v1, mounted for its lifetime: who is in it does not even die.
struct Freezer;

const FREEZER: &str = "/run/lab-freezer";

impl Freezer {
    fn mount() -> Result<Self, String> {
        fs::create_dir_all(FREEZER).map_err(|error| format!("{FREEZER}: {error}"))?;
        run(&format!("mount -t cgroup -o freezer freezer {FREEZER}"))?;
        let mounted = Self;
        let group = format!("{FREEZER}/probe");
        fs::create_dir(&group).map_err(|error| format!("{group}: {error}"))?;
        Ok(mounted)
    }

    fn set(state: &str) -> Outcome {
        let file = format!("{FREEZER}/probe/freezer.state");
        fs::write(&file, state).map_err(|error| format!("{file}: {error}"))?;
        wait_for(state, || Ok(read(&file)?.trim() == state))
    }

    fn freeze(pid: u32) -> Outcome {
        let file = format!("{FREEZER}/probe/cgroup.procs");
        fs::write(&file, pid.to_string()).map_err(|error| format!("{file}: {error}"))?;
        Self::set("FROZEN")
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = Self::set("THAWED");
        let _ = wait_for("an empty group", || {
            fs::remove_dir(format!("{FREEZER}/probe")).map(|()| true).map_err(|e| e.to_string())
        });
        let _ = run(&format!("umount {FREEZER}"));
    }
}

/// As a call in a driver that never returns would make it.
pub fn probing_starts_no_second_child_while_one_can_t_be_killed() -> Outcome {
    let free = free_pages()?;
    let device = Device::make("rxe1", "dummy1", "10.9.1.1/24")?;
    let freezer = Freezer::mount()?;
    let exporter = start(&[EVERY_SECOND, "timeout: 2s", &probe_with(ENDLESS)?])?;
    let child = child_with_mr(&exporter)?;
    Freezer::freeze(child)?;
    wait_for_runs(&exporter, "rxe0", "stuck", 1.0)?;
    for name in ["rxe0", device.name] {
        wait_for_runs(&exporter, name, "skipped_stuck", 2.0)?;
    }
    let page = exporter.page()?;
    in_state(&page, "write_probe", "failed")?;
    in_state(&page, "mr", "ok")?;
    says_once(&exporter, &["level=warn", "hangs in the kernel", "no other is started"])?;
    equal("stuck in all", runs(&page, "rxe0", "stuck") + runs(&page, "rxe1", "stuck"), 1.0)?;
    if children(exporter.pid())? != [child] {
        return Err(format!("not one child: {:?}", children(exporter.pid())?));
    }
    Freezer::set("THAWED")?;
    wait_for("it to be taken note of", || Ok(is_gone(child)))?;
    let next = child_with_mr(&exporter)?;

    // Nor does its end wait for one.
    Freezer::freeze(next)?;
    exporter.stop()?;
    if stat_field(next, 3)? == "Z" {
        return Err("it was not frozen: the case proves nothing".to_owned());
    }
    drop(freezer);
    wait_for("its end", || Ok(is_gone(next) || stat_field(next, 3)? == "Z"))?;
    nothing_is_held(&free)
}
