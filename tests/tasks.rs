//! Both readers of all processes on this machine's own kernel, against what /proc says of children
//! that hold what they were told to hold.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

use mrscope::ebpf::{EventsError, TaskIterator};
use mrscope::host::{Host, read_tasks};
use mrscope::model::{Attach, HookState, Memory, Task, Tasks};

const MIB: u64 = 1 << 20;
const NS_PER_TICK: u64 = 10_000_000;

/// One test at a time: the children of one are in what another reads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn by_kernel() -> Tasks {
    TaskIterator::start(&Host::live()).unwrap().read().unwrap()
}

fn by_proc() -> Tasks {
    read_tasks(&Host::live()).unwrap()
}

/// The row of a process; no process has two.
fn row(tasks: &Tasks, pid: i32) -> Option<Task> {
    let mut rows = tasks.rows.iter().filter(|task| task.key.tgid == pid as u32);
    let row = rows.next().copied();
    assert_eq!(rows.next(), None);
    row
}

fn memory(tasks: &Tasks, pid: i32) -> Memory {
    row(tasks, pid).expect("the process has a row").memory.expect("and memory")
}

/// Bytes of a line in kB of /proc/PID/status.
fn status_bytes(path: &str, name: &str) -> Option<u64> {
    let text = fs::read(format!("/proc/{path}/status")).unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024)
}

/// Fields of /proc/PID/stat behind the name: the first is the state.
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&stat).into_owned();
    Some(text.rsplit_once(')').unwrap().1.split_whitespace().map(str::to_owned).collect())
}

/// What a role must do; a child that can't ends, and its parent's reading with it.
macro_rules! must {
    ($call:expr) => {{
        // SAFETY: a system call on memory and descriptors of this child alone.
        let result = unsafe { $call };
        if result < 0 {
            // SAFETY: ends the child without running anything of its parent's.
            unsafe { libc::_exit(1) }
        }
        result
    }};
}

/// A child that waits where its role left it, and ends with its test.
struct Child(i32);

impl Child {
    /// Forks; the role runs in the child, tells what it was asked for by [`tell`], and makes system
    /// calls only: the other threads of the test are not there. Returns what was told.
    fn start(role: fn(i32)) -> (Self, i32) {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        // SAFETY: both are open and ours.
        let [from, to] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            must!(libc::close(from.as_raw_fd()));
            role(to.as_raw_fd());
            wait_for_the_end();
        }
        drop(to);
        let child = Self(pid);
        let mut told = [0; 4];
        fs::File::from(from).read_exact(&mut told).expect("the child did what its role says");
        (child, i32::from_ne_bytes(told))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of ours that nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, null_mut(), libc::__WALL);
        }
    }
}

fn tell(to: i32, what: i32) {
    must!(libc::write(to, what.to_ne_bytes().as_ptr().cast(), 4));
}

fn wait_for_the_end() -> ! {
    must!(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL));
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

extern "C" fn waiting(_: *mut libc::c_void) -> i32 {
    wait_for_the_end()
}

fn map(bytes: u64, flags: i32) -> *mut libc::c_void {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, wherever the kernel wants it.
    unsafe { libc::mmap(null_mut(), bytes as usize, rights, flags, -1, 0) }
}

fn lock(bytes: u64) {
    must!(libc::mlock(map(bytes, 0), bytes as usize));
}

/// A task of its own kind that waits, with a stack of its own. Returns its pid.
fn clone_waiting(flags: i32) -> i32 {
    const STACK: u64 = 64 << 10;
    let stack = map(STACK, 0).cast::<u8>().wrapping_add(STACK as usize);
    must!(libc::clone(waiting, stack.cast(), flags, null_mut()))
}

#[test]
fn locked_memory_and_its_limit_are_those_of_the_process() {
    let _alone = alone();
    let (child, _) = Child::start(|to| {
        let limit = libc::rlimit { rlim_cur: 5 * MIB, rlim_max: 6 * MIB };
        must!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit));
        lock(3 * MIB);
        tell(to, 0);
    });
    assert_eq!(status_bytes(&child.0.to_string(), "VmLck"), Some(3 * MIB));
    for tasks in [by_kernel(), by_proc()] {
        let memory = memory(&tasks, child.0);
        assert_eq!(memory.locked_bytes, 3 * MIB);
        assert_eq!(memory.memlock_limit_bytes, Some(5 * MIB));
    }
}

/// What /proc says is the soft limit.
fn limit(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap();
    match line.split_whitespace().next().unwrap() {
        "unlimited" => Memory::NO_LIMIT,
        bytes => bytes.parse().unwrap(),
    }
}

#[test]
fn a_process_without_a_limit_has_none() {
    let _alone = alone();
    let (child, _) = Child::start(|to| {
        let none = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a limit of this child's. A sandbox may refuse it: then the old one stays.
        unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) };
        lock(4096);
        tell(to, 0);
    });
    println!("limit {:?}", limit(child.0));
    for tasks in [by_kernel(), by_proc()] {
        assert_eq!(memory(&tasks, child.0).memlock_limit_bytes, Some(limit(child.0)));
    }
}

