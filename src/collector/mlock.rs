//! Collector `mlock`: system calls that lock memory.

use std::time::Duration;

use crate::ebpf::SLOT_FIRST_LOG2;
use crate::metrics::{Page, PageError, mlock};
use crate::model::{
    HookState, Labels, MLOCK_ERRORS, MlockTotals, ProcessCounters, Trouble, power_of_four_bounds,
};

use super::{CollectError, Collector, Scene, SourceTimes};

const NS: f64 = 1e-9;

pub struct Mlock;

impl Collector for Mlock {
    fn name(&self) -> &'static str {
        "mlock"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.events
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let snapshot = scene.events.map_err(Clone::clone)?;
        let hooks: Vec<_> =
            scene.hooks.iter().filter(|hook| hook.hook.starts_with("mlock_")).collect();
        let Some(mlocks) = &snapshot.mlocks else {
            return watched(&hooks);
        };
        for of_call in &mlocks.totals {
            // What is not watched has no zeros.
            let name = of_call.call.label();
            let its = |hook: &&HookState| hook.hook.strip_prefix("mlock_") == Some(name);
            if hooks.iter().any(|hook| its(hook) && hook.attach.watches()) {
                totals(of_call, page)?;
            }
        }
        if mlocks.per_process && hooks.iter().any(|hook| hook.attach.watches()) {
            for shown in &scene.view.shown {
                if let Some(counted) = shown.locks.as_ref() {
                    counters(&shown.labels, counted, page)?;
                }
            }
            counters(scene.others, &scene.view.others.counters, page)?;
        }
        watched(&hooks)
    }
}

fn totals(of_call: &MlockTotals, page: &mut Page) -> Result<(), PageError> {
    let name = of_call.call.label();
    let buckets = power_of_four_bounds(&of_call.slots, SLOT_FIRST_LOG2, NS);
    page.histogram(&mlock::SECONDS, &[name], buckets, of_call.ns as f64 * NS)?;
    for (errno, count) in MLOCK_ERRORS.iter().zip(of_call.failures) {
        page.number(&mlock::FAILURES, &[name, errno], count as f64)?;
    }
    if of_call.call.has_length() {
        page.number(&mlock::BYTES, &[name], of_call.bytes as f64)?;
    }
    Ok(())
}

fn counters(labels: &Labels, counted: &ProcessCounters, page: &mut Page) -> Result<(), PageError> {
    page.process_number(&mlock::PROCESS_CALLS, labels, None, counted.lock_calls as f64)?;
    page.process_number(&mlock::PROCESS_SECONDS, labels, None, counted.lock_ns as f64 * NS)
}

/// Whether every call is seen that this kernel has.
fn watched(hooks: &[&HookState]) -> Result<(), CollectError> {
    let lacking =
        |hook: &&&HookState| !hook.attach.watches() && hook.trouble != Some(Trouble::NoFunction);
    let Some(hook) = hooks.iter().find(lacking) else {
        return if hooks.iter().any(|hook| hook.attach.watches()) {
            Ok(())
        } else {
            Err(CollectError::Unsupported("this kernel has none of the functions".to_owned()))
        };
    };
    let why = match &hook.trouble {
        Some(trouble) => format!("{} is not watched: {trouble}", hook.symbol),
        None => format!("{} is not watched", hook.symbol),
    };
    if let Some(Trouble::Denied(_)) = hook.trouble {
        return Err(CollectError::Denied(why));
    }
    if hooks.iter().any(|hook| hook.attach.watches()) {
        return Err(CollectError::Failed(format!("figures are not whole, {why}")));
    }
    Err(CollectError::Unsupported(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Attach;

    fn hook(attach: Attach, trouble: Option<Trouble>) -> HookState {
        HookState { hook: "mlock_mlock", symbol: "__x64_sys_mlock", attach, trouble }
    }

    fn state(hooks: &[HookState]) -> &'static str {
        watched(&hooks.iter().collect::<Vec<_>>()).map_or_else(|error| error.state(), |()| "ok")
    }

    #[test]
    fn what_is_not_watched_has_its_reason() {
        let live = || hook(Attach::Kprobe, None);
        let refused = || hook(Attach::None, Some(Trouble::Refused("ENOENT".into())));
        let denied = || hook(Attach::None, Some(Trouble::Denied("EPERM".into())));
        let absent = || hook(Attach::None, Some(Trouble::NoFunction));
        assert_eq!(state(&[live(), live()]), "ok");
        assert_eq!(state(&[live(), absent()]), "ok");
        assert_eq!(state(&[absent(), absent()]), "unsupported");
        assert_eq!(state(&[refused(), refused()]), "unsupported");
        assert_eq!(state(&[live(), refused()]), "failed");
        assert_eq!(state(&[denied()]), "denied");
        let said = watched(&[&refused()]).unwrap_err().to_string();
        assert!(said.contains("__x64_sys_mlock") && said.contains("ENOENT"), "{said}");
    }
}
