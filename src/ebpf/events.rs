//! The seam between the kernel and everything behind it.

use std::collections::HashMap;

use crate::host::{self, Host, Rights};
use crate::model::{HookState, Pin, Placed, ProcessKey, Snapshot};

/// The kernel's own types, below /sys.
const BTF: &str = "kernel/btf/vmlinux";

/// A source of snapshots: the kernel's maps, or a recording.
pub trait KernelEvents {
    /// Reads all maps. `devices` are the names of those that there are.
    ///
    /// # Errors
    /// A map could not be read: the figures of this reading are unknown, none are lost.
    fn snapshot(&mut self, devices: &[String]) -> Result<Snapshot, EventsError>;

    /// Every live pin. Costs more than a snapshot, and is for no page.
    ///
    /// # Errors
    /// The map could not be read.
    fn pins(&mut self) -> Result<Vec<Pin>, EventsError>;

    /// On what the memory of MRs lies, by umem; None where that is not looked at. Of an MR whose
    /// call is not over too: [`Placed::born_ns`] tells which pin it is of. Costs as much as the pins.
    ///
    /// # Errors
    /// The map could not be read.
    fn placements(&mut self) -> Result<Option<HashMap<u64, Placed>>, EventsError>;

    /// Frees the rows of processes that are gone and hold nothing.
    fn forget(&mut self, gone: &[ProcessKey]);

    /// How each hook is attached.
    fn hooks(&self) -> Vec<HookState>;
}

/// Nothing is watched: the collector is switched off.
pub struct Unwatched;

impl KernelEvents for Unwatched {
    fn snapshot(&mut self, _: &[String]) -> Result<Snapshot, EventsError> {
        Ok(Snapshot::default())
    }

    fn pins(&mut self) -> Result<Vec<Pin>, EventsError> {
        Ok(Vec::new())
    }

    fn placements(&mut self) -> Result<Option<HashMap<u64, Placed>>, EventsError> {
        Ok(None)
    }

    fn forget(&mut self, _: &[ProcessKey]) {}

    fn hooks(&self) -> Vec<HookState> {
        Vec::new()
    }
}

/// Why the kernel's maps can't be had.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// The kernel refuses BPF to this process.
    #[error("BPF is denied: {0}")]
    Denied(String),
    /// The kernel refuses to whoever asks that a program reads its memory.
    #[error(
        "lockdown is confidentiality, so that no program may read the kernel's memory ({0}); boot \
         with lockdown=integrity or none"
    )]
    LockedDown(String),
    /// The kernel can't do what every program needs.
    #[error("this kernel can't load the BPF objects: {0}")]
    Unsupported(String),
    #[error("map {map}: {source}")]
    Map { map: &'static str, source: std::io::Error },
}

impl EventsError {
    /// With the reason for a refused load, where it is the host's: the kernel's own words are then
    /// "Invalid argument" or "No such process".
    #[must_use]
    pub fn explained(self, host: &Host) -> Self {
        match self {
            Self::Denied(why) => Self::Denied(format!("{why}; {}", remedy(host))),
            Self::Unsupported(why) if host::confidential(host) => Self::LockedDown(why),
            Self::Unsupported(why) if !host.sys(BTF).exists() => {
                Self::Unsupported(format!("{why}; it has no {}", host.sys(BTF).display()))
            }
            other => other,
        }
    }
}

/// What the thread needs beyond what it has in effect to watch registrations.
#[must_use]
pub fn remedy(host: &Host) -> String {
    let rights = Rights::in_effect();
    let lacking = rights.lacking(host);
    if !lacking.is_empty() {
        return format!("lacking: {}", lacking.join(", "));
    }
    rights.lacks_memlock().unwrap_or_else(|| {
        "no capability is lacking: is it a user namespace, or does seccomp or a security module \
         refuse it?"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_refused_load_is_explained_by_the_host() {
        let root = std::env::temp_dir().join(format!("mrscope-events-{}", std::process::id()));
        let said = || EventsError::Unsupported("EINVAL".into()).explained(&Host::at(&root));
        fs::create_dir_all(root.join("sys/kernel/security")).unwrap();
        assert!(said().to_string().contains("EINVAL; it has no"), "{}", said());

        fs::create_dir_all(root.join("sys/kernel/btf")).unwrap();
        fs::write(root.join("sys/kernel/btf/vmlinux"), "").unwrap();
        let lockdown = root.join("sys/kernel/security/lockdown");
        fs::write(&lockdown, "none [integrity] confidentiality\n").unwrap();
        assert!(matches!(said(), EventsError::Unsupported(why) if why == "EINVAL"));
        fs::write(&lockdown, "none integrity [confidentiality]\n").unwrap();
        assert!(matches!(said(), EventsError::LockedDown(_)));
        let denied = EventsError::Denied("EPERM".into()).explained(&Host::at(&root));
        assert!(matches!(denied, EventsError::Denied(_)));
        fs::remove_dir_all(&root).unwrap();
    }
}
