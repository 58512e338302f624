//! Who the processes are that have a series: looked at when it begins, and when a process changes its
//! name, as exec does. Owns the right that this takes, and says once where it is lacking.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::host::{Owner, Program, Rights};
use crate::ledger::{Newcomer, Shown};
use crate::model::{Labels, Process, ProcessKey, Tasks};

use super::labels::{Identity, Labeller};

/// Known of the series that are shown, until they are not.
#[derive(Debug)]
pub struct Who {
    /// Series are one process each, and somebody shows it.
    tells: bool,
    rights: Rights,
    known: HashMap<Labels, Known>,
    said_denied: bool,
}

/// One process.
#[derive(Debug)]
pub struct Known {
    key: ProcessKey,
    /// Its name when it was looked at.
    comm: String,
    identity: Identity,
}

impl Known {
    /// In the order of the catalogue.
    pub fn values(&self) -> [&str; 8] {
        let Identity { program, cgroup, owner } = &self.identity;
        let Owner { container_id, pod_uid, slurm_job, slurm_step, systemd_unit } = owner;
        let exe: &str = match program {
            Program::Path(path) => path,
            Program::Denied | Program::Unknown => "",
        };
        [&self.comm, exe, cgroup, container_id, pod_uid, slurm_job, slurm_step, systemd_unit]
    }
}

impl Who {
    pub fn new(tells: bool) -> Self {
        Self { tells, rights: Rights::NONE, known: HashMap::new(), said_denied: false }
    }

    /// What it keeps of these: the programs of others are shown to who may trace them alone.
    pub fn rights(&mut self, all: Rights) -> Rights {
        self.rights = if self.tells { all.only(Rights::PROCESSES) } else { Rights::NONE };
        self.rights
    }

    /// None where the series is not one process.
    pub fn of(&self, labels: &Labels) -> Option<&Known> {
        self.known.get(labels)
    }

    /// A series keeps what is known of its process when that ends, as it keeps its counters.
    pub fn keep_up(
        &mut self,
        shown: &[Shown],
        tasks: Option<&Tasks>,
        rows: &[Process],
        labeller: &mut Labeller,
    ) {
        if !self.tells {
            return;
        }
        let living: HashSet<(u32, u64)> =
            shown.iter().filter_map(|shown| Some(shown.key?.tick())).collect();
        let listed = tasks.map(|tasks| tasks.rows.as_slice()).unwrap_or_default();
        let names: HashMap<(u32, u64), String> = listed
            .iter()
            .map(|task| (task.key.tick(), task))
            .filter(|(tick, _)| living.contains(tick))
            .map(|(tick, task)| (tick, task.name()))
            .collect();
        let mut before = std::mem::take(&mut self.known);
        for Shown { labels, key, .. } in shown {
            let known = before.remove(labels);
            let Some(key) = *key else {
                self.known.extend(known.map(|known| (Arc::clone(labels), known)));
                continue;
            };
            let name = names.get(&key.tick());
            let known = known
                .filter(|known| known.key.tick() == key.tick())
                .filter(|known| name.is_none_or(|name| *name == known.comm));
            let known = known.unwrap_or_else(|| {
                let row = rows.iter().find(|row| row.key == key);
                let comm = name.cloned().or_else(|| row.map(|row| row.comm.clone()));
                let comm = comm.unwrap_or_default();
                let cgroup_id = row.map(|row| row.cgroup_id);
                let newcomer = Newcomer { key, comm: &comm, cgroup_id };
                let identity = self.rights.with(|| labeller.identity(&newcomer));
                Known { key, comm, identity }
            });
            self.known.insert(Arc::clone(labels), known);
        }
        self.say();
    }

    fn say(&mut self) {
        let denied = |known: &Known| known.identity.program == Program::Denied;
        if !self.said_denied && self.known.values().any(denied) {
            self.said_denied = true;
            tracing::info!(
                "the label exe of process_info is empty for processes that mrscope may not trace: \
                 that takes CAP_SYS_PTRACE"
            );
        }
    }
}

#[cfg(test)]
mod tests;
