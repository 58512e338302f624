//! Cgroups of the unified hierarchy whose hugepages are limited. Which ones is looked for now and
//! then; what they hold is read each time.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{Files, absent, number, strange, trouble};
use crate::host::cgroup::mount;
use crate::host::{Host, HostError};

/// A search costs five files for each cgroup.
const SEARCH_PERIOD: Duration = Duration::from_secs(30);

/// Cgroups that one search looks at; those beyond are counted as omitted.
const SEARCH_LIMIT: usize = 20_000;

/// Cgroups that are shown: up to ten series each, with two sizes; those beyond are counted.
const SHOWN_LIMIT: usize = 200;

/// Hugepages of one size that a cgroup holds; it has a limit on them, or on reserving them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CgroupPages {
    /// As in `/system.slice/ssh.service`.
    pub cgroup: String,
    pub page_bytes: u64,
    pub usage_bytes: Option<u64>,
    /// None where there is none.
    pub limit_bytes: Option<u64>,
    pub reserved_bytes: Option<u64>,
    /// None where there is none.
    pub reserved_limit_bytes: Option<u64>,
    /// Times that pages were refused, here and below, by the limit of any cgroup.
    pub failures: Option<u64>,
}

#[derive(Default)]
pub(super) struct Found {
    pub cgroups: Vec<CgroupPages>,
    pub omitted: Option<u64>,
}

/// What the last search found.
#[derive(Debug, Default)]
pub(super) struct Limits {
    searched: Option<Instant>,
    /// Folders with a limit, below the root.
    known: Vec<PathBuf>,
    /// Folders that were found, and not looked at.
    beyond: usize,
    /// What stopped it somewhere: a state that must not change before the next search.
    stopped: Vec<(PathBuf, ErrorKind, String)>,
}

/// A size as the kernel writes it in names of files: of pages, and in words.
struct Size {
    page_bytes: u64,
    word: String,
}

/// One of the files of a cgroup and a size.
fn file(folder: &Path, size: &Size, what: &str) -> PathBuf {
    folder.join(format!("hugetlb.{}.{what}", size.word))
}

impl Limits {
    pub fn read(
        &mut self,
        host: &Host,
        page_bytes: &[u64],
        now: Instant,
        files: &mut Files,
        troubles: &mut Vec<HostError>,
    ) -> Found {
        let Some(root) = mount(host) else { return Found::default() };
        match lists_hugetlb(&root.join("cgroup.controllers"), files) {
            Ok(true) => {}
            Ok(false) => return Found::default(),
            Err(error) => {
                troubles.push(trouble(&root.join("cgroup.controllers"), error));
                return Found::default();
            }
        }
        let sizes: Vec<_> = page_bytes
            .iter()
            .map(|&page_bytes| Size { page_bytes, word: word(page_bytes) })
            .collect();
        if self.searched.is_none_or(|last| now.duration_since(last) >= SEARCH_PERIOD) {
            self.search(&root, &sizes, files);
            self.searched = Some(now);
        }
        let again = |(path, kind, why): &(PathBuf, ErrorKind, String)| {
            trouble(path, io::Error::new(*kind, why.clone()))
        };
        troubles.extend(self.stopped.iter().map(again));
        let mut reader = Reader { root: &root, sizes: &sizes, files, troubles };
        let ranked = reader.by_usage(&self.known);
        let mut cgroups = Vec::new();
        for folder in ranked.iter().take(SHOWN_LIMIT) {
            reader.figures(folder, &mut cgroups);
        }
        let all = cgroups.len();
        cgroups.sort_by(|a, b| (&a.cgroup, a.page_bytes).cmp(&(&b.cgroup, b.page_bytes)));
        // Names that are no text may be alike as text.
        cgroups.dedup_by(|b, a| (&a.cgroup, a.page_bytes) == (&b.cgroup, b.page_bytes));
        let alike = all - cgroups.len();
        let omitted = ranked.len().saturating_sub(SHOWN_LIMIT) + self.beyond + alike;
        Found { cgroups, omitted: Some(omitted as u64) }
    }

