//! How the write probe fails: with the reason that it was given, and with nothing left behind.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;

use super::devices::run;
use super::groups::Cgroup;
use super::write_probe::{
    Device, ENDLESS, free_pages, node_of_1g, nothing_is_held, pool_file, read,
};
use crate::boot::NODES;
use crate::cases::*;
use crate::exporter::wait_for;
use crate::probe::{MR_BYTES, PROGRAM, Probe};
use crate::workload::{child_of, kernel_mrs, vm_pin};

/// A file of the kernel that has another text for a while.
pub(super) struct Set {
    path: String,
    was: String,
}

impl Set {
    pub(super) fn to(path: &str, text: &str) -> Result<Self, String> {
        let was = read(path)?;
        // Where a choice is shown, the one in force is in brackets.
        let chosen = was.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        let was = chosen.map_or(was.trim(), |(word, _)| word).to_owned();
        fs::write(path, text).map_err(|error| format!("{path}: {error}"))?;
        Ok(Self { path: path.to_owned(), was })
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, &self.was);
    }
}

fn probe_fails(line: &str, reason: &str, verb: &str) -> Outcome {
    let line = format!("--device rxe0 {line}");
    let ended = Probe::run(&line)?;
    ended.fails_as(reason, verb).map(|_| ()).map_err(|error| format!("{line}: {error}"))
}

/// Base pages, and why, where the others can't be had.
fn probe_falls_back(line: &str, node: u32) -> Outcome {
    let line = format!("--device rxe0 {line} --numa-node {node} --fallback base --max-ms 60000");
    let report = Probe::run(&line)?.report().map_err(|error| format!("{line}: {error}"))?;
    let base = rustix::param::page_size() as u64;
    let told = report["page_size_bytes"] == base
        && report["pages"] == "base"
        && report["numa_node"] == node
        && report["fallback"].is_string();
    if told { Ok(()) } else { Err(format!("{line}: {report}")) }
}

pub fn a_write_probe_without_such_pages_says_so_or_takes_base_pages() -> Outcome {
    let before = free_pages()?;
    let other = (0..NODES).find(|node| node_of_1g() != Ok(*node)).ok_or("one node")?;
    probe_fails(&format!("--pages 1g --numa-node {other}"), "no_hugepages", "mmap")?;
    probe_falls_back("--pages 1g", other)?;
    // 512 pages, where the pool has fewer.
    probe_fails("--pages 2m --mr-bytes 1073741824", "no_hugepages", "mmap")?;
    {
        let _none = Set::to(&pool_file(1, "hugepages-2048kB", "nr_hugepages"), "0")?;
        probe_fails("--pages 2m --numa-node 1", "no_hugepages", "mmap")?;
        probe_falls_back("--pages 2m", 1)?;
        let report = Probe::run("--device rxe0 --pages 2m --max-ms 60000")?.report()?;
        equal("the node that has some", report["numa_node"].as_f64().unwrap_or(-1.0), 0.0)?;
    }
    {
        let _never = Set::to("/sys/kernel/mm/transparent_hugepage/enabled", "never")?;
        probe_fails("--pages thp", "no_hugepages", "smaps")?;
        probe_fails("--pages thp --untouched", "no_hugepages", "smaps")?;
        probe_falls_back("--pages thp", 0)?;
        probe_falls_back("--pages thp --untouched", 1)?;
    }
    nothing_is_held(&before)
}

/// Where a touch would be a SIGBUS, and where the mapping is refused.
pub fn a_write_probe_in_a_cgroup_without_hugepages_says_so_and_lives() -> Outcome {
    let before = free_pages()?;
    let control = "/sys/fs/cgroup/cgroup.subtree_control";
    fs::write(control, "+hugetlb").map_err(|error| format!("{control}: {error}"))?;
    let group = Cgroup::make("lab_probe")?;
    let join = ["sh", "-c", "echo $$ >/sys/fs/cgroup/lab_probe/cgroup.procs && exec \"$@\"", "sh"];
    let limit = |what: &str, bytes: &str| {
        let path = format!("/sys/fs/cgroup/{}/hugetlb.2MB.{what}", group.0);
        fs::write(&path, bytes).map_err(|error| format!("{path}: {error}"))
    };
    let in_group = |line: &str| Probe::begin_by(&join, PROGRAM, line)?.wait();
    let line = "--device rxe0 --pages 2m";
    for (what, bytes, verb) in
        [("max", "0", "mincore"), ("max", "2097152", "mincore"), ("rsvd.max", "0", "mmap")]
    {
        limit(what, bytes)?;
        in_group(line)?.fails_as("cgroup_limit", verb).map_err(|e| format!("{what}: {e}"))?;
        let report = in_group(&format!("{line} --fallback base"))?.report()?;
        if report["pages"] != "base" || !report["fallback"].is_string() {
            return Err(format!("{what}: {report}"));
        }
        limit(what, "max")?;
    }
    in_group(line)?.report()?;
    nothing_is_held(&before)
}

