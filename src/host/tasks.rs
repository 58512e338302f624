//! All processes and what their memory costs, by /proc alone: for hosts without BPF. Shows the
//! figures of shared memory with everyone who shares it, because /proc does not tell who does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use procfs::FromRead;
use procfs::process::Stat;
use rustix::fs::{CWD, Dir, Mode, OFlags, openat, readlinkat};
use rustix::thread::CapabilitySet;

use super::process::{NS_PER_TICK, Processes, dead, vanished};
use super::{Host, HostError};
use crate::model::{Memory, ProcessKey, Task, Tasks};

/// One walk over all processes. Pids are those of this /proc.
///
/// Who vanishes meanwhile is left out; so is who can't be read, and then the walk is not whole.
///
/// # Errors
/// The folder of processes can't be listed.
pub fn read_tasks(host: &Host) -> Result<Tasks, HostError> {
    let path = &host.proc;
    let fail = |source| HostError::Read { path: path.clone(), source };
    let mut tasks = Tasks::default();
    let mut buffer = Vec::new();
    // Where hidepid hides others' processes from a user, it hides the first one too.
    let mut first_seen = false;
    let mut refused = false;
    let of_rights = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    for entry in std::fs::read_dir(path).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name();
        let Some(tgid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        first_seen |= tgid == 1;
        let folder = path.join(name);
        match Folder::open(&folder).and_then(|it| it.read(tgid, &mut buffer)) {
            Ok(task) => tasks.rows.extend(task),
            Err(error) if vanished(&error) => {}
            Err(error) => {
                refused = true;
                if !of_rights(&error) {
                    tasks.unread.get_or_insert_with(|| format!("{}: {error}", folder.display()));
                }
            }
        }
    }
    tasks.whole = first_seen && !refused && Processes::of(host).all_visible();
    Ok(tasks)
}

/// The folder of one process. Held open, it never becomes that of another with the same pid.
struct Folder(OwnedFd);

