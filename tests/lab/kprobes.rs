//! What the kernel itself says of probes: which live, and how often each was hit.

use std::collections::{BTreeMap, BTreeSet};

/// Hits of each program, such as `umem_get_enter`.
pub type Hits = BTreeMap<String, f64>;

/// A probe that mrscope defined.
#[derive(Debug)]
pub struct Defined {
    module: String,
    symbol: String,
    returns: bool,
}

impl Defined {
    /// Without a module of its own it would be on that function wherever it is.
    fn is_in(&self, module: &str) -> bool {
        self.module.is_empty() || self.module == module
    }
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

/// The program, such as `umem_get_enter`, of `PROGRAM_MODULE_PID_TOKEN` if the pid is that one.
fn program_of(event: &str, pid: u32) -> Option<String> {
    let (ours, _token) = event.rsplit_once('_')?;
    let ours = ours.strip_suffix(&format!("_{pid}"))?;
    ["_enter_", "_exit_"]
        .into_iter()
        .find_map(|side| ours.find(side).map(|at| ours[..at + side.len() - 1].to_owned()))
}

/// Every event that the mrscope of that pid has made.
fn defined(pid: u32) -> Result<Vec<Defined>, String> {
    let events = read("/sys/kernel/tracing/kprobe_events")?;
    Ok(events
        .lines()
        .filter_map(|line| {
            let (event, target) = line.split_once(' ')?;
            program_of(event.rsplit_once('/')?.1, pid)?;
            let target = target.split_whitespace().next()?.split('+').next()?;
            let (module, symbol) = target.split_once(':').unwrap_or(("", target));
            let returns = event.starts_with('r');
            Some(Defined { module: module.into(), symbol: symbol.into(), returns })
        })
        .collect())
}

/// Hits of each program of that mrscope, those in several modules added up.
pub fn hits(pid: u32) -> Result<Hits, String> {
    let mut hits = Hits::new();
    for line in read("/sys/kernel/tracing/kprobe_profile")?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [event, count, _missed] = words[..] else {
            return Err(format!("kprobe_profile: {line:?}"));
        };
        if let Some(program) = program_of(event, pid) {
            let count: f64 = count.parse().map_err(|_| format!("kprobe_profile: {line:?}"))?;
            *hits.entry(program).or_default() += count;
        }
    }
    Ok(hits)
}

/// The functions that the modules of the kernel have now: (module, symbol).
fn functions() -> Result<BTreeSet<(String, String)>, String> {
    Ok(read("/proc/kallsyms")?
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (kind, symbol) = (words.next()?, words.next()?);
            let module = words.next()?.strip_prefix('[')?.strip_suffix(']')?;
            kind.eq_ignore_ascii_case("t").then(|| (module.to_owned(), symbol.to_owned()))
        })
        .collect())
}

/// Whether any module has that function now.
pub fn has_function(symbol: &str) -> Result<bool, String> {
    Ok(functions()?.iter().any(|(_, name)| name == symbol))
}

/// Probes of that mrscope on a function that there is, which the kernel does not list as live; and
/// how many it does. No other mrscope may run: the list does not tell whose a probe is.
pub fn dead(pid: u32) -> Result<(Vec<Defined>, usize), String> {
    let functions = functions()?;
    let list = read("/sys/kernel/debug/kprobes/list")?;
    let lives = |probe: &Defined| {
        list.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, kind, place, module, flags @ ..] = &words[..] else {
                return false;
            };
            *kind == if probe.returns { "r" } else { "k" }
                && place.split('+').next() == Some(probe.symbol.as_str())
                && probe.is_in(module)
                && !flags.iter().any(|f| f.contains("[GONE]") || f.contains("[DISABLED]"))
        })
    };
    let mut expected = defined(pid)?;
    expected.retain(|probe| {
        functions.iter().any(|(module, name)| *name == probe.symbol && probe.is_in(module))
    });
    let all = expected.len();
    expected.retain(|probe| !lives(probe));
    let live = all - expected.len();
    Ok((expected, live))
}
