//! Who a process is: its program, and its cgroup by every path of it, beside /proc's own word.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::groups::Cgroup;
use super::privilege::{BPF, PERFMON, Paranoid, start_with};
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::workload::Workload;

pub const CASES: &[OnceCase] = &[
    ("a_pod_s_process_is_told_with_its_labels", a_pod_s_process_is_told_with_its_labels),
    (
        "a_process_of_v1_is_told_by_all_its_hierarchies",
        a_process_of_v1_is_told_by_all_its_hierarchies,
    ),
    (
        "a_program_that_another_takes_over_is_told_anew",
        a_program_that_another_takes_over_is_told_anew,
    ),
    (
        "without_the_right_no_program_is_told_and_that_is_said_once",
        without_the_right_no_program_is_told_and_that_is_said_once,
    ),
    (
        "members_of_each_kind_of_group_keep_the_dead_s_events",
        members_of_each_kind_of_group_keep_the_dead_s_events,
    ),
];

const ID: &str = "3f4e8a9b0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b";
const COUNT: &str = "registration_duration_seconds_count";
const UID: &str = "0f6c7a5e-1b2c-4d3e-8f90-a1b2c3d4e5f6";

/// Folders below each other, for their lifetime.
struct Folders(Vec<PathBuf>);

impl Folders {
    fn make(root: &str, path: &str) -> Result<Self, String> {
        let mut made = Self(Vec::new());
        let mut at = PathBuf::from(root);
        for part in path.split('/') {
            at.push(part);
            if !at.exists() {
                fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
                made.0.push(at.clone());
            }
        }
        Ok(made)
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// A pod's cgroup as the kubelet and containerd make it.
fn of_pod() -> String {
    let uid = UID.replace('-', "_");
    format!(
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/cri-containerd-{ID}.scope"
    )
}

/// What the page has to say of a process.
#[derive(Default)]
struct Expected<'a> {
    comm: &'a str,
    exe: &'a str,
    container_id: &'a str,
    pod_uid: &'a str,
    slurm: (&'a str, &'a str),
    systemd_unit: &'a str,
}

impl Expected<'_> {
    /// Its cgroup is the one in which /proc has it.
    fn series(&self, pid: u32, cgroup: &str) -> String {
        let Self { comm, exe, container_id, pod_uid, slurm: (job, step), systemd_unit } = self;
        format!(
            "mrscope_process_info{{cgroup=\"{cgroup}\",comm=\"{comm}\",\
             container_id=\"{container_id}\",exe=\"{exe}\",pid=\"{pid}\",pod_uid=\"{pod_uid}\",\
             slurm_job=\"{job}\",slurm_step=\"{step}\",systemd_unit=\"{systemd_unit}\"}}"
        )
    }
}

/// Where /proc has a process, of the hierarchy with these controllers.
fn cgroup_of(pid: u32, controllers: &str) -> Result<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(|e| e.to_string())?;
    let path = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        (parts.next()? == controllers).then(|| parts.next().map(str::to_owned))?
    };
    text.lines().find_map(path).ok_or_else(|| format!("no hierarchy {controllers:?} in {text}"))
}

fn program_of(pid: u32) -> Result<String, String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).map_err(|error| error.to_string())?;
    Ok(path.to_string_lossy().into_owned())
}

/// The series is there, and no other of that process.
fn told(page: &Page, pid: u32, series: &str) -> Outcome {
    let of_it = format!(",pid=\"{pid}\",");
    let all: Vec<_> =
        page.starting("mrscope_process_info{").filter(|(name, _)| name.contains(&of_it)).collect();
    if all == [(series, 1.0)] { Ok(()) } else { Err(format!("{all:?}, expected {series}")) }
}

