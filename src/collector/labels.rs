//! What tells processes apart: the configured labels of a process, asked for once in its life; and who
//! one is beyond them.

use crate::host::{CgroupPaths, Cgroups, Host, Owner, Presence, Processes, Program, program_of};
use crate::ledger::Newcomer;
use crate::model::{Labels, ProcessLabel};

/// The name of all processes without a series: no comm is that long, no unit has such characters,
/// no cgroup begins so.
const OTHER: &str = "(all other processes)";

pub struct Labeller {
    host: Host,
    labels: Vec<ProcessLabel>,
    cgroups: CgroupPaths,
}

/// What is known of a process beside its pid and name; what can't be told any more is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub program: Program,
    pub cgroup: String,
    pub owner: Owner,
}

impl Labeller {
    pub fn new(host: Host, labels: Vec<ProcessLabel>) -> Self {
        Self { host, labels, cgroups: CgroupPaths::default() }
    }

    /// A new reading begins.
    pub fn begin(&mut self) {
        self.cgroups.allow_search();
    }

    pub fn names(&self) -> &[ProcessLabel] {
        &self.labels
    }

    /// The labels of a process.
    pub fn of(&mut self, newcomer: &Newcomer<'_>) -> Labels {
        let by_cgroup =
            |label: &ProcessLabel| !matches!(label, ProcessLabel::Pid | ProcessLabel::Comm);
        let (cgroup, owner) = if self.labels.iter().any(by_cgroup) {
            self.cgroup(self.cgroups_now(newcomer), newcomer)
        } else {
            (String::new(), Owner::default())
        };
        let value = |label: &ProcessLabel| match label {
            ProcessLabel::Pid => newcomer.key.tgid.to_string(),
            ProcessLabel::Comm => newcomer.comm.to_owned(),
            ProcessLabel::Cgroup => cgroup.clone(),
            ProcessLabel::ContainerId => owner.container_id.clone(),
            ProcessLabel::PodUid => owner.pod_uid.clone(),
            ProcessLabel::SlurmJob => owner.slurm_job.clone(),
            ProcessLabel::SlurmStep => owner.slurm_step.clone(),
            ProcessLabel::SystemdUnit => owner.systemd_unit.clone(),
        };
        self.labels.iter().map(value).collect()
    }

    /// Who a process is now.
    pub fn identity(&mut self, newcomer: &Newcomer<'_>) -> Identity {
        let program = program_of(&self.host, newcomer.key.tgid);
        let cgroups = self.cgroups_now(newcomer);
        // Else it is not that process's.
        let program = if cgroups.is_some() { program } else { Program::Unknown };
        let (cgroup, owner) = self.cgroup(cgroups, newcomer);
        Identity { program, cgroup, owner }
    }

    /// By /proc while it lives, as that knows all hierarchies; by the id at its first event, which
    /// is one of v2, once it is gone, or where it is outside of the cgroup namespace.
    fn cgroup(&mut self, living: Option<Cgroups>, newcomer: &Newcomer<'_>) -> (String, Owner) {
        let living = living.unwrap_or_default();
        if let Some(path) = living.path() {
            return (path.to_owned(), living.owner());
        }
        match newcomer.cgroup_id.and_then(|id| self.cgroups.path(&self.host, id)) {
            Some(path) => (path.to_owned(), Cgroups::unified(path).owner()),
            None => (String::new(), living.owner()),
        }
    }

    /// By /proc, where that pid is still, or at all, this process's.
    fn cgroups_now(&self, newcomer: &Newcomer<'_>) -> Option<Cgroups> {
        let cgroups = Cgroups::of(&self.host, newcomer.key.tgid).ok()?;
        let processes = Processes::of(&self.host);
        let presence = processes.presence(newcomer.key.tgid, newcomer.key.start_ns);
        (presence == Presence::Runs).then_some(cgroups)
    }

