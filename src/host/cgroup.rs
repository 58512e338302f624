//! Which cgroup a process is in, and whose that is: container, pod, job or unit.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Host;

/// Cgroups looked at in one search; what is beyond has no name.
const SEARCH_LIMIT: usize = 20_000;

/// Path of the cgroup of a process, as in `/system.slice/ssh.service`; None once it is gone.
#[must_use]
pub fn cgroup_of(host: &Host, tgid: u32) -> Option<String> {
    host.proc_text(format!("{tgid}/cgroup")).ok().and_then(|text| parse(&text))
}

/// Lines are `id:controllers:path`. On hosts with v1 hierarchies the deepest path says most: the
/// unified one is often the root there.
fn parse(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        // Outside of the reader's cgroup namespace: where that is, nobody tells.
        .filter(|path| !path.starts_with("/.."))
        .max_by_key(|path| path.split('/').filter(|part| !part.is_empty()).count())
        .map(str::to_owned)
}

/// Paths of cgroups by the id that the kernel gives: the inode of their folder.
#[derive(Debug, Default)]
pub struct CgroupPaths {
    known: HashMap<u64, String>,
    searched: bool,
}

impl CgroupPaths {
    /// Allows one more search: many ids of cgroups that are gone must not cost one each.
    pub fn allow_search(&mut self) {
        self.searched = false;
    }

    /// The path of a cgroup; looks for all of them when the id is new.
    pub fn path(&mut self, host: &Host, id: u64) -> Option<&str> {
        if !self.known.contains_key(&id) && !self.searched {
            self.searched = true;
            self.known = mount(host).map(|root| search(&root)).unwrap_or_default();
        }
        self.known.get(&id).map(String::as_str)
    }
}

/// Where the unified hierarchy is, if it is the only one: those of v1 have no such file, and on a
/// host that has both the unified one knows less of a process than the others.
pub(super) fn mount(host: &Host) -> Option<PathBuf> {
    let place = host.sys("fs/cgroup");
    place.join("cgroup.controllers").exists().then_some(place)
}

fn search(root: &Path) -> HashMap<u64, String> {
    let mut found = HashMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(metadata) = std::fs::metadata(&folder) else { continue };
        let below = folder.strip_prefix(root).unwrap_or(&folder).to_string_lossy();
        found.insert(metadata.ino(), format!("/{below}"));
        if found.len() >= SEARCH_LIMIT {
            break;
        }
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(
            entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
    }
    found
}

/// What the path of a cgroup says of its owner; empty where it says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    /// 64 hexadecimal digits.
    pub container_id: String,
    /// With dashes, as the API server has it.
    pub pod_uid: String,
    pub slurm_job: String,
    /// The innermost service, scope or mount unit.
    pub systemd_unit: String,
}

impl Owner {
    #[must_use]
    pub fn of(path: &str) -> Self {
        let mut owner = Self::default();
        // Some runtimes join the pod's slice and the container's id by colons.
        for part in path.split(['/', ':']).filter(|part| !part.is_empty()) {
            if let Some(id) = container_id(part) {
                id.clone_into(&mut owner.container_id);
            }
            if let Some(uid) = pod_uid(part) {
                owner.pod_uid = uid;
            }
            if let Some(job) = part.strip_prefix("job_").filter(|job| is_number(job)) {
                job.clone_into(&mut owner.slurm_job);
            }
            if [".service", ".scope", ".mount", ".socket"].iter().any(|end| part.ends_with(end)) {
                part.clone_into(&mut owner.systemd_unit);
            }
        }
        owner
    }
}

/// `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`, `crio-ID.scope`, `libpod-ID.scope`.
fn container_id(part: &str) -> Option<&str> {
    const DIGITS: usize = 64;
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit('-').next()?;
    (id.len() == DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(id)
}

/// `podUID`, `kubepods-burstable-podUID.slice` (its dashes are underscores then).
fn pod_uid(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
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

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4e8a9b0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b";
    const UID: &str = "0f6c7a5e-1b2c-4d3e-8f90-a1b2c3d4e5f6";

    #[test]
    fn the_deepest_path_is_the_process_s() {
        assert_eq!(parse("0::/a/b\n").as_deref(), Some("/a/b"));
        let hybrid = "12:memory:/docker/x\n5:name=systemd:/docker/x/y\n0::/\n";
        assert_eq!(parse(hybrid).as_deref(), Some("/docker/x/y"));
        assert_eq!(parse("0::/\n").as_deref(), Some("/"));
        assert_eq!(parse(""), None);
        assert_eq!(parse("0::/with:colon\n").as_deref(), Some("/with:colon"));
        assert_eq!(parse("0::/../0625ddbc\n"), None);
    }

    #[test]
    fn a_container_is_told_by_its_sixty_four_digits() {
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/kubepods/burstable/pod{UID}/{ID}"),
            format!("/kubepods.slice/kubepods-pod{}.slice/crio-{ID}.scope", UID.replace('-', "_")),
            format!("/system.slice/containerd.service/kubepods-pod_x:cri-containerd:{ID}"),
        ] {
            assert_eq!(Owner::of(&path).container_id, ID, "{path}");
        }
        assert_eq!(Owner::of(&format!("/docker/{}", &ID[1..])).container_id, "");
    }

    #[test]
    fn a_pod_is_told_in_both_spellings() {
        let slice = UID.replace('-', "_");
        for path in [
            format!("/kubepods/besteffort/pod{UID}/{ID}"),
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice"),
            format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice"),
            format!("/kubepods-burstable-pod{slice}.slice:cri-containerd:{ID}"),
        ] {
            assert_eq!(Owner::of(&path).pod_uid, UID, "{path}");
        }
        assert_eq!(Owner::of("/user.slice/mypod123").pod_uid, "");
        assert_eq!(Owner::of("/a/podman").pod_uid, "");
    }

    #[test]
    fn jobs_and_units_are_told() {
        let owner = Owner::of("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0");
        assert_eq!(owner.slurm_job, "4711");
        assert_eq!(owner.systemd_unit, "slurmstepd.scope");
        assert_eq!(Owner::of("/slurm/uid_1000/job_12/step_batch").slurm_job, "12");
        assert_eq!(Owner::of("/system.slice/ssh.service").systemd_unit, "ssh.service");
        assert_eq!(Owner::of("/x/job_a").slurm_job, "");
    }

    #[test]
    fn a_cgroup_s_id_is_the_inode_of_its_folder() {
        let root = std::env::temp_dir().join(format!("mrscope-cgroup-{}", std::process::id()));
        let inner = root.join("sys/fs/cgroup/a/b");
        std::fs::create_dir_all(&inner).unwrap();
        let id = std::fs::metadata(&inner).unwrap().ino();
        let mut paths = CgroupPaths::default();
        // Without that file it is a hierarchy of v1.
        assert_eq!(paths.path(&Host::at(&root), id), None);
        std::fs::write(root.join("sys/fs/cgroup/cgroup.controllers"), "").unwrap();
        paths.allow_search();
        assert_eq!(paths.path(&Host::at(&root), id), Some("/a/b"));
        std::fs::create_dir_all(inner.join("c")).unwrap();
        let newer = std::fs::metadata(inner.join("c")).unwrap().ino();
        assert_eq!(paths.path(&Host::at(&root), newer), None);
        paths.allow_search();
        assert_eq!(paths.path(&Host::at(&root), newer), Some("/a/b/c"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
