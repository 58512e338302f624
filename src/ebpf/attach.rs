//! Attaches the hooks of one loaded object, each on the rung that the plan chose for it.

use libbpf_rs::{Link, Object, TracepointCategory};

use crate::host::Host;
use crate::model::{Attach, HookState, Trouble};

use super::events::remedy;
use super::facts::KernelFacts;
use super::hook::{Hook, Side};
use super::kprobe::KprobeEvents;
use super::plan::{PlannedHook, Rung, Seat};

/// A program in its place.
pub struct Attached {
    pub program: String,
    pub link: Link,
}

/// A hook in its place, with its programs.
pub struct Seated {
    pub hook: &'static Hook,
    pub seat: Seat,
    pub programs: Vec<Attached>,
}

/// What became of the hooks of an object.
#[derive(Default)]
pub struct Outcome {
    pub seated: Vec<Seated>,
    pub states: Vec<HookState>,
}

impl Outcome {
    /// Whether a trampoline was refused where a kprobe may still do.
    #[must_use]
    pub fn lost_a_trampoline(&self, planned: &[PlannedHook]) -> bool {
        planned
            .iter()
            .zip(&self.states)
            .any(|(planned, state)| planned.rung == Rung::Fentry && state.attach == Attach::None)
    }

    /// Adds what helps to what was refused for lack of rights.
    pub fn explain(&mut self, host: &Host) {
        for state in &mut self.states {
            if let Some(Trouble::Denied(why)) = &mut state.trouble {
                why.push_str("; ");
                why.push_str(&remedy(host));
            }
        }
    }
}

/// Attaches every hook, or says why not. A hook is attached whole or not at all: half of one would
/// count wrongly.
pub fn attach_all(
    object: &Object,
    planned: &[PlannedHook],
    facts: &KernelFacts,
    mut probes: Option<&mut KprobeEvents>,
    maxactive: u32,
) -> Outcome {
    let mut outcome = Outcome::default();
    for PlannedHook { hook, rung } in planned {
        let state = match attach(object, hook, rung, facts, probes.as_deref_mut(), maxactive) {
            Ok((attach, seated)) => {
                outcome.seated.push(seated);
                HookState { hook: hook.name, symbol: hook.symbol, attach, trouble: None }
            }
            Err(trouble) => not_attached(hook, trouble),
        };
        log(&state);
        outcome.states.push(state);
    }
    outcome
}

/// The state of a hook that could not be attached.
#[must_use]
pub fn not_attached(hook: &Hook, trouble: Trouble) -> HookState {
    HookState { hook: hook.name, symbol: hook.symbol, attach: Attach::None, trouble: Some(trouble) }
}

/// How a hook stands, for whoever looks closer.
pub fn log(state: &HookState) {
    match &state.trouble {
        None => tracing::debug!("{} ({}): {}", state.hook, state.symbol, state.attach.label()),
        Some(why) => tracing::debug!("{} ({}): not attached: {why}", state.hook, state.symbol),
    }
}

fn attach(
    object: &Object,
    hook: &'static Hook,
    rung: &Rung,
    facts: &KernelFacts,
    probes: Option<&mut KprobeEvents>,
    maxactive: u32,
) -> Result<(Attach, Seated), Trouble> {
    match rung {
        Rung::Fentry => {
            let programs = sides(hook).map(|side| {
                attach_program(object, hook.fentry_program(*side), |p| p.attach_trace())
            });
            let programs = programs.collect::<Result<_, _>>()?;
            Ok((Attach::Fentry, Seated { hook, seat: Seat::Trampoline, programs }))
        }
        Rung::Tracepoint => {
            let syscall = hook.syscall.unwrap_or_default();
            let programs = sides(hook).map(|side| {
                let event = match side {
                    Side::Enter => format!("sys_enter_{syscall}"),
                    Side::Exit => format!("sys_exit_{syscall}"),
                };
                attach_program(object, hook.tracepoint_program(*side), |p| {
                    p.attach_tracepoint(TracepointCategory::Syscalls, &event)
                })
                .map_err(in_tracefs)
            });
            let programs = programs.collect::<Result<_, _>>()?;
            Ok((Attach::Tracepoint, Seated { hook, seat: Seat::Tracepoint, programs }))
        }
        Rung::PerfKprobe => {
            // The load from before: if the module was loaded anew since, that is seen later.
            let seat = Seat::Perf(facts.symbols.home(hook.symbol).and_then(|at| facts.load(at)));
            let programs = sides(hook).map(|side| {
                attach_program(object, hook.kprobe_program(*side), |p| {
                    p.attach_kprobe(*side == Side::Exit, hook.symbol)
                })
            });
            let programs = programs.collect::<Result<_, _>>()?;
            Ok((Attach::Kprobe, Seated { hook, seat, programs }))
        }
        Rung::Tracefs { targets, pending } => {
            let probes = probes.ok_or_else(|| Trouble::Refused("no tracefs".to_owned()))?;
            let (mut programs, mut sat) = (Vec::new(), Vec::new());
            let mut trouble = Trouble::NoFunction;
            for target in targets {
                match attach_events(object, hook, target, probes, maxactive) {
                    Ok(mut events) => {
                        programs.append(&mut events);
                        sat.push(target.clone());
                    }
                    Err(refused) => trouble = refused,
                }
            }
            if sat.is_empty() {
                return Err(trouble);
            }
            let attach = if *pending { Attach::Pending } else { Attach::Kprobe };
            Ok((attach, Seated { hook, seat: Seat::Events(sat), programs }))
        }
    }
}