    /// Level by level, down into cgroups that hand the controller on to those below.
    fn search(&mut self, root: &Path, sizes: &[Size], files: &mut Files) {
        *self = Self::default();
        let mut folders = VecDeque::from([PathBuf::new()]);
        let mut looked_at = 0;
        while let Some(below) = folders.pop_front() {
            if looked_at == SEARCH_LIMIT {
                self.beyond = folders.len() + 1;
                return;
            }
            looked_at += 1;
            let folder = root.join(&below);
            if is_limited(&folder, sizes, files) {
                self.known.push(below.clone());
            }
            let control = folder.join("cgroup.subtree_control");
            match lists_hugetlb(&control, files) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    self.stop(&control, &error);
                    continue;
                }
            }
            if let Err(error) = down(&folder, &below, &mut folders) {
                self.stop(&folder, &error);
            }
        }
    }

    fn stop(&mut self, path: &Path, error: &io::Error) {
        if !vanished(error) {
            self.stopped.push((path.to_owned(), error.kind(), error.to_string()));
        }
    }
}

/// Whether it has a limit that says something. Kubernetes gives one of 0 to every pod that asks for no
/// hugepages: that is of interest once it refused some, or something is held in spite of it.
fn is_limited(folder: &Path, sizes: &[Size], files: &mut Files) -> bool {
    sizes.iter().any(|size| {
        let limits = ["max", "rsvd.max"].map(|what| limit(&file(folder, size, what), files));
        // Shown all the same: the figure itself will say what is wrong.
        let wrong = |limit: &io::Result<Option<u64>>| limit.as_ref().is_err_and(|e| !vanished(e));
        if limits.iter().any(wrong) {
            return true;
        }
        match limits.into_iter().flatten().flatten().max() {
            None => false,
            Some(0) => {
                let current = file(folder, size, "current");
                let refused = failures(&file(folder, size, "events"), files).unwrap_or(0);
                refused > 0 || files.number(&current).is_ok_and(|bytes| bytes > 0)
            }
            Some(_) => true,
        }
    })
}

fn down(folder: &Path, below: &Path, folders: &mut VecDeque<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            folders.push_back(below.join(entry.file_name()));
        }
    }
    Ok(())
}

struct Reader<'a> {
    root: &'a Path,
    sizes: &'a [Size],
    files: &'a mut Files,
    troubles: &'a mut Vec<HostError>,
}

impl Reader<'_> {
    /// Those that are still there, the largest first.
    fn by_usage<'f>(&mut self, known: &'f [PathBuf]) -> Vec<&'f Path> {
        let mut ranked = Vec::with_capacity(known.len());
        for below in known {
            let folder = self.root.join(below);
            let mut usage: Option<u64> = None;
            for size in self.sizes {
                match self.files.number(&file(&folder, size, "current")) {
                    Ok(bytes) => usage = Some(usage.unwrap_or(0).saturating_add(bytes)),
                    Err(error) if vanished(&error) => {}
                    Err(_) => usage = usage.or(Some(0)),
                }
            }
            ranked.extend(usage.map(|usage| (Reverse(usage), below.as_path())));
        }
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, below)| below).collect()
    }

    fn figures(&mut self, below: &Path, cgroups: &mut Vec<CgroupPages>) {
        let folder = self.root.join(below);
        let cgroup = format!("/{}", below.to_string_lossy());
        for size in self.sizes {
            let before = self.troubles.len();
            let limit_bytes = self.figure(&file(&folder, size, "max"), limit).flatten();
            let reserved_limit_bytes =
                self.figure(&file(&folder, size, "rsvd.max"), limit).flatten();
            let unreadable = self.troubles.len() > before;
            if limit_bytes.is_none() && reserved_limit_bytes.is_none() && !unreadable {
                continue;
            }
            let bytes = |path: &Path, files: &mut Files| files.number(path);
            cgroups.push(CgroupPages {
                cgroup: cgroup.clone(),
                page_bytes: size.page_bytes,
                usage_bytes: self.figure(&file(&folder, size, "current"), bytes),
                limit_bytes,
                reserved_bytes: self.figure(&file(&folder, size, "rsvd.current"), bytes),
                reserved_limit_bytes,
                failures: self.figure(&file(&folder, size, "events"), failures),
            });
        }
    }

    /// None of a cgroup that is gone by now.
    fn figure<T>(
        &mut self,
        path: &Path,
        read: impl FnOnce(&Path, &mut Files) -> io::Result<T>,
    ) -> Option<T> {
        match read(path, self.files) {
            Ok(figure) => Some(figure),
            Err(error) if vanished(&error) => None,
            Err(error) => {
                self.troubles.push(trouble(path, error));
                None
            }
        }
    }
}

