//! How transparent hugepages are set: `always [madvise] never`, the one in force in brackets.

use super::{Files, absent, strange, trouble};
use crate::host::{Host, HostError};

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    /// Each mode that this kernel knows, and whether it is in force.
    pub modes: Vec<(String, bool)>,
}

pub(super) struct Found {
    pub settings: Vec<Setting>,
    /// The kernel has transparent hugepages.
    pub has_thp: bool,
}

pub(super) fn read(host: &Host, files: &mut Files, troubles: &mut Vec<HostError>) -> Found {
    let folder = host.sys("kernel/mm/transparent_hugepage");
    let mut found = Found { settings: Vec::new(), has_thp: false };
    for name in ["enabled", "defrag", "shmem_enabled"] {
        let path = folder.join(name);
        let modes = files.read(&path).and_then(|text| {
            parse(&String::from_utf8_lossy(text))
                .ok_or_else(|| strange("expected modes, one of them in brackets"))
        });
        found.has_thp |= !modes.as_ref().is_err_and(absent);
        match modes {
            Ok(modes) => found.settings.push(Setting { name, modes }),
            Err(error) if absent(&error) => {}
            Err(error) => troubles.push(trouble(&path, error)),
        }
    }
    found
}

fn parse(text: &str) -> Option<Vec<(String, bool)>> {
    let mut modes: Vec<(String, bool)> = Vec::new();
    for word in text.split_ascii_whitespace() {
        let chosen = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
        let mode = chosen.unwrap_or(word);
        if mode.is_empty() || mode.contains(['[', ']']) || modes.iter().any(|(it, _)| it == mode) {
            return None;
        }
        modes.push((mode.to_owned(), chosen.is_some()));
    }
    (modes.iter().filter(|(_, chosen)| *chosen).count() == 1).then_some(modes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_in_brackets_is_in_force() {
        let modes = parse("always within_size advise [never] deny force\n").unwrap();
        let chosen: Vec<_> = modes.iter().filter(|(_, chosen)| *chosen).collect();
        assert_eq!(modes.len(), 6);
        assert_eq!(chosen, [&("never".to_owned(), true)]);
    }

    #[test]
    fn what_names_no_mode_or_two_is_not_understood() {
        for text in ["", "always never", "[always] [never]", "[always", "[]", "a [b] a"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