/// The return first: an entry that is seen finds its return watched.
fn sides(hook: &Hook) -> impl Iterator<Item = &'static Side> {
    hook.shape.sides().iter().rev()
}

/// All events of a hook on one target, or none: one that stayed could not be defined again.
fn attach_events(
    object: &Object,
    hook: &Hook,
    target: &str,
    probes: &mut KprobeEvents,
    maxactive: u32,
) -> Result<Vec<Attached>, Trouble> {
    let before = probes.count();
    let attached = define_and_attach(object, hook, target, probes, maxactive);
    if attached.is_err() {
        // What was attached is no more: an event in use could not be removed.
        probes.keep_first(before);
    }
    attached
}

fn define_and_attach(
    object: &Object,
    hook: &Hook,
    target: &str,
    probes: &mut KprobeEvents,
    maxactive: u32,
) -> Result<Vec<Attached>, Trouble> {
    let mut attached = Vec::new();
    for side in sides(hook) {
        let event = probes.define(hook.name, *side, target, maxactive).map_err(|error| {
            trouble(error.raw_os_error(), format!("kprobe on {target}: {error}"))
        })?;
        let category = TracepointCategory::Custom(event.group);
        // libbpf opens the event for all processes on CPU 0, which fires on every CPU.
        attached.push(attach_program(object, hook.kprobe_program(*side), |program| {
            program.attach_tracepoint(category, &event.name)
        })?);
    }
    Ok(attached)
}

fn attach_program(
    object: &Object,
    program: String,
    attach: impl FnOnce(&libbpf_rs::ProgramMut<'_>) -> libbpf_rs::Result<Link>,
) -> Result<Attached, Trouble> {
    let found = object.progs_mut().find(|found| found.name() == program.as_str());
    let found =
        found.ok_or_else(|| Trouble::Refused(format!("the object has no program {program}")))?;
    match attach(&found) {
        Ok(link) => Ok(Attached { program, link }),
        Err(error) => Err(trouble(os_error(&error), one_line(&error))),
    }
}

/// A tracepoint is found by its number, which stands in tracefs.
fn in_tracefs(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Refused(why) => {
            Trouble::Refused(format!("{why}; is tracefs mounted on /sys/kernel/tracing?"))
        }
        other => other,
    }
}

fn trouble(errno: Option<i32>, why: String) -> Trouble {
    use rustix::io::Errno;
    match errno {
        Some(errno) if [Errno::PERM, Errno::ACCESS].map(Errno::raw_os_error).contains(&errno) => {
            Trouble::Denied(why)
        }
        _ => Trouble::Refused(why),
    }
}

/// The errno below an error of libbpf. Its sources end before the system's error does, so that
/// only the words still have it.
#[must_use]
pub fn os_error(error: &libbpf_rs::Error) -> Option<i32> {
    let words = one_line(error);
    let (_, rest) = words.rsplit_once("(os error ")?;
    rest.split(')').next()?.parse().ok()
}

/// An error with its causes, on one line.
#[must_use]
pub fn one_line(error: &libbpf_rs::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_rights_is_told_from_a_refusal() {
        use std::io::Error;
        let below = |errno| libbpf_rs::Error::from(Error::from_raw_os_error(errno));
        assert_eq!(os_error(&below(1)), Some(1));
        let with = libbpf_rs::ErrorExt::context(Err::<(), _>(below(13)), "load");
        assert_eq!(with.as_ref().err().and_then(os_error), Some(13));
        assert!(matches!(trouble(Some(1), String::new()), Trouble::Denied(_)));
        assert!(matches!(trouble(Some(13), String::new()), Trouble::Denied(_)));
        assert!(matches!(trouble(Some(22), String::new()), Trouble::Refused(_)));
    }
}
