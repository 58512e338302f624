//! Whose a cgroup is, by its path alone: a container's, a pod's, a job's, a unit's. Asks nobody.

/// What the path of a cgroup says of its owner; empty where it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// 64 hexadecimal digits.
    pub container_id: String,
    /// With dashes, as the API server has it.
    pub pod_uid: String,
    /// A number.
    pub slurm_job: String,
    /// A number, or `batch`, `extern`, `interactive`; in a heterogeneous job `STEP+COMPONENT`.
    pub slurm_step: String,
    /// The innermost service, scope, mount, socket or swap; where there is none the innermost slice.
    pub systemd_unit: String,
}

impl Owner {
    #[must_use]
    pub fn of(path: &str) -> Self {
        let mut owner = Self::default();
        let mut slice = "";
        // Others have folders called job_N too: Slurm's are below its own, or a user's.
        let (mut slurm, mut in_job) = (false, false);
        for part in path.split('/').filter(|part| !part.is_empty()) {
            // Where a runtime makes no unit for who asks for one, it joins the pod's slice and the
            // container's id by colons.
            for word in part.split(':') {
                if let Some(id) = container_id(word) {
                    id.clone_into(&mut owner.container_id);
                }
                if let Some(uid) = pod_uid(word) {
                    owner.pod_uid = uid;
                }
            }
            let job = part.strip_prefix("job_").filter(|job| slurm && is_number(job));
            if let Some(step) = part.strip_prefix("step_").filter(|step| in_job && is_step(step)) {
                step.clone_into(&mut owner.slurm_step);
            }
            if let Some(job) = job {
                job.clone_into(&mut owner.slurm_job);
                owner.slurm_step.clear();
            }
            in_job = job.is_some();
            let is_user = part.strip_prefix("uid_").is_some_and(is_number);
            slurm |= is_user || part.contains("slurm");
            match unit(part) {
                Some(unit) if unit.strip_suffix(".slice").is_some() => slice = unit,
                Some(unit) => unit.clone_into(&mut owner.systemd_unit),
                None => {}
            }
        }
        if owner.systemd_unit.is_empty() {
            slice.clone_into(&mut owner.systemd_unit);
        }
        owner
    }

    /// Takes over what another path says and this one does not. A step belongs to its job.
    pub(super) fn complete(&mut self, other: Self) {
        if self.container_id.is_empty() {
            self.container_id = other.container_id;
        }
        if self.pod_uid.is_empty() {
            self.pod_uid = other.pod_uid;
        }
        if self.slurm_job.is_empty() {
            self.slurm_job = other.slurm_job;
            self.slurm_step = other.slurm_step;
        }
    }
}

/// `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`, `crio-ID`, `libpod-ID.scope`,
/// `libpod-payload-ID`. Conmon is a container's monitor, and not in it.
fn container_id(word: &str) -> Option<&str> {
    const DIGITS: usize = 64;
    let name = word.strip_suffix(".scope").unwrap_or(word);
    let (before, id) = name.rsplit_once('-').unwrap_or(("", name));
    let is_id = id.len() == DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
    (is_id && !before.ends_with("conmon")).then_some(id)
}

/// `podUID`, `kubepods-burstable-podUID.slice` (its dashes are underscores then).
fn pod_uid(word: &str) -> Option<String> {
    let name = word.strip_suffix(".slice").unwrap_or(word);
    let (before, uid) = name.rsplit_once("pod")?;
    if !before.is_empty() && !before.contains("kubepods-") {
        return None;
    }
    let uid = uid.replace('_', "-");
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = uid.bytes().filter(|b| *b == b'-').count();
    // A static pod's is 32 digits without dashes.
    (digits == 32 && matches!(dashes, 0 | 4) && digits + dashes == uid.len()).then_some(uid)
}

/// The name of the unit. Where it looks like a file of the kernel's (`memory.slice`), systemd puts
/// an underscore before it.
fn unit(part: &str) -> Option<&str> {
    const KINDS: [&str; 6] = [".service", ".scope", ".mount", ".socket", ".swap", ".slice"];
    let name = part.strip_prefix('_').unwrap_or(part);
    let named = |kind: &&str| name.strip_suffix(*kind).is_some_and(|name| !name.is_empty());
    KINDS.iter().any(named).then_some(name)
}

fn is_step(text: &str) -> bool {
    match text.split_once('+') {
        Some((step, component)) => is_number(step) && is_number(component),
        None => is_number(text) || matches!(text, "batch" | "extern" | "interactive"),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests;
