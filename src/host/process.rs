//! Whether a process that the kernel told us of still runs.

use std::path::Path;

use procfs::FromRead;
use procfs::process::Stat;
use rustix::process::geteuid;

use super::{Host, Rights};

/// A clock tick, in which /proc gives times.
pub(super) const NS_PER_TICK: u64 = 1_000_000_000 / 100;

/// What became of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Runs,
    /// Gone, or dead and waiting for its parent, or its pid is another's now.
    Gone,
    /// /proc does not tell (hidden, or not readable).
    Unknown,
}

/// Whose a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadOf {
    /// The process of that pid.
    Process(u32),
    /// Ended, or dead and waiting for its parent: it holds nothing.
    Gone,
    /// /proc does not tell (hidden, not readable, or of another pid namespace).
    Unknown,
}

/// The processes that /proc shows.
#[derive(Debug)]
pub struct Processes<'a> {
    host: &'a Host,
    all_visible: bool,
}

impl<'a> Processes<'a> {
    #[must_use]
    pub fn of(host: &'a Host) -> Self {
        /// PROC_PID_INIT_INO: the pid namespace that the kernel started with.
        const INITIAL: &str = "pid:[4026531836]";
        let namespace = std::fs::read_link(host.proc("self/ns/pid"));
        let initial = namespace.is_ok_and(|at| at.as_os_str() == INITIAL);
        Self { host, all_visible: initial && shows_all(host) }
    }

    /// Whether the pids of the kernel are those of this /proc.
    #[must_use]
    pub fn all_visible(&self) -> bool {
        self.all_visible
    }

    /// Looks a process up by pid and by the start time of its leader in nanoseconds of boot time.
    ///
    /// /proc gives the start in clock ticks of 10 ms, so that is how exactly it is compared.
    #[must_use]
    pub fn presence(&self, tgid: u32, start_ns: u64) -> Presence {
        if !self.all_visible {
            return Presence::Unknown;
        }
        match std::fs::read(self.host.proc(format!("{tgid}/stat"))) {
            Ok(stat) => judge(&stat, start_ns),
            Err(error) if vanished(&error) => Presence::Gone,
            Err(_) => Presence::Unknown,
        }
    }

    /// When a process started, in clock ticks since boot. None where it is gone, or its pid here is
    /// not the kernel's own.
    #[must_use]
    pub fn started(&self, tgid: u32) -> Option<u64> {
        let stat = std::fs::read(self.host.proc(format!("{tgid}/stat")));
        let stat = stat.ok().filter(|_| self.all_visible)?;
        Some(Stat::from_read(stat.as_slice()).ok()?.starttime)
    }

    /// The process of a thread, by the thread's id alone: /proc has a folder for each, though it
    /// lists none but leaders'. The id may be another thread's by now, if that one has ended.
    #[must_use]
    pub fn of_thread(&self, tid: u32) -> ThreadOf {
        if !self.all_visible {
            return ThreadOf::Unknown;
        }
        match std::fs::read(self.host.proc(format!("{tid}/status"))) {
            Ok(status) => thread_of(&String::from_utf8_lossy(&status)),
            Err(error) if vanished(&error) => ThreadOf::Gone,
            Err(_) => ThreadOf::Unknown,
        }
    }

    /// Whether a thread of a process is known to have ended.
    #[must_use]
    pub fn thread_is_gone(&self, tgid: u32, tid: u32) -> bool {
        let task = self.host.proc(format!("{tgid}/task/{tid}"));
        self.all_visible && std::fs::metadata(task).is_err_and(|error| vanished(&error))
    }
}

/// Whether /proc is mounted so that it hides processes of others from who lacks CAP_SYS_PTRACE.
#[must_use]
pub fn hides_processes(host: &Host) -> bool {
    host.proc_text("self/mountinfo").is_ok_and(|text| hides(&text, &host.proc))
}

fn shows_all(host: &Host) -> bool {
    // Some users see all by their group. Root sees root's by its uid, and the first is one of them.
    let by_group = || !geteuid().is_root() && host.proc("1/stat").exists();
    !hides_processes(host) || Rights::in_effect().shows_processes() || by_group()
}

/// Lines are `id parent device root PLACE options optional... - type source SUPER_OPTIONS`; the last
/// mount on a place is the one that is seen.
fn hides(mountinfo: &str, place: &Path) -> bool {
    let option_at = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        let at = mount.split_whitespace().nth(4)?;
        let options = file_system.split_whitespace().nth(2)?;
        let hidepid = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
        (Path::new(at) == place).then(|| hidepid.unwrap_or("0").to_owned())
    };
    let last = mountinfo.lines().rev().find_map(option_at);
    last.is_some_and(|how| !matches!(how.as_str(), "0" | "off"))
}