#[test]
fn whoever_locks_what_it_maps_later_is_known() {
    let _alone = alone();
    let (child, _) = Child::start(|to| {
        must!(libc::mlockall(libc::MCL_FUTURE));
        tell(to, 0);
    });
    let (other, _) = Child::start(|to| {
        lock(MIB);
        tell(to, 0);
    });
    let tasks = by_kernel();
    assert_eq!(memory(&tasks, child.0).locks_future, Some(true));
    assert_eq!(memory(&tasks, other.0).locks_future, Some(false));
    assert_eq!(memory(&by_proc(), child.0).locks_future, None);
}

#[test]
fn no_limit_holds_for_who_has_the_capability() {
    let _alone = alone();
    let (root, _) = Child::start(|to| {
        lock(4096);
        tell(to, 0);
    });
    let (user, _) = Child::start(|to| {
        lock(4096);
        must!(libc::setuid(65534));
        tell(to, 0);
    });
    for tasks in [by_kernel(), by_proc()] {
        assert_eq!(memory(&tasks, root.0).exempt, Some(true));
        assert_eq!(memory(&tasks, user.0).exempt, Some(false));
    }
}

/// Pins 64 KiB as io_uring does, where the kernel lets it. Without rights of root: with them, 7.3
/// does not count what is pinned.
fn pin_by_io_uring() {
    const REGISTER_BUFFERS: i32 = 0;
    const BYTES: u64 = 64 << 10;
    let mut parameters = [0u64; 15];
    must!(libc::setuid(65534));
    let buffer = libc::iovec { iov_base: map(BYTES, 0), iov_len: BYTES as usize };
    // SAFETY: a structure of 120 zeroed bytes, and a buffer of this child's. Either call may fail.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr());
        libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_BUFFERS, &raw const buffer, 1);
    }
}

#[test]
fn every_figure_is_that_of_proc() {
    let _alone = alone();
    let (child, _) = Child::start(|to| {
        let huge = map(2 * MIB, libc::MAP_HUGETLB);
        if huge != libc::MAP_FAILED {
            // SAFETY: it is mapped, and the pool has a page set aside for it.
            unsafe { huge.cast::<u8>().write_volatile(1) };
        }
        lock(MIB);
        pin_by_io_uring();
        tell(to, 0);
    });
    let status = |name| status_bytes(&child.0.to_string(), name);
    println!("pinned {:?}, hugepages {:?}", status("VmPin"), status("HugetlbPages"));
    for tasks in [by_kernel(), by_proc()] {
        let memory = memory(&tasks, child.0);
        assert_eq!(Some(memory.pinned_bytes), status("VmPin"));
        assert_eq!(Some(memory.locked_bytes), status("VmLck"));
        assert_eq!(memory.hugetlb_bytes, status("HugetlbPages"));
        assert_eq!(Some(memory.page_table_bytes), status("VmPTE"));
    }
}

#[test]
fn memory_that_two_processes_share_counts_once() {
    let _alone = alone();
    let (child, second) = Child::start(|to| {
        lock(2 * MIB);
        let shared = libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD;
        tell(to, clone_waiting(shared));
    });
    let second = Child(second);
    assert_eq!(status_bytes(&second.0.to_string(), "VmLck"), Some(2 * MIB));
    let tasks = by_kernel();
    assert!(tasks.exact);
    assert_eq!(memory(&tasks, child.0).locked_bytes, 2 * MIB);
    let left = memory(&tasks, second.0);
    assert_eq!((left.locked_bytes, left.page_table_bytes), (0, 0));
    assert_eq!(left.memlock_limit_bytes, memory(&by_proc(), second.0).memlock_limit_bytes);
}

#[test]
fn a_process_that_waits_for_its_parent_is_gone() {
    let _alone = alone();
    let (child, _) = Child::start(|to| {
        tell(to, 0);
        must!(libc::syscall(libc::SYS_exit_group, 0));
    });
    // SAFETY: waits for the end of our child and leaves it a zombie.
    let ended = unsafe {
        let mut info = std::mem::zeroed();
        let how = libc::WEXITED | libc::WNOWAIT;
        libc::waitid(libc::P_PID, child.0 as u32, &raw mut info, how)
    };
    assert_eq!(ended, 0);
    assert_eq!(stat_fields(child.0).unwrap()[0], "Z");
    for tasks in [by_kernel(), by_proc()] {
        assert_eq!(row(&tasks, child.0), None);
    }
}

#[test]
fn a_leader_that_ended_before_its_thread_still_holds() {
    let _alone = alone();
    let (child, thread) = Child::start(|to| {
        lock(MIB);
        let thread = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_FILES;
        tell(to, clone_waiting(thread));
        must!(libc::syscall(libc::SYS_exit, 0));
    });
    while stat_fields(child.0).unwrap()[0] != "Z" {
        std::thread::yield_now();
    }
    assert_eq!(status_bytes(&child.0.to_string(), "VmLck"), None);
    assert_eq!(status_bytes(&format!("{}/task/{thread}", child.0), "VmLck"), Some(MIB));
    for tasks in [by_kernel(), by_proc()] {
        assert_eq!(memory(&tasks, child.0).locked_bytes, MIB);
        assert_eq!(row(&tasks, thread), None);
    }
}

