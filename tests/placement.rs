//! Where memory lies, by samples, on this machine's own kernel: against what smaps and numa_maps say
//! of the same memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

use mrscope::host::{Host, Lack, Presence, Processes, Rights, Sampled, Sampler, memory_nodes};
use mrscope::model::{Place, Placement, ProcessKey};

const MIB: u64 = 1 << 20;

/// One test at a time: a child that one forks shares the pages of another, which so come apart.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn base() -> u64 {
    rustix::param::page_size() as u64
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn transparent() -> Option<u64> {
    number("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
}

fn key_of(tgid: u32) -> ProcessKey {
    let ticks = Processes::of(&Host::live()).started(tgid).expect("it runs");
    ProcessKey::of_tick(tgid, ticks)
}

fn sampler(rights: Rights) -> Sampler {
    Sampler::new(&Host::live(), rights)
}

/// Of this process, with all that the test may do.
fn sampled(ranges: &[(u64, u64)]) -> Sampled {
    let sampler = sampler(Rights::in_effect().for_sampling());
    sampler.sample(key_of(std::process::id()), ranges).expect("this process runs")
}

/// Memory of this process, unmapped at the end.
struct Memory {
    start: u64,
    bytes: u64,
}

impl Memory {
    /// At a multiple of a transparent hugepage, if there are any. None where it can't be had.
    fn map(bytes: u64, flags: i32) -> Option<Self> {
        let align = if flags & libc::MAP_HUGETLB == 0 { transparent().unwrap_or(0) } else { 0 };
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let room = (bytes + align) as usize;
        // SAFETY: new memory, wherever the kernel wants it.
        let start = unsafe { libc::mmap(null_mut(), room, rights, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = (start as u64).next_multiple_of(align.max(1));
        Some(Self { start, bytes })
    }

    fn advise(&self, from: u64, to: u64, advice: i32) {
        let start = (self.start + from) as *mut libc::c_void;
        // SAFETY: within memory of ours; the advice changes nothing that is in it.
        let done = unsafe { libc::madvise(start, (to - from) as usize, advice) };
        assert!(done == 0 || transparent().is_none());
    }

    fn touch(&self, from: u64, to: u64) {
        for at in (from..to).step_by(base() as usize) {
            // SAFETY: within memory of ours.
            unsafe { ((self.start + at) as *mut u8).write_volatile(1) };
        }
    }

    /// By samples of each piece of so many bytes.
    fn placement(&self, piece: u64) -> Placement {
        let pieces = (0..self.bytes).step_by(piece as usize);
        let ranges: Vec<_> = pieces.map(|at| (self.start + at, piece)).collect();
        let sampled = sampled(&ranges);
        assert_eq!((&sampled.no_sizes, &sampled.no_nodes), (&None, &None));
        assert_eq!(sampled.placements.len(), ranges.len());
        let mut all = Placement::default();
        sampled.placements.iter().for_each(|placement| all.merge(placement));
        all
    }

    /// What smaps says of the mappings that begin in it: bytes that are there by the size of their
    /// pages.
    fn smaps(&self) -> BTreeMap<u64, u64> {
        let text = fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut inside, mut page, mut seen) = (false, 0, BTreeMap::new());
        let mut add = |size, bytes| *seen.entry(size).or_default() += bytes;
        let kib = |rest: &str| rest.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap();
        let mut resident = 0;
        for line in text.lines() {
            if let Some((from, _)) = line.split_once(' ').and_then(|(at, _)| at.split_once('-')) {
                let from = u64::from_str_radix(from, 16).unwrap();
                inside = (self.start..self.start + self.bytes).contains(&from);
            }
            let Some((name, rest)) = line.split_once(':').filter(|_| inside) else { continue };
            match name {
                "KernelPageSize" => page = kib(rest) << 10,
                "Rss" => resident = kib(rest) << 10,
                "AnonHugePages" if page == base() => {
                    let huge = kib(rest) << 10;
                    add(page, resident - huge);
                    add(transparent().unwrap_or(page), huge);
                }
                "Private_Hugetlb" if page != base() => add(page, kib(rest) << 10),
                _ => {}
            }
        }
        seen.retain(|_, bytes| *bytes > 0);
        seen
    }

    /// What numa_maps says of the same: bytes by node.
    fn numa_maps(&self) -> BTreeMap<u32, u64> {
        let text = fs::read_to_string("/proc/self/numa_maps").unwrap();
        let mut seen = BTreeMap::new();
        for line in text.lines() {
            let at = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
            if !(self.start..self.start + self.bytes).contains(&at) {
                continue;
            }
            let words = || line.split(' ').filter_map(|word| word.split_once('='));
            let page = words().find(|word| word.0 == "kernelpagesize_kB");
            let page = page.map_or(0, |(_, kib)| kib.parse::<u64>().unwrap() << 10);
            for (node, pages) in words().filter_map(|(name, n)| Some((name.strip_prefix('N')?, n)))
            {
                *seen.entry(node.parse().unwrap()).or_default() +=
                    pages.parse::<u64>().unwrap() * page;
            }
        }
        seen
    }

    /// Compares all of it, piece by piece, with both.
    fn is_told(&self, piece: u64) -> Placement {
        let placement = self.placement(piece);
        let (mut sizes, mut nodes, mut absent) = (BTreeMap::new(), BTreeMap::new(), 0);
        for (place, bytes) in placement.iter() {
            if let (Some(size), Some(node)) = (place.page_bytes, place.node) {
                *sizes.entry(size).or_default() += bytes;
                *nodes.entry(node).or_default() += bytes;
            } else {
                assert_eq!(place, Place::default());
                absent += bytes;
            }
        }
        println!("{placement:?}");
        assert_eq!(sizes, self.smaps());
        assert_eq!(nodes, self.numa_maps());
        assert_eq!(placement.bytes(), self.bytes);
        assert_eq!(absent, self.bytes - sizes.values().sum::<u64>());
        placement
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: memory of ours that nothing refers to.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.bytes as usize) };
    }
}