/// Never there, or gone between open and read.
pub(super) fn vanished(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Dead, without a living thread, and waiting for its parent.
pub(super) fn dead(stat: &Stat) -> bool {
    matches!(stat.state, 'Z' | 'X' | 'x') && stat.num_threads <= 1
}

fn judge(stat: &[u8], start_ns: u64) -> Presence {
    let Ok(stat) = Stat::from_read(stat) else {
        return Presence::Unknown;
    };
    if dead(&stat) || stat.starttime != start_ns / NS_PER_TICK {
        Presence::Gone
    } else {
        Presence::Runs
    }
}

fn thread_of(status: &str) -> ThreadOf {
    let word = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next())
    };
    // A dead leader of living threads is still the leader of them.
    let alone = word("Threads").is_none_or(|count| matches!(count, "0" | "1"));
    let dead = matches!(word("State"), Some("Z" | "X" | "x")) && alone;
    match word("Tgid").and_then(|tgid| tgid.parse().ok()) {
        Some(_) if dead => ThreadOf::Gone,
        Some(tgid) => ThreadOf::Process(tgid),
        None => ThreadOf::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: &str, tgid: u32, threads: u32) -> String {
        format!(
            "Name:\tTgid: 1\nUmask:\t0022\nState:\t{state}\nTgid:\t{tgid}\nNgid:\t0\nPid:\t78\n\
             Threads:\t{threads}\nVmPin:\t0 kB\n"
        )
    }

    #[test]
    fn a_thread_s_process_is_that_of_its_group() {
        let of = |state, threads| thread_of(&status(state, 77, threads));
        assert_eq!(of("S (sleeping)", 3), ThreadOf::Process(77));
        assert_eq!(of("Z (zombie)", 2), ThreadOf::Process(77));
        assert_eq!(of("Z (zombie)", 1), ThreadOf::Gone);
        assert_eq!(of("X (dead)", 0), ThreadOf::Gone);
        assert_eq!(thread_of("no status"), ThreadOf::Unknown);
    }

    #[test]
    fn a_thread_of_this_machine_is_found_and_gone_when_it_ended() {
        let host = Host::live();
        let processes = Processes { host: &host, all_visible: true };
        let (say, told) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            say.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = wait.recv();
        });
        let tid = told.recv().unwrap();
        assert_eq!(processes.of_thread(tid), ThreadOf::Process(std::process::id()));
        let hidden = Processes { host: &host, all_visible: false };
        assert_eq!(hidden.of_thread(tid), ThreadOf::Unknown);
        drop(end);
        thread.join().unwrap();
        // A join returns when the thread's memory is given back, before it is taken off the list.
        while processes.of_thread(tid) != ThreadOf::Gone {
            std::thread::yield_now();
        }
    }

    fn stat(state: char, threads: u32, start: u64) -> Vec<u8> {
        format!(
            "77 (a) b) {state} 1 77 77 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 {threads} 0 {start} \
             1000 10 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        )
        .into_bytes()
    }

    #[test]
    fn a_proc_that_hides_processes_is_told_by_the_last_mount_on_its_place() {
        let hides = |text: &str| hides(text, Path::new("/proc"));
        let plain = "22 27 0:20 / /proc rw,nosuid shared:12 - proc proc rw\n";
        let elsewhere = "23 27 0:20 / /host/proc rw - proc proc rw,hidepid=invisible\n";
        let hidden = "24 27 0:20 / /proc rw,nosuid - proc proc rw,gid=5,hidepid=2\n";
        assert!(!hides(plain) && !hides(&format!("{plain}{elsewhere}")));
        assert!(hides(&format!("{plain}{hidden}")));
        assert!(!hides(&format!("{hidden}{plain}")));
        assert!(!hides("24 27 0:20 / /proc rw - proc proc rw,hidepid=off\n") && !hides("junk"));
    }

    #[test]
    fn a_reused_pid_is_not_the_process_that_had_it() {
        assert_eq!(judge(&stat('S', 1, 500), 5_009_999_999), Presence::Runs);
        assert_eq!(judge(&stat('S', 1, 501), 5_009_999_999), Presence::Gone);
    }

    #[test]
    fn a_zombie_leader_with_a_living_thread_runs() {
        assert_eq!(judge(&stat('Z', 2, 500), 5_000_000_000), Presence::Runs);
        assert_eq!(judge(&stat('Z', 1, 500), 5_000_000_000), Presence::Gone);
    }

    #[test]
    fn a_line_that_is_no_stat_tells_nothing() {
        assert_eq!(judge(b"garbage", 0), Presence::Unknown);
    }
}
