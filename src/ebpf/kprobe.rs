//! Kprobe events of our own in tracefs. Unlike a probe made through perf they can raise the return
//! probe's maxactive, report what they missed, hold no module, and come back when it is reloaded.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use super::cost::Rising;
use super::hook::Side;

const PREFIX: &str = "mrscope_";
/// MAX_EVENT_NAME_LEN of kernel/trace, without its NUL.
const NAME_LIMIT: usize = 63;

/// The events that one mrscope has made; removed when dropped.
pub struct KprobeEvents {
    /// Kept open: definitions can be removed when the rights to open it are gone.
    events: File,
    group: String,
    token: String,
    names: Vec<String>,
    /// Kept open: it can be read again after privileges are gone.
    profile: Option<File>,
    /// By event: a probe counts anew when its module is loaded anew.
    missed: BTreeMap<String, Rising>,
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
    ///
    /// # Errors
    /// The events can't be written.
    pub fn new(tracefs: &Path, token: String) -> io::Result<Self> {
        // Appended: opening with O_TRUNC would remove everybody's probes.
        let mut events = OpenOptions::new().append(true).open(tracefs.join("kprobe_events"))?;
        remove_leftovers(tracefs, &mut events);
        Ok(Self {
            events,
            group: format!("{PREFIX}{token}"),
            token,
            names: Vec::new(),
            profile: File::open(tracefs.join("kprobe_profile")).ok(),
            missed: BTreeMap::new(),
        })
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
        let name = event_name(hook, side, module, &self.token);
        let kind = match side {
            Side::Enter => "p".to_owned(),
            Side::Exit => format!("r{maxactive}"),
        };
        let line = format!("{kind}:{}/{name} {target}", self.group);
        write_line(&mut self.events, &line)?;
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
            let _ = write_line(&mut self.events, &format!("-:{}/{name}", self.group));
        }
    }

    /// A module was loaded anew: probes in it count from zero.
    pub fn restart_of(&mut self, module: &str) {
        let of_module = format!("_{module}_{}", self.token);
        let missed = self.missed.iter_mut();
        missed.filter(|(event, _)| event.ends_with(&of_module)).for_each(|(_, it)| it.restart());
    }

    /// Calls that each event missed, by the name of its program.
    pub fn misses(&mut self) -> BTreeMap<String, u64> {
        let mut text = String::new();
        let mut misses = BTreeMap::new();
        let Some(file) = self.profile.as_mut() else {
            return misses;
        };
        if file.rewind().is_err() || file.read_to_string(&mut text).is_err() {
            return misses;
        }
        for (event, program, missed) in parse_misses(&text, &self.token) {
            let rising = self.missed.entry(event.to_owned()).or_default();
            *misses.entry(program.to_owned()).or_default() += rising.rise_to(missed);
        }
        misses
    }
}

impl Drop for KprobeEvents {
    fn drop(&mut self) {
        self.keep_first(0);
    }
}

/// Unique on this host; of a module's name what fits.
fn event_name(hook: &str, side: Side, module: &str, token: &str) -> String {
    let side = side.word();
    let room = NAME_LIMIT.saturating_sub(hook.len() + side.len() + token.len() + 3);
    let module = module.get(..room).unwrap_or(module);
    format!("{hook}_{side}_{module}_{token}")
}

/// One definition a write.
fn write_line(events: &mut File, line: &str) -> io::Result<()> {
    events.write_all(format!("{line}\n").as_bytes())
}

/// Removes events whose mrscope is dead. One in use answers EBUSY: its owner lives.
fn remove_leftovers(tracefs: &Path, events: &mut File) {
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
        if !alive && let Err(error) = write_line(events, &format!("-:{group}/{name}")) {
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

/// Lines are `name hits misses`, without the group: the token in the name tells ours. Gives event,
/// program and misses.
fn parse_misses<'a>(
    text: &'a str,
    token: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str, u64)> {
    text.lines().filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [event, _hits, missed] = words[..] else {
            return None;
        };
        Some((event, program_of(event, token)?, missed.parse().ok()?))
    })
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
    fn misses_of_our_events_are_told_by_program_and_those_of_others_are_left_out() {
        let text = "  umem_get_exit_ib_uverbs_77_1a      3     2\n\
                    \x20 umem_get_exit_ib_core_77_1a     4     1\n\
                    \x20 umem_get_enter_ib_core_77_1a    4     0\n\
                    \x20 umem_get_exit_ib_core_9_1a      9     9\n\
                    \x20 other                           1     1\n";
        let misses = parse_misses(text, "77_1a").map(|(_, program, missed)| (program, missed));
        assert!(misses.eq([("umem_get_exit", 2), ("umem_get_exit", 1), ("umem_get_enter", 0)]));
    }

    #[test]
    fn misses_only_rise_though_a_reloaded_module_s_probes_count_anew() {
        let tracefs = std::env::temp_dir().join(format!("mrscope-kprobe-{}", std::process::id()));
        std::fs::create_dir_all(&tracefs).unwrap();
        let write = |file: &str, text: &str| std::fs::write(tracefs.join(file), text).unwrap();
        write("kprobe_events", "");
        write("kprobe_profile", "");
        let mut events = KprobeEvents::new(&tracefs, "77_1a".to_owned()).unwrap();
        let first = events.define("pin", Side::Exit, "ib_core:f", 512).unwrap();
        let second = events.define("pin", Side::Exit, "ib_uverbs:f", 512).unwrap();
        let mut misses = |core: u64, uverbs: u64, reloaded: Option<&str>| {
            let line = |event: &Event, missed| format!("  {}  9  {missed}\n", event.name);
            write("kprobe_profile", &(line(&first, core) + &line(&second, uverbs)));
            if let Some(module) = reloaded {
                events.restart_of(module);
            }
            events.misses()["pin_exit"]
        };
        assert_eq!(misses(5, 1, None), 6);
        assert_eq!(misses(7, 1, Some("ib_core")), 5 + 7 + 1);
        assert_eq!(misses(2, 1, None), 5 + 7 + 2 + 1, "nobody said so, and it fell");

        events.keep_first(1);
        drop(events);
        let text = std::fs::read_to_string(tracefs.join("kprobe_events")).unwrap();
        let lines = [
            "r512:mrscope_77_1a/pin_exit_ib_core_77_1a ib_core:f",
            "r512:mrscope_77_1a/pin_exit_ib_uverbs_77_1a ib_uverbs:f",
            "-:mrscope_77_1a/pin_exit_ib_uverbs_77_1a",
            "-:mrscope_77_1a/pin_exit_ib_core_77_1a",
        ];
        assert!(text.lines().eq(lines), "{text}");
        std::fs::remove_dir_all(&tracefs).unwrap();
    }

    #[test]
    fn the_longest_name_fits() {
        for stem in crate::ebpf::hook::STEMS {
            for hook in stem.hooks {
                for module in hook.modules.iter().chain(&[&*"m".repeat(55)]) {
                    let name = event_name(hook.name, Side::Enter, module, "4194304_ffff");
                    assert!(name.len() <= NAME_LIMIT, "{name}");
                    assert!(program_of(&name, "4194304_ffff").is_some(), "{name}");
                    assert!(name.contains(module) || module.len() == 55, "{name}");
                }
            }
        }
    }
}