pub fn a_pod_s_process_is_told_with_its_labels() -> Outcome {
    let path = of_pod();
    let _folders = Folders::make("/sys/fs/cgroup", &path)?;
    let exporter = Exporter::start(&["--process.linger", "1h"])?;
    let mut workload = Workload::start_in(&path)?;
    let pid = workload.pid;
    workload.ask("reg count=2 size=4096")?;
    let (exe, unit) = (program_of(pid)?, format!("cri-containerd-{ID}.scope"));
    let expected = Expected {
        comm: "workload",
        exe: &exe,
        container_id: ID,
        pod_uid: UID,
        systemd_unit: &unit,
        ..Expected::default()
    };
    let series = expected.series(pid, &cgroup_of(pid, "")?);
    told(&exporter.page()?, pid, &series)?;
    // Kept with its counters when it ends.
    workload.end()?;
    wait_for("its gauges to go", || {
        Ok(exporter.page()?.value(&of_process("active", pid)).is_none())
    })?;
    told(&exporter.page()?, pid, &series)?;
    exporter.stop().map(|_| ())
}

/// A hierarchy of v1 for its lifetime.
struct Hierarchy(PathBuf);

impl Hierarchy {
    fn mount(options: &str, place: &str) -> Result<Self, String> {
        fs::create_dir_all(place).map_err(|error| format!("{place}: {error}"))?;
        let words = ["-t", "cgroup", "-o", options, "cgroup", place];
        match Command::new("/bin/mount").args(words).status() {
            Ok(status) if status.success() => Ok(Self(place.into())),
            other => Err(format!("mount {words:?}: {other:?}")),
        }
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        let _ = Command::new("/bin/umount").arg(&self.0).status();
    }
}

