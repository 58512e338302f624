//! What tells processes apart: the configured labels of a process, asked for once in its life.

use crate::host::{CgroupPaths, Host, Owner, cgroup_of};
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

    /// By the id at its first event, which is right for the dead too; where that says nothing (no
    /// event, a host with v1 hierarchies, a cgroup that is gone) by /proc.
    fn cgroup(&mut self, newcomer: &Newcomer<'_>) -> String {
        let by_id = newcomer.cgroup_id.and_then(|id| self.cgroups.path(&self.host, id));
        match by_id {
            Some(path) if path != "/" => path.to_owned(),
            _ => cgroup_of(&self.host, newcomer.key.tgid).unwrap_or_default(),
        }
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
    fn a_process_whose_cgroup_nobody_knows_has_an_empty_one() {
        let key = ProcessKey { tgid: 7, start_ns: 1 };
        let newcomer = Newcomer { key, comm: "trainer", cgroup_id: Some(1) };
        let mut by = labels(&[ProcessLabel::Cgroup, ProcessLabel::Comm]);
        assert_eq!(by.of(&newcomer).as_ref(), [String::new(), "trainer".to_owned()]);
    }
}