fn only(placement: &Placement) -> Place {
    let places: Vec<_> = placement.iter().collect();
    assert_eq!(places.len(), 1, "{places:?}");
    places[0].0
}

#[test]
fn base_pages_are_told_and_what_is_not_there_is_not() {
    let _alone = alone();
    let memory = Memory::map(16 * MIB, 0).unwrap();
    memory.advise(0, memory.bytes, libc::MADV_NOHUGEPAGE);
    assert_eq!(only(&memory.is_told(memory.bytes)), Place::default());
    memory.touch(0, 8 * MIB);
    let half = memory.is_told(memory.bytes);
    assert_eq!(half.iter().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [8 * MIB; 2]);
    memory.touch(8 * MIB, 16 * MIB);
    assert_eq!(only(&memory.is_told(memory.bytes)).page_bytes, Some(base()));
}

/// Each is a piece, so whatever became huge is exactly told.
#[test]
fn transparent_hugepages_are_told_from_base_pages_beside_them() {
    let _alone = alone();
    let huge = transparent().unwrap_or(base());
    let memory = Memory::map(32 * huge, 0).unwrap();
    memory.advise(0, 16 * huge, libc::MADV_HUGEPAGE);
    memory.advise(16 * huge, 32 * huge, libc::MADV_NOHUGEPAGE);
    memory.touch(0, memory.bytes);
    memory.is_told(huge);
}

/// A huge page of which the process has lost a part is still one, though no smaps counts it.
#[test]
fn a_transparent_hugepage_that_is_mapped_by_base_pages_is_huge() {
    let _alone = alone();
    let huge = transparent().unwrap_or(base());
    let memory = Memory::map(8 * huge, 0).unwrap();
    memory.advise(0, memory.bytes, libc::MADV_HUGEPAGE);
    memory.touch(0, memory.bytes);
    let whole = memory.is_told(huge);
    let quarter = huge / 4 / base() * base();
    memory.advise(0, quarter, libc::MADV_DONTNEED);
    let rest = sampled(&[(memory.start + quarter, memory.bytes - quarter)]).placements.remove(0);
    let sizes = |placement: &Placement| {
        placement.iter().map(|(place, _)| place.page_bytes).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&rest), sizes(&whole));
}