#[test]
fn a_name_is_what_the_process_says_whatever_bytes() {
    const NAME: &[u8] = b"a) Z (\xff\xfe\n\0";
    let _alone = alone();
    let (child, _) = Child::start(|to| {
        must!(libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()));
        tell(to, 0);
    });
    let mut comm = [0; 16];
    comm[..NAME.len()].copy_from_slice(NAME);
    for tasks in [by_kernel(), by_proc()] {
        assert_eq!(row(&tasks, child.0).unwrap().comm, comm);
    }
}

/// Start in ticks of every process that /proc shows: neither dead nor a thread of the kernel's.
fn proc_says() -> BTreeMap<u32, u64> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let number = |field: &String| field.parse::<u64>().unwrap();
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid as u32, stat_fields(pid)?)))
        .filter(|(_, stat)| number(&stat[6]) & PF_KTHREAD == 0)
        .filter(|(_, stat)| stat[0] != "Z" || number(&stat[17]) > 1)
        .map(|(pid, stat)| (pid, number(&stat[19])))
        .collect()
}

/// A sandbox's kernel may hide its own processes from tracing of every kind, and show them in /proc.
fn may_look_into(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok()
}

#[test]
fn every_process_has_a_row_and_nothing_else_has() {
    let _alone = alone();
    for read in [by_kernel, by_proc] {
        let before = proc_says();
        let tasks = read();
        let after = proc_says();
        let rows: BTreeMap<u32, u64> =
            tasks.rows.iter().map(|task| (task.key.tgid, task.key.start_ns)).collect();
        assert_eq!(rows.len(), tasks.rows.len());
        let stayed: Vec<_> = before
            .iter()
            .filter(|(pid, start)| after.get(pid) == Some(start) && may_look_into(**pid))
            .collect();
        assert!(!stayed.is_empty());
        for (pid, start) in stayed {
            assert_eq!(rows.get(pid).map(|ns| ns / NS_PER_TICK), Some(*start), "{pid}");
        }
        for pid in rows.keys() {
            // One that lives on is no thread of the kernel's, and none that had ended before.
            let lives = stat_fields(*pid as i32).is_some_and(|stat| stat[0] != "Z");
            assert!(!lives || before.contains_key(pid) || after.contains_key(pid), "{pid}");
        }
    }
}

#[test]
fn both_readers_agree_on_who_does_not_change() {
    let _alone = alone();
    let (child, _) = Child::start(|to| {
        lock(MIB);
        tell(to, 0);
    });
    let (before, between, after) = (by_kernel(), by_proc(), by_kernel());
    assert_eq!((before.exact, between.exact), (true, false));
    assert_eq!(before.whole, between.whole);
    let mut compared = Vec::new();
    // Without page tables its memory is another's, of whom /proc does not tell.
    let own = |task: &&Task| task.memory.is_none_or(|memory| memory.page_table_bytes > 0);
    for task in before.rows.iter().filter(own).filter(|task| after.rows.contains(task)) {
        let found = row(&between, task.key.tgid as i32).expect("it lived on");
        assert_eq!(found.key.start_ns, task.key.start_ns / NS_PER_TICK * NS_PER_TICK);
        // How it locks what it maps later, /proc does not tell; limits are read of holders alone.
        let told = task.memory.map(|memory| {
            let kernel = Memory { locks_future: None, ..memory };
            if memory.holds() {
                return kernel;
            }
            let exempt = found.memory.and_then(|found| found.exempt.filter(|exempt| !exempt));
            Memory { memlock_limit_bytes: None, exempt, ..kernel }
        });
        assert_eq!((found.comm, found.memory), (task.comm, told));
        compared.push(task.key.tgid);
    }
    assert!(compared.contains(&(child.0 as u32)), "{compared:?}");
}

#[test]
fn its_state_says_how_it_watches() {
    let state = TaskIterator::start(&Host::live()).unwrap().state();
    let expected =
        HookState { hook: "tasks", symbol: "iter/task", attach: Attach::Iterator, trouble: None };
    assert_eq!(state, expected);
}

#[test]
fn without_capabilities_the_kernel_is_denied_and_proc_is_not() {
    let _alone = alone();
    let started = std::thread::spawn(|| {
        const VERSION_3: u32 = 0x2008_0522;
        let (header, none) = ([VERSION_3, 0], [0u32; 6]);
        // SAFETY: a header and two words of each set; it changes this thread alone.
        let status = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
        assert_eq!(status, 0);
        assert!(!read_tasks(&Host::live()).unwrap().rows.is_empty());
        TaskIterator::start(&Host::live())
    });
    let error = started.join().unwrap().expect_err("it is denied");
    assert!(matches!(error, EventsError::Denied(_)), "{error}");
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
}
