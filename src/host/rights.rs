//! What the calling thread may do. Capabilities belong to threads, not to the process: each thread
//! keeps, permitted, what its work needs, and has it in effect only inside [`Rights::with`].

use rustix::process::{Resource, geteuid, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::{Host, Lack, hides_processes};

/// From here on perf events of the whole host need CAP_SYS_ADMIN: a level of Debian's and Ubuntu's
/// kernels, and Debian's default.
const PARANOID_OF_DISTRIBUTIONS: i64 = 3;

/// Capabilities that a thread keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights(CapabilitySet);

impl Rights {
    pub const NONE: Self = Self(CapabilitySet::empty());
    /// All that loading, attaching and reading may need on any host.
    pub const TRACING: Self = Self(
        CapabilitySet::BPF
            .union(CapabilitySet::PERFMON)
            .union(CapabilitySet::SYS_ADMIN)
            .union(CapabilitySet::DAC_OVERRIDE)
            .union(CapabilitySet::SYS_RESOURCE)
            .union(CapabilitySet::SYS_PTRACE),
    );
    /// What shows processes of others in a /proc that is mounted with hidepid, and anywhere in which
    /// user namespace they are and which programs they run.
    pub const PROCESSES: Self = Self(CapabilitySet::SYS_PTRACE);

    /// All that opening counters of CPUs and of processes may need on any host.
    pub const COUNTING: Self = Self(
        CapabilitySet::PERFMON.union(CapabilitySet::SYS_ADMIN).union(CapabilitySet::SYS_PTRACE),
    );

    /// All that looking at the pages of any process may need: to be shown its memory, to be told its
    /// page frames, and to open files of other users.
    pub const SAMPLING: Self = Self(
        CapabilitySet::SYS_PTRACE
            .union(CapabilitySet::SYS_ADMIN)
            .union(CapabilitySet::DAC_READ_SEARCH)
            .union(CapabilitySet::DAC_OVERRIDE),
    );

    /// Page frames are zero for who opened pagemap without.
    pub(super) const LACK_OF_FRAMES: Lack =
        Lack::Rights { what: "reading page frames", capabilities: "CAP_SYS_ADMIN" };

    /// What the calling thread has in effect.
    #[must_use]
    pub fn in_effect() -> Self {
        capabilities(None).map_or(Self::NONE, |held| Self(held.effective))
    }

    /// Gives up all capabilities of the calling thread but these, for good; of these it keeps
    /// those that it has, and none is in effect. Returns what it kept.
    ///
    /// # Errors
    /// The kernel refuses, which it never does for less.
    pub fn keep(self) -> std::io::Result<Self> {
        let kept = capabilities(None)?.permitted.intersection(self.0);
        set(kept, CapabilitySet::empty())?;
        Ok(Self(kept))
    }

    /// Does `work` with these in effect too, and puts back what was in effect, however it ends.
    pub fn with<T>(self, work: impl FnOnce() -> T) -> T {
        struct PutBack(CapabilitySets);
        impl Drop for PutBack {
            fn drop(&mut self) {
                if let Err(error) = set_capabilities(None, self.0) {
                    tracing::error!("a thread keeps capabilities in effect: {error}");
                }
            }
        }
        if self.0.is_empty() {
            return work();
        }
        let raised = capabilities(None).and_then(|before| {
            let back = PutBack(before);
            let effective = before.effective.union(self.0);
            set_capabilities(None, CapabilitySets { effective, ..before }).map(|()| back)
        });
        if let Err(error) = &raised {
            tracing::error!("capabilities that are kept can't be used: {error}");
        }
        work()
    }

    /// Of these, what reading maps takes where the kernel asks for anything (before 5.19).
    #[must_use]
    pub fn for_reading(self) -> Self {
        let bpf = self.0.intersection(CapabilitySet::BPF);
        Self(if bpf.is_empty() { self.0.intersection(CapabilitySet::SYS_ADMIN) } else { bpf })
    }

    #[must_use]
    pub fn only(self, others: Self) -> Self {
        Self(self.0.intersection(others.0))
    }

    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0.union(others.0))
    }

    /// Of these, what attaching again and reading take on this host.
    #[must_use]
    pub fn for_attaching(self, host: &Host, trampolines_on_modules: bool) -> Self {
        let tracing = CapabilitySet::BPF | CapabilitySet::PERFMON;
        let mut needed = tracing;
        if trampolines_on_modules || paranoid(host) || !self.0.contains(tracing) {
            needed |= CapabilitySet::SYS_ADMIN;
        }
        if !geteuid().is_root() {
            needed |= CapabilitySet::DAC_OVERRIDE;
        }
        Self(self.0.intersection(needed)).and(self.for_processes(host))
    }

    /// Of these, what opening counters takes on this host: in processes of others too, if so.
    #[must_use]
    pub fn for_counting(self, host: &Host, in_processes: bool) -> Self {
        let mut needed = CapabilitySet::PERFMON;
        if paranoid(host) || !self.0.contains(CapabilitySet::PERFMON) {
            needed |= CapabilitySet::SYS_ADMIN;
        }
        let rights = Self(self.0.intersection(needed));
        if in_processes { rights.and(self.for_processes(host)) } else { rights }
    }

    /// Of these, what looking at pages takes: of the two that open any file the lesser.
    #[must_use]
    pub fn for_sampling(self) -> Self {
        let mut rights = self.0.intersection(Self::SAMPLING.0);
        if rights.contains(CapabilitySet::DAC_READ_SEARCH) {
            rights.remove(CapabilitySet::DAC_OVERRIDE);
        }
        Self(rights)
    }

    fn opens_any_file(self) -> bool {
        self.0.intersects(CapabilitySet::DAC_READ_SEARCH | CapabilitySet::DAC_OVERRIDE)
    }

    /// What these lack to open another process's pagemap: it is its user's alone, and the kernel
    /// asks besides whether it may be traced. None if it is not capabilities.
    pub(super) fn lack_of_pagemap(self) -> Option<Lack> {
        let capabilities = match (self.shows_processes(), self.opens_any_file()) {
            (true, true) => return None,
            (true, false) => "CAP_DAC_READ_SEARCH",
            (false, true) => "CAP_SYS_PTRACE",
            (false, false) => "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
        };
        Some(Lack::Rights { what: "opening /proc/PID/pagemap", capabilities })
    }

    /// What these lack to open /proc/kpageflags, which is root's. None if it is not capabilities.
    pub(super) fn lack_of_flags(self) -> Option<Lack> {
        let capabilities = "CAP_DAC_READ_SEARCH";
        let lack = Lack::Rights { what: "opening /proc/kpageflags", capabilities };
        (!geteuid().is_root() && !self.opens_any_file()).then_some(lack)
    }

    /// What these lack to be told the nodes of another process's pages. None if it is not
    /// capabilities.
    pub(super) fn lack_of_nodes(self) -> Option<Lack> {
        let lack =
            Lack::Rights { what: "move_pages of other processes", capabilities: "CAP_SYS_PTRACE" };
        (!self.shows_processes()).then_some(lack)
    }

    /// What these lack for counters on this host, with the reason. None if it is not capabilities.
    #[must_use]
    pub fn lacking_to_count(self, host: &Host) -> Option<&'static str> {
        if self.0.contains(CapabilitySet::SYS_ADMIN) {
            return None;
        }
        if paranoid(host) {
            return Some(
                "CAP_SYS_ADMIN (kernel.perf_event_paranoid is 3 or more; at 2 CAP_PERFMON does)",
            );
        }
        let has = self.0.contains(CapabilitySet::PERFMON);
        (!has).then_some("CAP_PERFMON (to count what whole CPUs do, and processes of others)")
    }

    /// Whether they show processes of others where /proc hides those.
    #[must_use]
    pub fn shows_processes(self) -> bool {
        self.0.contains(CapabilitySet::SYS_PTRACE)
    }

    /// Of these, what looking at processes takes on this host: nothing unless it hides them.
    #[must_use]
    pub fn for_processes(self, host: &Host) -> Self {
        if hides_processes(host) { self.only(Self::PROCESSES) } else { Self::NONE }
    }

    /// Whether they suffice to load tracing programs.
    #[must_use]
    pub fn may_trace(self) -> bool {
        self.0.contains(CapabilitySet::BPF | CapabilitySet::PERFMON)
            || self.0.contains(CapabilitySet::SYS_ADMIN)
    }

    /// What these lack of what watching registrations takes on this host, each with its reason.
    #[must_use]
    pub fn lacking(self, host: &Host) -> Vec<String> {
        let mut lacking = Vec::new();
        let mut need = |capability, name: &str, why: &str| {
            if !self.0.contains(capability) && !self.0.contains(CapabilitySet::SYS_ADMIN) {
                lacking.push(format!("{name} ({why})"));
            }
        };
        if paranoid(host) {
            let why = "kernel.perf_event_paranoid is 3 or more; at 2 CAP_BPF and CAP_PERFMON do";
            need(CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN", why);
        } else {
            need(CapabilitySet::BPF, "CAP_BPF", "to load programs");
            need(CapabilitySet::PERFMON, "CAP_PERFMON", "to read the kernel's memory and attach");
        }
        if !geteuid().is_root() && !self.0.contains(CapabilitySet::DAC_OVERRIDE) {
            lacking.push("CAP_DAC_OVERRIDE (tracefs is root's)".to_owned());
        }
        lacking
    }

    /// Why maps may be refused to who may load programs: kernels before 5.11 count them against
    /// RLIMIT_MEMLOCK. None where that can't be it.
    #[must_use]
    pub fn lacks_memlock(self) -> Option<String> {
        let limit = getrlimit(Resource::Memlock).current?;
        let may_raise = self.0.contains(CapabilitySet::SYS_RESOURCE);
        (!may_raise && self.may_trace()).then(|| {
            format!(
                "RLIMIT_MEMLOCK is {limit} bytes, which kernels before 5.11 count maps against: \
                 set it to unlimited (LimitMEMLOCK=infinity), or give CAP_SYS_RESOURCE"
            )
        })
    }
}