/// Of each size whose pool has a free page; where it has none there is nothing to tell.
#[test]
fn pages_of_hugetlbfs_are_told_by_their_size() {
    let _alone = alone();
    let nodes = memory_nodes(&Host::live()).unwrap();
    for entry in fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let size = name.trim_start_matches("hugepages-").trim_end_matches("kB");
        let size = size.parse::<u64>().unwrap() << 10;
        let flags = libc::MAP_HUGETLB | (size.trailing_zeros() as i32) << libc::MAP_HUGE_SHIFT;
        let free = number(&format!("/sys/kernel/mm/hugepages/{name}/free_hugepages")).unwrap();
        let Some(memory) = Memory::map(size, flags) else {
            assert_eq!(free, 0, "pages of {size} bytes are free");
            continue;
        };
        memory.touch(0, memory.bytes);
        let place = only(&memory.is_told(memory.bytes));
        assert_eq!(place.page_bytes, Some(size));
        assert!(nodes.iter().any(|node| Some(node.number) == place.node));
    }
}

#[test]
fn ranges_are_told_one_by_one_on_their_whole_pages() {
    let _alone = alone();
    let memory = Memory::map(4 * MIB, 0).unwrap();
    memory.touch(0, 2 * MIB);
    let within = (memory.start + base() - 1, 2);
    let beyond = (memory.start + 3 * MIB, 1);
    let told = sampled(&[within, beyond, (memory.start, 0)]);
    let bytes: Vec<_> = told.placements.iter().map(Placement::bytes).collect();
    assert_eq!(bytes, [2 * base(), base(), 0]);
    assert!(only(&told.placements[0]).node.is_some());
    assert_eq!(only(&told.placements[1]), Place::default());
}

/// Another process, which ends with the test.
struct Other(Child);

impl Other {
    fn of_user(uid: u32) -> Self {
        Self(Command::new("sleep").arg("1000").uid(uid).spawn().unwrap())
    }