    /// The labels of all processes that have no series.
    pub fn of_others(&self) -> Labels {
        let at = self.labels.iter().position(|label| *label == ProcessLabel::Comm);
        let at = at.unwrap_or(self.labels.len().saturating_sub(1));
        let value = |index| if index == at { OTHER.to_owned() } else { String::new() };
        (0..self.labels.len()).map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProcessKey;

    fn labels(of: &[ProcessLabel]) -> Labeller {
        Labeller::new(Host::at("/nonexistent"), of.to_vec())
    }

    #[test]
    fn all_others_are_named_where_no_process_can_be() {
        let other = labels(&[ProcessLabel::Pid, ProcessLabel::Comm]).of_others();
        assert_eq!(other.as_ref(), [String::new(), OTHER.to_owned()]);
        let other = labels(&[ProcessLabel::PodUid, ProcessLabel::ContainerId]).of_others();
        assert_eq!(other.as_ref(), [String::new(), OTHER.to_owned()]);
        // A comm has 15 bytes at most.
        assert!(OTHER.len() > 15);
    }

    #[test]
    fn a_pid_that_is_another_s_tells_no_cgroup() {
        use std::fs;
        use std::os::unix::fs::symlink;

        let root = std::env::temp_dir().join(format!("mrscope-labels-{}", std::process::id()));
        fs::create_dir_all(root.join("proc/self/ns")).unwrap();
        fs::create_dir_all(root.join("proc/7")).unwrap();
        fs::write(root.join("proc/7/cgroup"), "0::/a\n").unwrap();
        let stat = "7 (x) S 1 7 7 0 -1 0 1 0 0 0 1 1 0 0 20 0 1 0 500 1000 10 \
                    18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        fs::write(root.join("proc/7/stat"), stat).unwrap();
        let cgroup = |start_ns| {
            let key = ProcessKey { tgid: 7, start_ns };
            let newcomer = Newcomer { key, comm: "x", cgroup_id: None };
            Labeller::new(Host::at(&root), vec![ProcessLabel::Cgroup]).of(&newcomer)[0].clone()
        };
        let namespace = root.join("proc/self/ns/pid");
        symlink("pid:[4026531836]", &namespace).unwrap();
        assert_eq!(cgroup(5_000_000_000), "/a");
        // Started at another time: another process.
        assert_eq!(cgroup(6_000_000_000), "");
        // Pids of another namespace than the kernel's.
        fs::remove_file(&namespace).unwrap();
        symlink("pid:[4026532000]", &namespace).unwrap();
        assert_eq!(cgroup(5_000_000_000), "");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn each_label_is_what_the_cgroups_of_the_process_say() {
        // Its pid is beyond the largest there can be on a real host.
        let host = Host::at("tests/fixtures/hosts/two_devices");
        let of = |tgid, start_ns| {
            let key = ProcessKey { tgid, start_ns };
            let newcomer = Newcomer { key, comm: "x", cgroup_id: None };
            Labeller::new(host.clone(), ProcessLabel::ALL.to_vec()).of(&newcomer).to_vec()
        };
        let id = "3f4e8a9b0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b";
        let [pod, job] = [of(4_194_305, 1), of(4_194_306, 1)];
        assert_eq!(pod[..2], ["4194305", "x"]);
        assert!(pod[2].ends_with(&format!("/cri-containerd-{id}.scope")), "{}", pod[2]);
        let unit = format!("cri-containerd-{id}.scope");
        assert_eq!(pod[3..], [id, "0f6c7a5e-1b2c-4d3e-8f90-a1b2c3d4e5f6", "", "", &unit]);
        assert_eq!(job[2], "/slurm/uid_1000/job_4711/step_0/task_0");
        assert_eq!(job[3..], ["", "", "4711", "0", "slurmd.service"]);
    }

    #[test]
    fn a_path_outside_of_the_cgroup_namespace_is_found_by_its_id() {
        use std::fs;
        use std::os::unix::fs::{MetadataExt, symlink};

        let root = std::env::temp_dir().join(format!("mrscope-outside-{}", std::process::id()));
        let unit = root.join("sys/fs/cgroup/system.slice/a.service");
        for folder in [&unit, &root.join("proc/self/ns"), &root.join("proc/7")] {
            fs::create_dir_all(folder).unwrap();
        }
        symlink("pid:[4026531836]", root.join("proc/self/ns/pid")).unwrap();
        fs::write(root.join("sys/fs/cgroup/cgroup.controllers"), "").unwrap();
        fs::write(root.join("proc/7/cgroup"), "0::/../crio-x.scope/b.service\n").unwrap();
        let stat = "7 (x) S 1 7 7 0 -1 0 1 0 0 0 1 1 0 0 20 0 1 0 500 1000 10 \
                    18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        fs::write(root.join("proc/7/stat"), stat).unwrap();
        let id = fs::metadata(&unit).unwrap().ino();
        let key = ProcessKey { tgid: 7, start_ns: 5_000_000_000 };
        let told = |cgroup_id| {
            let newcomer = Newcomer { key, comm: "x", cgroup_id };
            let told = Labeller::new(Host::at(&root), Vec::new()).identity(&newcomer);
            [told.cgroup, told.owner.systemd_unit]
        };
        assert_eq!(told(Some(id)), ["/system.slice/a.service", "a.service"]);
        assert_eq!(told(None), ["", "b.service"]);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_process_whose_cgroup_nobody_knows_has_an_empty_one() {
        let key = ProcessKey { tgid: 7, start_ns: 1 };
        let newcomer = Newcomer { key, comm: "trainer", cgroup_id: Some(1) };
        let mut by = labels(&[ProcessLabel::Cgroup, ProcessLabel::Comm]);
        assert_eq!(by.of(&newcomer).as_ref(), [String::new(), "trainer".to_owned()]);
    }
}