fn set(permitted: CapabilitySet, effective: CapabilitySet) -> std::io::Result<()> {
    let inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?)
}

fn paranoid(host: &Host) -> bool {
    host.proc_text("sys/kernel/perf_event_paranoid").is_ok_and(|text| {
        text.trim().parse::<i64>().is_ok_and(|level| level >= PARANOID_OF_DISTRIBUTIONS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What /proc says that this thread has: permitted, in effect.
    fn held() -> [u64; 2] {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        ["CapPrm:", "CapEff:"].map(|name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        })
    }

    #[test]
    fn a_thread_has_what_it_keeps_in_effect_only_while_it_works() {
        let before = held();
        let few = Rights(CapabilitySet::CHOWN | CapabilitySet::KILL);
        std::thread::spawn(move || {
            let kept = few.keep().unwrap();
            let mask = before[0] & few.0.bits();
            assert_eq!(held(), [mask, 0]);
            assert_eq!(kept.with(held), [mask, mask]);
            assert_eq!(kept.with(Rights::in_effect), kept);
            let panicked = std::panic::catch_unwind(|| kept.with(|| panic!("at work")));
            assert!(panicked.is_err());
            assert_eq!(held(), [mask, 0]);
            let one = few.only(Rights(CapabilitySet::KILL));
            let inner = few.with(|| (one.with(held), held()));
            assert_eq!(inner, ([mask, mask], [mask, mask]), "the inner takes nothing away");
            assert_eq!(Rights::NONE.keep().unwrap(), Rights::NONE);
            assert_eq!(few.with(held), [0, 0], "what was given up does not come back");
        })
        .join()
        .unwrap();
        assert_eq!(held(), before, "the others keep theirs");
    }

    fn host(paranoid: &str) -> (Host, std::path::PathBuf) {
        let name = format!("mrscope-rights-{}-{paranoid}", std::process::id());
        let root = std::env::temp_dir().join(name.trim());
        std::fs::create_dir_all(root.join("proc/sys/kernel")).unwrap();
        std::fs::create_dir_all(root.join("proc/self")).unwrap();
        std::fs::write(root.join("proc/sys/kernel/perf_event_paranoid"), paranoid).unwrap();
        (Host::at(&root), root)
    }

    #[test]
    fn what_is_lacking_depends_on_the_host() {
        let tracing = Rights(CapabilitySet::BPF | CapabilitySet::PERFMON);
        let admin = Rights(CapabilitySet::SYS_ADMIN);
        let lacking = |rights: Rights, host| {
            let all = rights.lacking(host).join("; ");
            ["CAP_BPF (", "CAP_PERFMON (", "CAP_SYS_ADMIN ("].map(|name| all.contains(name))
        };
        let (usual, root) = host("2\n");
        assert_eq!(lacking(Rights::NONE, &usual), [true, true, false]);
        assert_eq!(lacking(tracing, &usual), [false; 3]);
        assert_eq!(lacking(admin, &usual), [false; 3]);
        assert_eq!(Rights::TRACING.for_reading(), Rights(CapabilitySet::BPF));
        assert_eq!(admin.for_reading(), admin);
        assert!(!Rights::TRACING.for_attaching(&usual, false).0.contains(CapabilitySet::SYS_ADMIN));
        assert!(Rights::TRACING.for_attaching(&usual, true).0.contains(CapabilitySet::SYS_ADMIN));
        assert_eq!(Rights::TRACING.for_processes(&usual), Rights::NONE);
        let at = root.join("proc");
        let mount = format!("24 27 0:20 / {} rw - proc proc rw,hidepid=1\n", at.display());
        std::fs::write(at.join("self/mountinfo"), mount).unwrap();
        assert_eq!(Rights::TRACING.for_processes(&usual), Rights::PROCESSES);

        assert_eq!(Rights::TRACING.for_counting(&usual, true).0.bits(), {
            (CapabilitySet::PERFMON | CapabilitySet::SYS_PTRACE).bits()
        });
        assert_eq!(Rights::TRACING.for_counting(&usual, false), Rights(CapabilitySet::PERFMON));
        assert_eq!(admin.for_counting(&usual, false), admin);
        assert_eq!(tracing.lacking_to_count(&usual), None);
        assert!(Rights::NONE.lacking_to_count(&usual).unwrap().starts_with("CAP_PERFMON ("));

        let (debian, debians) = host("3\n");
        let both = Rights(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN);
        assert_eq!(Rights::TRACING.for_counting(&debian, false), both);
        assert_eq!(admin.lacking_to_count(&debian), None);
        assert!(tracing.lacking_to_count(&debian).unwrap().starts_with("CAP_SYS_ADMIN ("));
        assert_eq!(lacking(tracing, &debian), [false, false, true]);
        assert_eq!(lacking(admin, &debian), [false; 3]);
        assert!(Rights::TRACING.for_attaching(&debian, false).0.contains(CapabilitySet::SYS_ADMIN));
        for root in [root, debians] {
            std::fs::remove_dir_all(root).unwrap();
        }
    }
}