    /// Its stack, of which a page is there as long as it lives.
    fn stack(&self) -> (u64, u64) {
        let text = fs::read_to_string(format!("/proc/{}/maps", self.0.id())).unwrap();
        let line = text.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let (_, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (u64::from_str_radix(end, 16).unwrap() - base(), base())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_has_ended_or_whose_pid_is_another_s_has_none() {
    let _alone = alone();
    let mut other = Other::of_user(0);
    let (key, stack) = (key_of(other.0.id()), other.stack());
    let sampler = sampler(Rights::in_effect().for_sampling());
    let told = sampler.sample(key, &[stack]).unwrap();
    assert_eq!(only(&told.placements[0]).page_bytes, Some(base()));
    let before = ProcessKey { start_ns: key.start_ns - 10_000_000, ..key };
    assert_eq!(sampler.sample(before, &[stack]), None);
    other.0.kill().unwrap();
    other.0.wait().unwrap();
    assert_eq!(sampler.sample(key, &[stack]), None);
}

/// A child whose leader has ended, and a thread of it has not.
struct Leaderless(i32);

impl Leaderless {
    fn start() -> Self {
        extern "C" fn waiting(_: *mut libc::c_void) -> i32 {
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        const STACK: usize = 64 << 10;
        let mut stack = vec![0u8; STACK];
        // SAFETY: the child makes system calls only, and its thread has a stack of its own, in its
        // copy of this memory.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let flags = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
            // SAFETY: as above.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::clone(waiting, stack.as_mut_ptr().add(STACK).cast(), flags, null_mut());
                libc::syscall(libc::SYS_exit, 0);
            }
        }
        while !fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        Self(pid)
    }
}

impl Drop for Leaderless {
    fn drop(&mut self) {
        // SAFETY: a child of ours that nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, null_mut(), libc::__WALL);
        }
    }
}

#[test]
fn a_process_whose_leader_ended_is_asked_by_another_thread() {
    let _alone = alone();
    let memory = Memory::map(MIB, 0).unwrap();
    memory.touch(0, memory.bytes);
    let child = Leaderless::start();
    let range = (memory.start, memory.bytes);
    let rights = Rights::in_effect().for_sampling();
    let told = sampler(rights).sample(key_of(child.0 as u32), &[range]).unwrap();
    assert_eq!(told, sampled(&[range]));
    assert_eq!(only(&told.placements[0]).page_bytes, Some(base()));
}

/// What of sizes and nodes is told of a process of that user to a thread that keeps so much, and
/// what is said of the rest. The thread is of the first user, the process of the second.
fn told_to(rights: Rights, [own, uid]: [u32; 2]) -> ([bool; 2], [Option<String>; 2]) {
    let other = Other::of_user(uid);
    let (key, stack) = (key_of(other.0.id()), other.stack());
    let thread = std::thread::spawn(move || {
        // SAFETY: changes the user of this thread alone, which keeps what it may do.
        unsafe {
            libc::prctl(libc::PR_SET_KEEPCAPS, 1);
            assert_eq!(libc::syscall(libc::SYS_setresuid, own, own, own), 0);
        }
        let kept = rights.keep().unwrap();
        assert_eq!(kept, rights, "the test has all capabilities that it gives up");
        sampler(kept).sample(key, &[stack]).unwrap()
    });
    let told = thread.join().unwrap();
    let place = only(&told.placements[0]);
    let why = |lack: Option<Lack>| lack.map(|lack| lack.to_string());
    ([place.page_bytes.is_some(), place.node.is_some()], [why(told.no_sizes), why(told.no_nodes)])
}

#[test]
fn what_capabilities_are_lacking_for_is_said() {
    const FRAMES: &str = "reading page frames takes CAP_SYS_ADMIN";
    const FILE: &str = "opening /proc/PID/pagemap takes CAP_DAC_READ_SEARCH";
    const BOTH: &str = "opening /proc/PID/pagemap takes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH";
    const FLAGS: &str = "opening /proc/kpageflags takes CAP_DAC_READ_SEARCH";
    const NODES: &str = "move_pages of other processes takes CAP_SYS_PTRACE";
    let _alone = alone();
    let said = |why: Option<&str>| why.map(str::to_owned);
    let all = Rights::SAMPLING.for_sampling();
    let no_files = Rights::SAMPLING.only(Rights::COUNTING);
    let (root, nobody) = (0, 65534);
    for (rights, users, told, no_sizes, no_nodes) in [
        (all, [root, root], [true, true], None, None),
        (all, [root, nobody], [true, true], None, None),
        (all, [nobody, root], [true, true], None, None),
        (no_files, [root, root], [true, true], None, None),
        (no_files, [root, nobody], [false, true], Some(FILE), None),
        (no_files, [nobody, nobody], [false, true], Some(FLAGS), None),
        (Rights::PROCESSES, [root, root], [false, true], Some(FRAMES), None),
        (Rights::PROCESSES, [root, nobody], [false, true], Some(FILE), None),
        (Rights::NONE, [root, root], [false, false], Some(BOTH), Some(NODES)),
    ] {
        let expected = (told, [said(no_sizes), said(no_nodes)]);
        assert_eq!(told_to(rights, users), expected, "{rights:?} {users:?}");
    }
}

/// A copy that has this very process in it.
#[test]
fn of_a_copied_host_nothing_is_looked_at() {
    let _alone = alone();
    let pid = std::process::id();
    let root = std::env::temp_dir().join(format!("mrscope-placement-{pid}"));
    let stat = format!("proc/{pid}/stat");
    for folder in ["proc/self/ns", stat.trim_end_matches("/stat")] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    symlink(fs::read_link("/proc/self/ns/pid").unwrap(), root.join("proc/self/ns/pid")).unwrap();
    fs::write(root.join(&stat), fs::read(Path::new("/").join(&stat)).unwrap()).unwrap();
    let (host, key) = (Host::at(&root), key_of(pid));
    assert_eq!(Processes::of(&host).presence(pid, key.start_ns), Presence::Runs);
    let sampler = Sampler::new(&host, Rights::in_effect().for_sampling());
    let here = &raw const key as u64 / base() * base() + base() - 1;
    let told = sampler.sample(key, &[(here, 2)]).unwrap();
    fs::remove_dir_all(&root).unwrap();
    assert_eq!((&told.no_sizes, &told.no_nodes), (&Some(Lack::Hidden), &Some(Lack::Hidden)));
    assert_eq!(told.placements[0].iter().collect::<Vec<_>>(), [(Place::default(), 2 * base())]);
}
