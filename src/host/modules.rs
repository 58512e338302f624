//! Loaded kernel modules: /proc/modules.

use std::collections::BTreeSet;

use super::{Host, HostError};

/// Names of the loaded modules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Modules(BTreeSet<String>);

impl Modules {
    /// A kernel without module support has no such file: then no module is loaded.
    ///
    /// # Errors
    /// The file exists and can't be read.
    pub fn read(host: &Host) -> Result<Self, HostError> {
        match host.proc_text("modules") {
            Ok(text) => Ok(Self::parse(&text)),
            Err(HostError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(Self::default())
            }
            Err(error) => Err(error),
        }
    }

    /// `name size references users state address`; only live modules count.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(
            text.lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>())
                .filter(|words| words.get(4).is_none_or(|state| *state == "Live"))
                .filter_map(|words| words.first().map(|name| (*name).to_owned()))
                .collect(),
        )
    }

    #[must_use]
    pub fn has(&self, module: &str) -> bool {
        self.0.contains(module)
    }

    /// Whether any is loaded that was not then.
    #[must_use]
    pub fn came_since(&self, then: &Self) -> bool {
        !self.0.is_subset(&then.0)
    }
}

/// Which load of a module this is: another after each. None while it is not loaded.
#[must_use]
pub fn load_of(host: &Host, module: &str) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    // Sysfs gives every new folder another number.
    std::fs::metadata(host.sys(format!("module/{module}"))).ok().map(|folder| folder.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_still_loading_does_not_count() {
        let modules = Modules::parse(
            "ib_core 421888 3 rdma_rxe,ib_uverbs, Live 0x0000000000000000\n\
             rdma_rxe 155648 0 - Loading 0x0000000000000000\n",
        );
        assert!(modules.has("ib_core"));
        assert!(!modules.has("rdma_rxe"));
        assert!(modules.came_since(&Modules::default()) && !modules.came_since(&modules));
        assert!(!Modules::default().came_since(&modules), "what went has not come");
    }
}