impl Folder {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, path, flags, Mode::empty())?))
    }

    /// None for the kernel's own threads, and for the dead.
    fn read(&self, tgid: u32, buffer: &mut Vec<u8>) -> io::Result<Option<Task>> {
        const PF_KTHREAD: u32 = 0x0020_0000;
        let line = self.file("stat", buffer)?;
        let stat = Stat::from_read(line).map_err(|error| strange(&error.to_string()))?;
        if stat.flags & PF_KTHREAD != 0 || dead(&stat) {
            return Ok(None);
        }
        let key = ProcessKey { tgid, start_ns: stat.starttime * NS_PER_TICK };
        let comm = comm(line).ok_or_else(|| strange("a stat without a name"))?;
        let mut memory = memory(self.file("status", buffer)?);
        if memory.is_none() && stat.num_threads > 1 {
            memory = self.memory_of_threads(buffer)?;
        }
        if let Some(memory) = &mut memory {
            // One file more of each process is a fifth of the whole; limits are for those that
            // hold.
            let holds = memory.holds();
            if memory.exempt == Some(true) {
                memory.exempt = if holds { self.in_first_user_namespace() } else { None };
            }
            if holds {
                memory.memlock_limit_bytes = Some(memlock_limit(self.file("limits", buffer)?)?);
            }
        }
        Ok(Some(Task { key, comm, memory }))
    }

    /// None where that is not for the reader to know.
    fn in_first_user_namespace(&self) -> Option<bool> {
        /// PROC_USER_INIT_INO
        const FIRST: &[u8] = b"user:[4026531837]";
        let namespace = readlinkat(self.0.as_fd(), "ns/user", Vec::new()).ok()?;
        Some(namespace.as_bytes() == FIRST)
    }

    /// A leader that ended before its threads has none; each of them shows what they share.
    fn memory_of_threads(&self, buffer: &mut Vec<u8>) -> io::Result<Option<Memory>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let threads = openat(self.0.as_fd(), "task", flags, Mode::empty())?;
        for entry in Dir::read_from(&threads)? {
            let entry = entry?;
            let Some(tid) = entry.file_name().to_str().ok().filter(|name| !name.starts_with('.'))
            else {
                continue;
            };
            match self.file(&format!("task/{tid}/status"), buffer) {
                Ok(status) => {
                    if let Some(memory) = memory(status) {
                        return Ok(Some(memory));
                    }
                }
                Err(error) if vanished(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn file<'a>(&self, name: &str, buffer: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
        const PIECE: usize = 4096;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(self.0.as_fd(), name, flags, Mode::empty())?;
        let mut filled = 0;
        loop {
            if filled == buffer.len() {
                buffer.resize(buffer.len() + PIECE, 0);
            }
            match rustix::io::read(&file, &mut buffer[filled..])? {
                0 => return Ok(&buffer[..filled]),
                more => filled += more,
            }
        }
    }
}

fn strange(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What is in the outer parentheses of a stat: any bytes, parentheses too.
fn comm(stat: &[u8]) -> Option<[u8; 16]> {
    let start = stat.iter().position(|byte| *byte == b'(')? + 1;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let name = stat.get(start..end)?;
    let mut comm = [0; 16];
    for (to, from) in comm.iter_mut().zip(name) {
        *to = *from;
    }
    Some(comm)
}

/// What a status tells of memory; None where it tells nothing. The limit stands in another file.
fn memory(status: &[u8]) -> Option<Memory> {
    let mut memory = Memory::default();
    let mut pinned = None;
    for line in status.split(|byte| *byte == b'\n') {
        let bytes = |rest| number(rest).map(|kib| kib.saturating_mul(1024));
        if let Some(rest) = line.strip_prefix(b"CapEff:") {
            memory.exempt = has_ipc_lock(rest);
        } else if let Some(rest) = line.strip_prefix(b"VmPin:") {
            pinned = bytes(rest);
        } else if let Some(rest) = line.strip_prefix(b"VmLck:") {
            memory.locked_bytes = bytes(rest)?;
        } else if let Some(rest) = line.strip_prefix(b"VmPTE:") {
            memory.page_table_bytes = bytes(rest)?;
        } else if let Some(rest) = line.strip_prefix(b"HugetlbPages:") {
            memory.hugetlb_bytes = bytes(rest);
        }
    }
    memory.pinned_bytes = pinned?;
    Some(memory)
}

/// Whether CAP_IPC_LOCK is in a hexadecimal mask.
fn has_ipc_lock(mask: &[u8]) -> Option<bool> {
    let mask = std::str::from_utf8(mask).ok()?.trim();
    let mask = CapabilitySet::from_bits_retain(u64::from_str_radix(mask, 16).ok()?);
    Some(mask.contains(CapabilitySet::IPC_LOCK))
}

/// The soft limit on locked memory.
fn memlock_limit(limits: &[u8]) -> io::Result<u64> {
    const NAME: &[u8] = b"Max locked memory";
    let soft = limits
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(NAME))
        .ok_or_else(|| strange("limits without \"Max locked memory\""))?;
    if soft.trim_ascii_start().starts_with(b"unlimited") {
        return Ok(Memory::NO_LIMIT);
    }
    number(soft).ok_or_else(|| strange("a limit that is no number"))
}

/// The number that the text begins with.
fn number(text: &[u8]) -> Option<u64> {
    let word = text.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    const INITIAL: &str = "pid:[4026531836]";
    const STATUS: &str = "Name:\tx\nUmask:\t0022\nVmPeak:\t    9000 kB\nVmLck:\t    3072 kB\n\
                          VmPin:\t      64 kB\nVmPTE:\t      52 kB\nHugetlbPages:\t    2048 kB\n\
                          Threads:\t1\n";
    const DEAD: &str = "Name:\tx\nState:\tZ (zombie)\nThreads:\t2\n";
    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
                          Max processes             95000                95000                processes\n\
                          Max locked memory         8388608              unlimited            bytes\n";

    /// A tree of its own below the folder for temporary files, gone when dropped.
    struct Tree(PathBuf);

    impl Tree {
        /// With a first process, as every namespace has one.
        fn new(name: &str, namespace: &str) -> Self {
            let root = format!("mrscope-tasks-{}-{name}", std::process::id());
            let tree = Self(std::env::temp_dir().join(root));
            fs::create_dir_all(tree.0.join("proc/self/ns")).unwrap();
            symlink(namespace, tree.0.join("proc/self/ns/pid")).unwrap();
            tree.process(1, b"init", 'S', 1)
        }

        fn file(self, path: &str, text: impl AsRef<[u8]>) -> Self {
            let path = self.0.join("proc").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        /// Puts a folder where a file should be: it opens, and can't be read.
        fn folder_for(self, path: &str) -> Self {
            let path = self.0.join("proc").join(path);
            fs::remove_file(&path).unwrap();
            fs::create_dir(path).unwrap();
            self
        }

        /// A process that holds what STATUS says, and started a hundred ticks after its pid.
        fn process(self, pid: u32, comm: &[u8], state: char, threads: u32) -> Self {
            self.stat(pid, comm, state, threads, 0x0040_0000)
                .file(&format!("{pid}/status"), STATUS)
                .file(&format!("{pid}/limits"), LIMITS)
        }

        fn stat(self, pid: u32, comm: &[u8], state: char, threads: u32, flags: u32) -> Self {
            let start = 100 + pid;
            let before = format!("{pid} (").into_bytes();
            let after = format!(
                ") {state} 1 {pid} {pid} 0 -1 {flags} 1 0 0 0 1 1 0 0 20 0 {threads} 0 {start} \
                 1000 10 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
            );
            self.file(&format!("{pid}/stat"), [&before, comm, after.as_bytes()].concat())
        }

        fn read(&self) -> Tasks {
            read_tasks(&Host::at(&self.0)).unwrap()
        }

        /// The one process beside the first.
        fn other(&self) -> Option<Task> {
            let mut others: Vec<_> =
                self.read().rows.into_iter().filter(|task| task.key.tgid != 1).collect();
            assert!(others.len() <= 1, "{others:?}");
            others.pop()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn held() -> Memory {
        Memory {
            pinned_bytes: 64 << 10,
            locked_bytes: 3 << 20,
            hugetlb_bytes: Some(2 << 20),
            page_table_bytes: 52 << 10,
            memlock_limit_bytes: Some(8 << 20),
            locks_future: None,
            exempt: None,
        }
    }

    #[test]
    fn no_limit_holds_with_a_capability_in_the_first_user_namespace() {
        const WITH: &str = "CapEff:\t0000000000004000\n";
        const ALL_BUT: &str = "CapEff:\t000001ffffffbfff\n";
        for (mask, namespace, exempt) in [
            (WITH, Some("user:[4026531837]"), Some(true)),
            (WITH, Some("user:[4026532001]"), Some(false)),
            // Who may not look does not know.
            (WITH, None, None),
            (ALL_BUT, Some("user:[4026531837]"), Some(false)),
            (ALL_BUT, None, Some(false)),
            ("CapEff:\tjunk\n", Some("user:[4026531837]"), None),
        ] {
            let tree = Tree::new("exempt", INITIAL)
                .process(7, b"x", 'S', 1)
                .file("7/status", format!("{mask}{STATUS}"))
                .file("7/ns/any", "");
            if let Some(namespace) = namespace {
                symlink(namespace, tree.0.join("proc/7/ns/user")).unwrap();
            }
            let expected = Memory { exempt, ..held() };
            assert_eq!(tree.other().unwrap().memory, Some(expected), "{mask} {namespace:?}");
        }
    }

    #[test]
    fn a_process_is_read_from_its_three_files() {
        let tasks = Tree::new("whole", INITIAL).read();
        let key = ProcessKey { tgid: 1, start_ns: 1_010_000_000 };
        let comm = *b"init\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(tasks.rows, [Task { key, comm, memory: Some(held()) }]);
        assert_eq!((tasks.whole, tasks.exact), (true, false));
    }

    #[test]
    fn a_name_is_any_bytes_and_parentheses_too() {
        for name in [&b"a) S 1 (b"[..], b"tab\tnew\nline", b"\xff\xfe ()", b"", b"fifteen letters"]
        {
            let tree = Tree::new("name", INITIAL).process(7, name, 'S', 1);
            let comm = tree.other().unwrap().comm;
            assert_eq!(comm[..name.len()], *name);
            assert!(comm[name.len()..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_leader_that_ended_before_its_threads_has_their_memory() {
        let tree = Tree::new("leader", INITIAL)
            .process(7, b"x", 'Z', 3)
            .file("7/status", DEAD)
            .file("7/task/7/status", DEAD)
            .file("7/task/8/gone", "")
            .file("7/task/9/status", STATUS);
        assert_eq!(tree.other().unwrap().memory, Some(held()));
    }

    #[test]
    fn who_has_lost_its_memory_is_there_still() {
        let tree = Tree::new("exiting", INITIAL).process(7, b"x", 'R', 1).file("7/status", DEAD);
        assert_eq!(tree.other().unwrap().memory, None);
    }

    #[test]
    fn the_dead_the_kernels_own_and_the_vanished_are_left_out() {
        const PF_KTHREAD: u32 = 2_129_984;
        let tree = Tree::new("nobody", INITIAL)
            .process(7, b"x", 'Z', 1)
            .stat(8, b"kworker/0:1-events", 'I', 1, PF_KTHREAD)
            .file("8/status", DEAD)
            // It went between the listing and the first, or the second file.
            .file("9/cwd", "")
            .stat(10, b"x", 'S', 1, 0);
        assert_eq!(tree.other(), None);
        assert!(tree.read().whole);
    }

    #[test]
    fn a_kernel_without_hugetlbfs_is_not_one_with_no_hugepages_in_use() {
        let without: String =
            STATUS.split_inclusive('\n').filter(|line| !line.starts_with("Huge")).collect();
        let tree = Tree::new("huge", INITIAL).process(7, b"x", 'S', 1).file("7/status", without);
        assert_eq!(tree.other().unwrap().memory.unwrap().hugetlb_bytes, None);
    }

    #[test]
    fn limits_are_read_of_those_alone_that_hold_something() {
        let nothing = STATUS.replace("3072", "0").replace("64 kB", "0 kB");
        let tree = Tree::new("idle", INITIAL)
            .process(7, b"x", 'S', 1)
            .file("7/status", format!("CapEff:\t0000000000004000\n{nothing}"))
            .file("7/limits", "nobody reads that");
        fs::create_dir(tree.0.join("proc/7/ns")).unwrap();
        symlink("user:[4026531837]", tree.0.join("proc/7/ns/user")).unwrap();
        let memory = tree.other().unwrap().memory.unwrap();
        assert_eq!((memory.memlock_limit_bytes, memory.exempt), (None, None));
    }

    #[test]
    fn no_limit_is_the_kernel_s_word_for_it() {
        let limits =
            LIMITS.replace("8388608              unlimited", "unlimited            unlimited");
        let tree = Tree::new("limit", INITIAL).process(7, b"x", 'S', 1).file("7/limits", limits);
        assert_eq!(tree.other().unwrap().memory.unwrap().memlock_limit_bytes, Some(u64::MAX));
    }

    #[test]
    fn what_can_not_be_read_costs_its_process_and_no_other() {
        for (at, (file, text)) in
            [("7/stat", "7 (x"), ("7/limits", "Max locked memory   much"), ("7/status", "")]
                .into_iter()
                .enumerate()
        {
            let tree = Tree::new(&format!("strange-{at}"), INITIAL).process(7, b"x", 'S', 1);
            let tree = if text.is_empty() { tree.folder_for(file) } else { tree.file(file, text) };
            assert_eq!(tree.other(), None, "{file}");
            let tasks = tree.read();
            assert!(!tasks.whole, "{file}");
            assert!(tasks.unread.is_some_and(|why| why.contains("/proc/7: ")), "{file}");
        }
    }

    #[test]
    fn a_namespace_of_its_own_or_a_hidden_first_process_is_not_the_whole_host() {
        assert!(!Tree::new("inner", "pid:[4026532200]").read().whole);
        let hidden = Tree::new("hidden", INITIAL).process(7, b"x", 'S', 1);
        fs::remove_dir_all(hidden.0.join("proc/1")).unwrap();
        let tasks = hidden.read();
        assert_eq!((tasks.rows.len(), tasks.whole), (1, false));
    }

    #[test]
    fn without_proc_there_is_an_error_that_names_it() {
        let error = read_tasks(&Host::at("/nonexistent")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/proc: "), "{error}");
    }
}