/// A copy that another user may run, whoever owns the folders above the other.
const COPY: &str = "/tmp/mrscope-write-probe";

/// Who may open the files of all devices.
pub(super) fn allow_verbs(mode: u32) -> Outcome {
    let files = fs::read_dir("/dev/infiniband").map_err(|error| error.to_string())?;
    let files = files.flatten().map(|entry| entry.path());
    files.filter(|path| path.to_string_lossy().contains("uverbs")).try_for_each(|path| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|e| e.to_string())
    })
}

fn as_another_user(memlock: &str, line: &str) -> Result<crate::probe::Ended, String> {
    let limit = format!("--memlock={memlock}");
    let starter =
        ["prlimit", &limit, "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--"];
    Probe::begin_by(&starter, COPY, line)?.wait()
}

pub fn a_write_probe_of_another_user_tells_limits_from_missing_rights() -> Outcome {
    fs::copy(PROGRAM, COPY).map_err(|error| format!("{COPY}: {error}"))?;
    let line = "--device rxe0 --max-ms 60000";
    as_another_user("67108864", line)?.report()?;
    let answer = as_another_user("1048576", line)?.fails_as("memlock", "ibv_reg_mr")?;
    if answer["errno_name"] != "ENOMEM" {
        return Err(format!("{answer}"));
    }
    let answer = as_another_user("0", line)?.fails_as("memlock", "ibv_reg_mr")?;
    if answer["errno_name"] != "EPERM" {
        return Err(format!("{answer}"));
    }
    // As much as the limit is well.
    as_another_user("4194304", line)?.report()?;

    allow_verbs(0o600)?;
    let ended = as_another_user("67108864", line);
    allow_verbs(0o666)?;
    ended?.fails_as("permission", "ibv_open_device")?;
    equal("MRs left", kernel_mrs()?.0, 0.0)
}

pub fn a_write_probe_of_what_is_not_there_says_what() -> Outcome {
    Probe::run("--device rxe9")?.fails_as("no_device", "ibv_get_device_list")?;
    probe_fails("--port 2", "invalid", "ibv_query_port")?;
    probe_fails("--gid-index 9", "no_gid", "ibv_query_gid")?;
    probe_fails("--numa-node 900", "invalid", "set_mempolicy")?;
    let line = "--device rxe0 --message 8388608 --mr-bytes 16777216 --count 1 --max-bytes 20000000";
    Probe::run(&format!("{line} --guard-ms 1"))?.fails_by("timeout")?;
    let told = Probe::run("--device rxe0 --depth 0")?;
    let line = told.refused(2)?;
    if line.lines().count() == 1 { Ok(()) } else { Err(line.to_owned()) }
}

/// A port that is down from the start, and what is taken from under a run.
pub fn a_write_probe_whose_port_or_address_goes_says_which() -> Outcome {
    let device = Device::make("rxe1", "dummy1", "10.9.1.1/24")?;
    let line = format!("--device rxe1 {ENDLESS}");
    run("ip link set dummy1 down")?;
    Probe::run("--device rxe1")?.fails_as("port_down", "ibv_query_port")?;
    run("ip link set dummy1 up")?;

    let begin = || -> Result<Probe, String> {
        wait_for("its GID", || device.gid().map(|gid| gid.contains(":ffff:")))?;
        let probe = Probe::begin(&line)?;
        wait_for("its MR", || Ok(vm_pin(probe.pid)? == MR_BYTES))?;
        Ok(probe)
    };
    let probe = begin()?;
    run("ip addr del 10.9.1.1/24 dev dummy1")?;
    probe.wait()?.fails_as("no_gid", "ibv_poll_cq")?;
    run("ip addr add 10.9.1.1/24 dev dummy1")?;
    let probe = begin()?;
    run("ip link set dummy1 down")?;
    probe.wait()?.fails_as("port_down", "ibv_poll_cq")?;
    equal("MRs left", kernel_mrs()?.0, 0.0)
}

