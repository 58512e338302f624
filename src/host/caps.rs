//! What the calling thread may do. Capabilities belong to threads, not to the process.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Whether the calling thread may load tracing programs, as far as its capabilities tell.
#[must_use]
pub fn may_trace() -> bool {
    let needed = CapabilitySet::BPF | CapabilitySet::PERFMON;
    capabilities(None).is_ok_and(|held| {
        held.effective.contains(needed) || held.effective.contains(CapabilitySet::SYS_ADMIN)
    })
}

/// Gives up every capability of the calling thread, for good.
///
/// # Errors
/// The kernel refuses, which it never does for less.
pub fn give_up_capabilities() -> std::io::Result<()> {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, none)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_gave_them_up_has_none_and_the_others_keep_theirs() {
        let effective = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let before = effective();
        let inside = std::thread::spawn(move || {
            give_up_capabilities().unwrap();
            assert!(!may_trace());
            effective()
        });
        assert_eq!(inside.join().unwrap(), 0);
        assert_eq!(effective(), before);
    }
}
