//! Which functions the running kernel has, and in which module: /proc/kallsyms.
//! Reading it takes up to 0.7 s under emulation: once at the start, and when modules changed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};

use super::{Host, HostError};

/// Where a function lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    Vmlinux,
    Module(String),
}

/// The functions that were asked for and exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols(HashMap<String, Home>);

impl Symbols {
    /// Looks `wanted` up in kallsyms.
    ///
    /// # Errors
    /// The file can't be read (no /proc, or a kernel without it).
    pub fn read(host: &Host, wanted: &[&str]) -> Result<Self, HostError> {
        let path = host.proc("kallsyms");
        let fail = |source| HostError::Read { path: path.clone(), source };
        let mut reader =
            BufReader::with_capacity(1 << 18, std::fs::File::open(&path).map_err(fail)?);
        let mut found = Self::default();
        let mut line = Vec::with_capacity(256);
        loop {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(fail)? == 0 {
                return Ok(found);
            }
            found.take(&line, wanted);
        }
    }

    /// Pure form of [`Symbols::read`].
    #[must_use]
    pub fn parse(text: &str, wanted: &[&str]) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            found.take(line.as_bytes(), wanted);
        }
        found
    }

    /// One line: `address type name`, then a tab and `[module]` for a module's.
    fn take(&mut self, line: &[u8], wanted: &[&str]) {
        let mut words = line.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty());
        let (Some(_), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
            return;
        };
        if !matches!(kind, b"t" | b"T" | b"w" | b"W") {
            return;
        }
        let Some(name) = wanted.iter().find(|w| w.as_bytes() == name) else {
            return;
        };
        let home = match words.next() {
            None => Home::Vmlinux,
            Some(module) => {
                let module = String::from_utf8_lossy(module);
                Home::Module(module.trim_matches(['[', ']']).to_owned())
            }
        };
        self.0.insert((*name).to_owned(), home);
    }

    /// Modules that have any of them; one may come more than once.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.0.values().filter_map(|home| match home {
            Home::Module(module) => Some(module.as_str()),
            Home::Vmlinux => None,
        })
    }

    #[must_use]
    pub fn home(&self, symbol: &str) -> Option<&Home> {
        self.0.get(symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_whole_and_modules_are_told_apart() {
        let text = "ffffffff81000000 T ib_umem_get_not\n\
                    ffffffffc0a01000 t ib_umem_get\t[ib_uverbs]\n\
                    0000000000000000 T ib_uverbs_write\n\
                    ffffffffc0a02000 d ib_umem_release\t[ib_core]\n\
                    short\n";
        let symbols = Symbols::parse(text, &["ib_umem_get", "ib_umem_release", "ib_uverbs_write"]);
        assert_eq!(symbols.home("ib_umem_get"), Some(&Home::Module("ib_uverbs".into())));
        assert_eq!(symbols.home("ib_umem_release"), None);
        assert_eq!(symbols.home("ib_uverbs_write"), Some(&Home::Vmlinux));
    }
}