/// As Slurm's plugin for v1 leaves it on a host with systemd: the step in the freezer's hierarchy,
/// the unit in systemd's, and next to nothing in the unified one.
pub fn a_process_of_v1_is_told_by_all_its_hierarchies() -> Outcome {
    let _freezer = Hierarchy::mount("freezer", "/run/v1-freezer")?;
    let _systemd = Hierarchy::mount("none,name=systemd", "/run/v1-systemd")?;
    let step = "slurm/uid_1000/job_4711/step_batch";
    let unit = "system.slice/slurmd.service";
    let _steps = Folders::make("/run/v1-freezer", step)?;
    let _units = Folders::make("/run/v1-systemd", unit)?;
    let exporter = Exporter::start(&[])?;
    let join = format!(
        "echo $$ >/run/v1-freezer/{step}/cgroup.procs && \
         echo $$ >/run/v1-systemd/{unit}/cgroup.procs && exec \"$@\""
    );
    let mut workload = Workload::start_by(&["sh", "-c", &join, "sh"])?;
    let pid = workload.pid;
    workload.ask("reg count=1 size=4096")?;
    equal("/", f64::from(cgroup_of(pid, "")? == "/"), 1.0)?;
    let exe = program_of(pid)?;
    let expected = Expected {
        comm: "workload",
        exe: &exe,
        slurm: ("4711", "batch"),
        systemd_unit: "slurmd.service",
        ..Expected::default()
    };
    told(&exporter.page()?, pid, &expected.series(pid, &cgroup_of(pid, "freezer")?))?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

/// What it had registered went with its fd; its series is there for as long as it lingers.
pub fn a_program_that_another_takes_over_is_told_anew() -> Outcome {
    const OTHER: &str = "/run/other";
    fs::copy("target/lab/workload", OTHER).map_err(|error| error.to_string())?;
    let exporter = Exporter::start(&["--process.linger", "1h"])?;
    let mut workload = Workload::start()?;
    let pid = workload.pid;
    workload.ask("reg count=1 size=4096")?;
    let of = |exe: &str| Expected { comm: "workload", exe, ..Expected::default() }.series(pid, "/");
    told(&exporter.page()?, pid, &of(&program_of(pid)?))?;
    workload.ask(&format!("become comm={OTHER}"))?;
    equal("exec", f64::from(program_of(pid)? == OTHER), 1.0)?;
    told(&exporter.page()?, pid, &of(OTHER))?;
    workload.end()?;
    exporter.stop().map(|_| ())
}

pub fn without_the_right_no_program_is_told_and_that_is_said_once() -> Outcome {
    const SAID: &str = "exe of process_info is empty";
    let _level = Paranoid::set("2")?;
    let needed = [BPF, PERFMON, "dac_override"];
    let all = [BPF, PERFMON, "dac_override", "sys_ptrace"];
    for (capabilities, sees) in [(&needed[..], false), (&all[..], true)] {
        let exporter = start_with("65534", capabilities, "unlimited", &[])?;
        let mut workloads = [Workload::start()?, Workload::start()?];
        for workload in &mut workloads {
            workload.ask("reg count=1 size=4096")?;
            let program = program_of(workload.pid)?;
            let exe = if sees { program.as_str() } else { "" };
            let expected = Expected { comm: "workload", exe, ..Expected::default() };
            let pid = workload.pid;
            told(&exporter.page()?, pid, &expected.series(pid, &cgroup_of(pid, "")?))?;
        }
        in_state(&exporter.page()?, "process", "ok")?;
        let log = exporter.end()?;
        let lines = log.lines().filter(|line| line.contains(SAID)).count();
        equal("lines that say so", lines as f64, f64::from(!sees))?;
    }
    Ok(())
}

/// Two processes of one group, of which one ends, and one that is beside it.
pub fn members_of_each_kind_of_group_keep_the_dead_s_events() -> Outcome {
    let pod = of_pod();
    let job = "system.slice/slurmstepd.scope/job_4711/step_0/user/task_0";
    let _pods = Folders::make("/sys/fs/cgroup", &pod)?;
    let _jobs = Folders::make("/sys/fs/cgroup", job)?;
    let beside = Cgroup::make("lab_beside")?;
    let (container_unit, slurm_unit) = (format!("cri-containerd-{ID}.scope"), "slurmstepd.scope");
    for (label, path, value) in [
        ("container_id", pod.as_str(), ID),
        ("pod_uid", pod.as_str(), UID),
        ("slurm_job", job, "4711"),
        ("slurm_step", job, "0"),
        ("systemd_unit", pod.as_str(), container_unit.as_str()),
        ("systemd_unit", job, slurm_unit),
    ] {
        let told = |error| format!("{label} of {path}: {error}");
        let exporter = Exporter::start(&["--process.labels", label])?;
        let mut one = Workload::start_in(path)?;
        let mut two = Workload::start_in(path)?;
        let mut other = Workload::start_in(beside.0)?;
        one.ask("reg count=3 size=4096")?;
        two.ask("reg count=4 size=8192")?;
        other.ask("reg count=1 size=4096")?;
        let series = |metric: &str, value: &str| {
            format!("mrscope_process_mr_{metric}{{{label}=\"{value}\"}}")
        };
        let page = exporter.page()?;
        equal("held", page.or_zero(&series("active", value)), 7.0).map_err(told)?;
        equal("registered", page.or_zero(&series(COUNT, value)), 7.0).map_err(told)?;
        equal("beside", page.or_zero(&series(COUNT, "")), 1.0).map_err(told)?;
        equal("infos", page.starting("mrscope_process_info").count() as f64, 0.0).map_err(told)?;
        one.end()?;
        wait_for("what it held to go", || {
            Ok(exporter.page()?.value(&series("active", value)) == Some(4.0))
        })
        .map_err(told)?;
        let page = exporter.page()?;
        equal("registered by both", page.or_zero(&series(COUNT, value)), 7.0).map_err(told)?;
        two.ask("reg count=1 size=4096")?;
        let page = exporter.page()?;
        equal("and on", page.or_zero(&series(COUNT, value)), 8.0).map_err(told)?;
        two.end()?;
        other.end()?;
        exporter.stop()?;
    }
    Ok(())
}