pub fn a_write_probe_lets_a_device_go_that_is_deleted() -> Outcome {
    let device = Device::make("rxe1", "dummy1", "10.9.1.1/24")?;
    let probe = Probe::begin(&format!("--device {} {ENDLESS}", device.name))?;
    wait_for("its MR", || Ok(vm_pin(probe.pid)? == MR_BYTES))?;
    // Where the driver can't take it from its users, this waits for the probe.
    let deletion = Command::new("rdma").args(["link", "delete", device.name]).spawn();
    let mut deletion = deletion.map_err(|error| format!("rdma: {error}"))?;
    let ended = probe.wait()?;
    let status = deletion.wait().map_err(|error| error.to_string())?;
    ended.fails_by("gone")?;
    if status.success() { Ok(()) } else { Err(format!("rdma link delete: {status}")) }
}

pub fn a_write_probe_ends_with_who_started_it_and_in_time() -> Outcome {
    let before = free_pages()?;
    let line = format!("{PROGRAM} --device rxe0 --pages 2m {ENDLESS} --parent $$ & wait");
    let mut parent =
        Command::new("sh").args(["-c", &line]).spawn().map_err(|error| format!("sh: {error}"))?;
    let begun = wait_for("its MR", || Ok(vm_pin(child_of(parent.id())?)? == MR_BYTES));
    let child = child_of(parent.id());
    let killed = parent.kill().and_then(|()| parent.wait()).map_err(|error| error.to_string());
    begun?;
    killed?;
    let child = child?;
    // Nobody may be there to take note of its end.
    wait_for("its end", || match fs::read_to_string(format!("/proc/{child}/stat")) {
        Ok(stat) => Ok(stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))),
        Err(_) => Ok(true),
    })?;
    nothing_is_held(&before)?;

    let told = Probe::run("--device rxe0 --parent 1")?;
    if !told.refused(1)?.contains("not the parent") {
        return Err(format!("{told:?}"));
    }
    let line = ENDLESS.replace("--guard-ms 600000", "--guard-ms 3000");
    // Whatever it is at by then: a busy machine may be late.
    Probe::run(&format!("--device rxe0 {line}"))?.fails_by("timeout")?;
    nothing_is_held(&before)
}

/// By somebody who writes into its memory while it does: one byte of what is sent, or of where
/// nothing is to arrive.
pub fn a_write_probe_notices_data_that_is_not_what_it_sent() -> Outcome {
    let line = "--device rxe0 --pages 2m --depth 8 --latency-count 1 --guard-ms 600000";
    // So that all of the destination is written, or but the first of it.
    let cases = [
        (
            "--message 65536 --count 1000 --max-bytes 100000000 --max-ms 60000",
            0,
            "data that arrived",
        ),
        ("--message 8 --count 20000 --max-ms 60000", 4 << 20, "nothing was written to"),
    ];
    for (more, end, says) in cases {
        let mut probe = Probe::begin(&format!("{line} {more}"))?;
        let pid = probe.pid;
        wait_for("its MR", || Ok(vm_pin(pid)? == MR_BYTES)).map_err(|e| format!("{says}: {e}"))?;
        let memory = hugepages_of(pid)?;
        let at = if end == 0 { memory } else { memory + end - 1 };
        let file = fs::OpenOptions::new().write(true).open(format!("/proc/{pid}/mem"));
        let file = file.map_err(|error| format!("/proc/{pid}/mem: {error}"))?;
        let mut count = 0;
        while !probe.is_over()? {
            // It may end at any time.
            if file.write_all_at(&[0xa5], at).is_ok() {
                count += 1;
            }
        }
        let answer = probe.wait()?.fails_as("data_mismatch", "compare");
        let answer = answer.map_err(|error| format!("{says}, {count} times: {error}"))?;
        if !answer["detail"].as_str().is_some_and(|detail| detail.contains(says)) {
            return Err(format!("{says}: {answer}"));
        }
    }
    equal("MRs left", kernel_mrs()?.0, 0.0)
}

/// Where its hugepages are mapped.
pub(super) fn hugepages_of(pid: u32) -> Result<u64, String> {
    let maps = read(&format!("/proc/{pid}/maps"))?;
    let line = maps.lines().find(|line| line.contains("/anon_hugepage"));
    let start = line.and_then(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok());
    start.ok_or_else(|| format!("no hugepages in {maps}"))
}
