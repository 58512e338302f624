//! What tells processes apart: the configured labels of a process, asked for once in its life.

use crate::host::{CgroupPaths, Host, Owner, Presence, Processes, cgroup_of};
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

    /// The labels of a process. What can't be told any more is empty.
    pub fn of(&mut self, newcomer: &Newcomer<'_>) -> Labels {
        let by_cgroup =
            |label: &ProcessLabel| !matches!(label, ProcessLabel::Pid | ProcessLabel::Comm);
        let cgroup =
            if self.labels.iter().any(by_cgroup) { self.cgroup(newcomer) } else { String::new() };
        let owner = Owner::of(&cgroup);
        let value = |label: &ProcessLabel| match label {
            ProcessLabel::Pid => newcomer.key.tgid.to_string(),
            ProcessLabel::Comm => newcomer.comm.to_owned(),
            ProcessLabel::Cgroup => cgroup.clone(),
            ProcessLabel::ContainerId => owner.container_id.clone(),
            ProcessLabel::PodUid => owner.pod_uid.clone(),
            ProcessLabel::SlurmJob => owner.slurm_job.clone(),
            ProcessLabel::SystemdUnit => owner.systemd_unit.clone(),
        };
        self.labels.iter().map(value).collect()
    }

    /// By /proc while it lives, as that knows all hierarchies; by the id at its first event, which
    /// is one of v2, once it is gone.
    fn cgroup(&mut self, newcomer: &Newcomer<'_>) -> String {
        let living = self.cgroup_now(newcomer);
        let by_id = |id| self.cgroups.path(&self.host, id).map(str::to_owned);
        living.or_else(|| newcomer.cgroup_id.and_then(by_id)).unwrap_or_default()
    }

    /// By /proc, where that pid is still, or at all, this process's.
    fn cgroup_now(&self, newcomer: &Newcomer<'_>) -> Option<String> {
        let path = cgroup_of(&self.host, newcomer.key.tgid)?;
        let processes = Processes::of(&self.host);
        let presence = processes.presence(newcomer.key.tgid, newcomer.key.start_ns);
        (presence == Presence::Runs).then_some(path)
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
    fn a_process_whose_cgroup_nobody_knows_has_an_empty_one() {
        let key = ProcessKey { tgid: 7, start_ns: 1 };
        let newcomer = Newcomer { key, comm: "trainer", cgroup_id: Some(1) };
        let mut by = labels(&[ProcessLabel::Cgroup, ProcessLabel::Comm]);
        assert_eq!(by.of(&newcomer).as_ref(), [String::new(), "trainer".to_owned()]);
    }
}
