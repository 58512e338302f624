//! Attaches the hooks of one loaded object, each on the rung that the plan chose for it.

use libbpf_rs::{Link, Object, TracepointCategory};

use crate::model::{Attach, HookState, Trouble};

use super::hook::{Hook, Side};
use super::kprobe::KprobeEvents;
use super::plan::{PlannedHook, Rung};

/// A program in its place.
pub struct Attached {
    pub program: String,
    pub link: Link,
}

/// What became of the hooks of an object.
#[derive(Default)]
pub struct Outcome {
    pub attached: Vec<Attached>,
    pub hooks: Vec<HookState>,
}

impl Outcome {
    /// Whether a trampoline was refused where a kprobe may still do.
    #[must_use]
    pub fn lost_a_trampoline(&self, planned: &[PlannedHook]) -> bool {
        planned
            .iter()
            .zip(&self.hooks)
            .any(|(planned, state)| planned.rung == Rung::Fentry && state.attach == Attach::None)
    }
}

/// Attaches every hook, or says why not. A hook is attached whole or not at all: half of one would
/// count wrongly.
pub fn attach_all(
    object: &Object,
    planned: &[PlannedHook],
    mut probes: Option<&mut KprobeEvents>,
    maxactive: u32,
) -> Outcome {
    let mut outcome = Outcome::default();
    for PlannedHook { hook, rung } in planned {
        let state = match attach(object, hook, rung, probes.as_deref_mut(), maxactive) {
            Ok((attach, mut attached)) => {
                outcome.attached.append(&mut attached);
                HookState { hook: hook.name, symbol: hook.symbol, attach, trouble: None }
            }
            Err(trouble) => not_attached(hook, trouble),
        };
        log(&state);
        outcome.hooks.push(state);
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
    hook: &Hook,
    rung: &Rung,
    probes: Option<&mut KprobeEvents>,
    maxactive: u32,
) -> Result<(Attach, Vec<Attached>), Trouble> {
    match rung {
        Rung::Absent(trouble) => Err(trouble.clone()),
        Rung::Fentry => {
            let attached = hook.shape.sides().iter().map(|side| {
                attach_program(object, hook.fentry_program(*side), |p| p.attach_trace())
            });
            Ok((Attach::Fentry, attached.collect::<Result<_, _>>()?))
        }
        Rung::PerfKprobe => {
            let attached = hook.shape.sides().iter().map(|side| {
                attach_program(object, hook.kprobe_program(*side), |p| {
                    p.attach_kprobe(*side == Side::Exit, hook.symbol)
                })
            });
            Ok((Attach::Kprobe, attached.collect::<Result<_, _>>()?))
        }
        Rung::Tracefs { targets, pending } => {
            let probes = probes.ok_or_else(|| Trouble::Refused("no tracefs".to_owned()))?;
            let mut attached = Vec::new();
            let mut trouble = Trouble::NoFunction;
            for target in targets {
                match attach_events(object, hook, target, probes, maxactive) {
                    Ok(mut events) => attached.append(&mut events),
                    Err(refused) => trouble = refused,
                }
            }
            if attached.is_empty() {
                return Err(trouble);
            }
            let attach = if *pending { Attach::Pending } else { Attach::Kprobe };
            Ok((attach, attached))
        }
    }
}

fn attach_events(
    object: &Object,
    hook: &Hook,
    target: &str,
    probes: &mut KprobeEvents,
    maxactive: u32,
) -> Result<Vec<Attached>, Trouble> {
    let mut attached = Vec::new();
    // The return first: an entry that is seen finds its return watched.
    for side in hook.shape.sides().iter().rev() {
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
        Err(error) => Err(trouble(os_error(&error), format!("{program}: {}", one_line(&error)))),
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