/// A file that was open while its cgroup was removed has no device any more.
fn vanished(error: &io::Error) -> bool {
    absent(error) || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

fn lists_hugetlb(path: &Path, files: &mut Files) -> io::Result<bool> {
    let text = files.read(path)?;
    Ok(text.split(u8::is_ascii_whitespace).any(|controller| controller == b"hugetlb"))
}

/// A limit; None for "max".
fn limit(path: &Path, files: &mut Files) -> io::Result<Option<u64>> {
    let text = files.read(path)?.trim_ascii();
    if text == b"max" {
        return Ok(None);
    }
    number(text).map(Some).ok_or_else(|| strange("expected a number, or max"))
}

/// The kernel counts them at the cgroup of the task and at all above it, whichever of these had
/// the limit: of those with a limit only this count, not events.local, shows all.
fn failures(path: &Path, files: &mut Files) -> io::Result<u64> {
    let text = files.read(path)?;
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"max "));
    line.and_then(|count| number(count.trim_ascii()))
        .ok_or_else(|| strange("expected a line \"max COUNT\""))
}

/// A size in names of files: 64KB, 2MB, 16GB.
fn word(bytes: u64) -> String {
    let (unit, name) = match bytes {
        _ if bytes >= 1 << 30 => (30, "GB"),
        _ if bytes >= 1 << 20 => (20, "MB"),
        _ => (10, "KB"),
    };
    format!("{}{name}", bytes >> unit)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SIZE: u64 = 2 << 20;

    /// A unified hierarchy below the folder for temporary files, gone when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let root =
                std::env::temp_dir().join(format!("mrscope-limits-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let tree = Self(root);
            tree.file("cgroup.controllers", "memory hugetlb\n");
            tree.file("cgroup.subtree_control", "hugetlb\n");
            tree
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join("sys/fs/cgroup").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn limit(&self, cgroup: &str) {
            self.file(&format!("{cgroup}/hugetlb.2MB.max"), "4194304\n");
            self.file(&format!("{cgroup}/hugetlb.2MB.current"), "2097152\n");
        }

        fn read(&self, limits: &mut Limits, now: Instant) -> Found {
            let mut troubles = Vec::new();
            let host = Host::at(&self.0);
            let found = limits.read(&host, &[SIZE], now, &mut Files::default(), &mut troubles);
            assert!(troubles.is_empty(), "{troubles:?}");
            found
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn sizes_are_named_as_the_kernel_names_them() {
        let kib = |kib: u64| word(kib << 10);
        let named =
            [kib(64), kib(2048), kib(32 << 10), kib(512 << 10), kib(1 << 20), kib(16 << 20)];
        assert_eq!(named, ["64KB", "2MB", "32MB", "512MB", "1GB", "16GB"]);
    }

    #[test]
    fn a_search_is_made_twice_a_minute_and_what_it_found_is_read_each_time() {
        let tree = Tree::new("period");
        let mut limits = Limits::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(tree.read(&mut limits, at(0)).cgroups.len(), 0);
        tree.limit("a");
        assert_eq!(tree.read(&mut limits, at(29)).cgroups.len(), 0);
        assert_eq!(tree.read(&mut limits, at(30)).cgroups[0].usage_bytes, Some(SIZE));
        tree.file("a/hugetlb.2MB.current", "0\n");
        assert_eq!(tree.read(&mut limits, at(31)).cgroups[0].usage_bytes, Some(0));
    }

    #[test]
    fn a_cgroup_is_found_only_where_the_controller_is_handed_on() {
        let tree = Tree::new("handed");
        tree.limit("on");
        tree.file("on/cgroup.subtree_control", "memory hugetlb\n");
        tree.limit("on/inner");
        // No kernel has such files there; who looked would find them.
        tree.file("off/cgroup.subtree_control", "memory\n");
        tree.limit("off/inner");
        let found = tree.read(&mut Limits::default(), Instant::now());
        let paths: Vec<_> = found.cgroups.iter().map(|it| it.cgroup.as_str()).collect();
        assert_eq!(paths, ["/on", "/on/inner"]);
    }

    #[test]
    fn a_search_ends_after_twenty_thousand_and_the_rest_is_counted() {
        let tree = Tree::new("end");
        for cgroup in 0..SEARCH_LIMIT + 2 {
            fs::create_dir(tree.0.join(format!("sys/fs/cgroup/{cgroup}"))).unwrap();
        }
        // The root is one of those that are looked at.
        assert_eq!(tree.read(&mut Limits::default(), Instant::now()).omitted, Some(3));
    }
}
