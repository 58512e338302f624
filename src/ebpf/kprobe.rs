//! Kprobe events of our own in tracefs. Unlike a probe made through perf they can raise the return
//! probe's maxactive, report what they missed, hold no module, and come back when it is reloaded.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::hook::Side;

const PREFIX: &str = "mrscope_";
/// MAX_EVENT_NAME_LEN of kernel/trace, without its NUL.
const NAME_LIMIT: usize = 63;

/// The events that one mrscope has made; removed when dropped.
pub struct KprobeEvents {
    tracefs: PathBuf,
    group: String,
    token: String,
    names: Vec<String>,
    /// Kept open: it can be read again after privileges are gone.
    profile: Option<File>,
}

/// An event: what to attach to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub group: String,
    pub name: String,
}

impl KprobeEvents {
    /// Opens the events of this process under `tracefs`, after clearing what dead ones left.
    ///
    /// `token` makes the names unique on this host: the same name with another function would
    /// silently append to the event.
    #[must_use]
    pub fn new(tracefs: &Path, token: String) -> Self {
        remove_leftovers(tracefs);
        Self {
            tracefs: tracefs.to_owned(),
            group: format!("{PREFIX}{token}"),
            token,
            names: Vec::new(),
            profile: File::open(tracefs.join("kprobe_profile")).ok(),
        }
    }

    /// Defines an event on `target` (`symbol` or `MODULE:symbol`).
    ///
    /// # Errors
    /// ENOENT or EINVAL where a loaded module, or the kernel, has no such function.
    pub fn define(
        &mut self,
        hook: &str,
        side: Side,
        target: &str,
        maxactive: u32,
    ) -> io::Result<Event> {
        let module = target.split_once(':').map_or("vmlinux", |(module, _)| module);
        let name = format!("{hook}_{}_{module}_{}", side.word(), self.token);
        debug_assert!(name.len() <= NAME_LIMIT, "{name}");
        let kind = match side {
            Side::Enter => "p".to_owned(),
            Side::Exit => format!("r{maxactive}"),
        };
        let line = format!("{kind}:{}/{name} {target}", self.group);
        write_line(&self.tracefs, &line)?;
        self.names.push(name.clone());
        Ok(Event { group: self.group.clone(), name })
    }

    /// How many events there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Removes what was defined after the first `count`: a name that stayed could not be had again.
    /// Nothing may be attached to it any more.
    pub fn keep_first(&mut self, count: usize) {
        for name in self.names.split_off(count) {
            // What can't be removed now is removed by the next start.
            let _ = write_line(&self.tracefs, &format!("-:{}/{name}", self.group));
        }
    }

    /// Calls that each event missed, by the name of its program.
    pub fn misses(&mut self) -> Vec<(String, u64)> {
        let mut text = String::new();
        let Some(file) = self.profile.as_mut() else {
            return Vec::new();
        };
        if file.rewind().is_err() || file.read_to_string(&mut text).is_err() {
            return Vec::new();
        }
        parse_misses(&text, &self.token)
    }
}

impl Drop for KprobeEvents {
    fn drop(&mut self) {
        self.keep_first(0);
    }
}

/// One definition a write, appended: opening with O_TRUNC would remove everybody's probes.
fn write_line(tracefs: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(tracefs.join("kprobe_events"))?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Removes events whose mrscope is dead. One in use answers EBUSY: its owner lives.
fn remove_leftovers(tracefs: &Path) {
    let Ok(text) = std::fs::read_to_string(tracefs.join("kprobe_events")) else {
        return;
    };
    for (group, name) in leftovers(&text) {
        let pid = group[PREFIX.len()..].split('_').next().unwrap_or_default();
        // Defined and not attached yet, an event is not busy: spare one of another live mrscope.
        // One of our own pid is a predecessor's, in a container that always has the same.
        let alive = pid != std::process::id().to_string()
            && std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| comm.trim_end() == "mrscope");
        if !alive && let Err(error) = write_line(tracefs, &format!("-:{group}/{name}")) {
            tracing::debug!("leftover probe {group}/{name} stays: {error}");
        }
    }
}

/// (group, name) of each of our events in the text of kprobe_events.
fn leftovers(text: &str) -> Vec<(&str, &str)> {
    text.lines()
        .filter_map(|line| {
            let event = line.split_whitespace().next()?.split_once(':')?.1;
            event.split_once('/').filter(|(group, _)| group.starts_with(PREFIX))
        })
        .collect()
}

/// Lines are `name hits misses`, without the group: the token in the name tells ours.
/// Events of one program in several modules are added up.
fn parse_misses(text: &str, token: &str) -> Vec<(String, u64)> {
    let mut misses = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, _hits, missed] = words[..] else {
            continue;
        };
        if let (Some(program), Ok(missed)) = (program_of(name, token), missed.parse::<u64>()) {
            *misses.entry(program.to_owned()).or_default() += missed;
        }
    }
    misses.into_iter().collect()
}

/// The program of one of our events: what comes before its module and our token.
fn program_of<'a>(event: &'a str, token: &str) -> Option<&'a str> {
    let ours = event.strip_suffix(token)?.strip_suffix('_')?;
    ["_enter_", "_exit_"]
        .into_iter()
        .find_map(|side| ours.find(side).map(|at| &ours[..at + side.len() - 1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_events_are_leftovers() {
        let text = "p:kprobes/mine do_exit\n\
                    p:mrscope_77_1a/umem_get_enter_ib_uverbs_77_1a ib_uverbs:ib_umem_get\n\
                    r512:mrscope_77_1a/umem_get_exit_ib_uverbs_77_1a ib_uverbs:ib_umem_get\n";
        assert_eq!(
            leftovers(text),
            [
                ("mrscope_77_1a", "umem_get_enter_ib_uverbs_77_1a"),
                ("mrscope_77_1a", "umem_get_exit_ib_uverbs_77_1a"),
            ]
        );
    }

    #[test]
    fn misses_of_a_program_add_up_and_those_of_others_are_left_out() {
        let text = "  umem_get_exit_ib_uverbs_77_1a      3     2\n\
                    \x20 umem_get_exit_ib_core_77_1a     4     1\n\
                    \x20 umem_get_enter_ib_core_77_1a    4     0\n\
                    \x20 umem_get_exit_ib_core_9_1a      9     9\n\
                    \x20 other                           1     1\n";
        assert_eq!(
            parse_misses(text, "77_1a"),
            [("umem_get_enter".to_owned(), 0), ("umem_get_exit".to_owned(), 3)]
        );
    }

    #[test]
    fn the_longest_name_fits() {
        for stem in crate::ebpf::hook::STEMS {
            for hook in stem.hooks {
                for module in hook.modules {
                    let name = format!("{}_enter_{module}_4194304_ffff", hook.name);
                    assert!(name.len() <= NAME_LIMIT, "{name}");
                }
            }
        }
    }
}
