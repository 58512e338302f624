//! What the calling thread may do. Capabilities belong to threads, not to the process.

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

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
            effective()
        });
        assert_eq!(inside.join().unwrap(), 0);
        assert_eq!(effective(), before);
    }
}
