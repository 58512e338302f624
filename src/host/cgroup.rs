//! Which cgroups a process is in, and what a cgroup's id stands for.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::owner::Owner;
use super::{Host, HostError};

/// Cgroups looked at in one search; what is beyond has no name.
const SEARCH_LIMIT: usize = 20_000;

/// The cgroups of a process, one in each hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cgroups {
    /// The deepest first.
    places: Vec<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    hierarchy: Hierarchy,
    path: String,
}

/// Those that know of units first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hierarchy {
    /// systemd's own of v1.
    Systemd,
    /// v2's.
    Unified,
    /// Controllers of v1.
    Controllers,
}

impl Cgroups {
    /// Those of a process, by /proc.
    ///
    /// # Errors
    /// It is gone, or /proc does not show it.
    pub fn of(host: &Host, tgid: u32) -> Result<Self, HostError> {
        host.proc_text(format!("{tgid}/cgroup")).map(|text| Self::parse(&text))
    }

    /// Only that one, of v2.
    #[must_use]
    pub fn unified(path: &str) -> Self {
        Self { places: vec![Place { hierarchy: Hierarchy::Unified, path: path.to_owned() }] }
    }

    /// Lines are `id:controllers:path`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let place = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let hierarchy = match controllers {
                "" => Hierarchy::Unified,
                "name=systemd" => Hierarchy::Systemd,
                _ => Hierarchy::Controllers,
            };
            // One that was removed while a dead process is left in it; v1 does not say so.
            let removed = path.strip_suffix(" (deleted)").filter(|_| controllers.is_empty());
            Some(Place { hierarchy, path: removed.unwrap_or(path).to_owned() })
        };
        let mut places: Vec<Place> = text.lines().filter_map(place).collect();
        places.sort_by_key(|place| Reverse(depth(&place.path)));
        Self { places }
    }

    /// The path that says most, as in `/system.slice/ssh.service`: the deepest, since on hosts with
    /// hierarchies of v1 the unified one is often the root. None where all are outside of the
    /// reader's cgroup namespace: where that is, nobody tells.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.places.iter().map(|place| place.path.as_str()).find(|path| !path.starts_with("/.."))
    }

    /// Whose they are. Of two hierarchies that say different things the deeper path is right, but
    /// for units, which are systemd's to tell. The end of a path tells wherever its beginning is.
    #[must_use]
    pub fn owner(&self) -> Owner {
        let mut owner = Owner::default();
        for place in &self.places {
            owner.complete(Owner::of(&place.path));
        }
        let unit = |place: &Place| {
            let unit = Owner::of(&place.path).systemd_unit;
            (!unit.is_empty()).then_some((place.hierarchy, unit))
        };
        let told = self.places.iter().filter_map(unit).min_by_key(|(hierarchy, _)| *hierarchy);
        owner.systemd_unit = told.map(|(_, unit)| unit).unwrap_or_default();
        owner
    }
}

fn depth(path: &str) -> usize {
    path.split('/').filter(|part| !matches!(*part, "" | "..")).count()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Option<String> {
        Cgroups::parse(text).path().map(str::to_owned)
    }

    #[test]
    fn the_deepest_path_is_the_process_s() {
        assert_eq!(path("0::/a/b\n").as_deref(), Some("/a/b"));
        let hybrid = "12:memory:/docker/x\n5:name=systemd:/docker/x/y\n0::/\n";
        assert_eq!(path(hybrid).as_deref(), Some("/docker/x/y"));
        assert_eq!(path("0::/\n").as_deref(), Some("/"));
        assert_eq!(path(""), None);
        assert_eq!(path("0::/with:colon\n").as_deref(), Some("/with:colon"));
        assert_eq!(path("0::/../0625ddbc\n"), None);
        assert_eq!(path("0::/../../../a\n4:memory:/b\n").as_deref(), Some("/b"));
    }

    #[test]
    fn a_cgroup_that_was_removed_keeps_its_name() {
        assert_eq!(path("0::/a/job_1 (deleted)\n").as_deref(), Some("/a/job_1"));
        assert_eq!(path("3:memory:/a (deleted)\n").as_deref(), Some("/a (deleted)"));
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
