//! Which rung of the ladder each hook stands on, at the start and when modules came or went: decided
//! from facts alone, without I/O.

use std::collections::BTreeMap;

use crate::host::Home;
use crate::model::{Attach, AttachMode, EbpfOptions, HookState, Trouble};

use super::attach::not_attached;
use super::facts::KernelFacts;
use super::hook::{Hook, STEMS, Stem};

/// How one hook is to be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rung {
    Fentry,
    /// An own event in tracefs for each target, `symbol` or `MODULE:symbol`.
    Tracefs {
        targets: Vec<String>,
        pending: bool,
    },
    /// A kprobe of the perf PMU: can't raise maxactive, and tells its misses from 6.7 on only.
    PerfKprobe,
    /// Tracepoints of the system call that the function is.
    Tracepoint,
}

/// Where a hook that is attached sits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seat {
    /// Holds its module.
    Trampoline,
    /// Live and wait by themselves as their modules come and go.
    Events(Vec<String>),
    /// Die with the load of the module that they were made for; None in the kernel itself.
    Perf(Option<u64>),
    Tracepoint,
}

/// Seats by the name of the hook.
pub type Seats = BTreeMap<&'static str, Seat>;

/// One hook with its rung.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedHook {
    pub hook: &'static Hook,
    pub rung: Rung,
}

/// The hooks of one BPF object that are to be attached.
#[derive(Debug, Clone)]
pub struct PlannedStem {
    pub stem: &'static Stem,
    pub hooks: Vec<PlannedHook>,
}

/// What to load and where to attach it, and how all other hooks stand.
#[derive(Debug, Clone, Default)]
pub struct AttachPlan {
    pub stems: Vec<PlannedStem>,
    pub states: Vec<HookState>,
}

impl AttachPlan {
    /// Chooses for every hook: a rung, or that it stays as it is.
    #[must_use]
    pub fn choose(facts: &KernelFacts, options: &EbpfOptions, seats: &Seats) -> Self {
        let mut plan = Self::default();
        for stem in STEMS.into_iter().filter(|stem| stem.is_watched(options.watched)) {
            let mut hooks = Vec::new();
            for hook in stem.hooks {
                match next_step(hook, seats.get(hook.name), facts, options) {
                    Ok(rung) => hooks.push(PlannedHook { hook, rung }),
                    Err(state) => plan.states.push(state),
                }
            }
            if !hooks.is_empty() {
                plan.stems.push(PlannedStem { stem, hooks });
            }
        }
        plan
    }
}

/// A rung to attach it on, or how it stands without that.
fn next_step(
    hook: &'static Hook,
    seat: Option<&Seat>,
    facts: &KernelFacts,
    options: &EbpfOptions,
) -> Result<Rung, HookState> {
    let stays = |attach| HookState { hook: hook.name, symbol: hook.symbol, attach, trouble: None };
    let home = home(hook, facts);
    match (seat, home) {
        (Some(Seat::Trampoline), _) => Err(stays(Attach::Fentry)),
        (Some(Seat::Tracepoint), _) => Err(stays(Attach::Tracepoint)),
        (Some(Seat::Events(targets)), Some(home)) => {
            let target = target(hook, home);
            if targets.contains(&target) {
                Err(stays(Attach::Kprobe))
            } else {
                // Brought by a module that was not expected to.
                Ok(Rung::Tracefs { targets: vec![target], pending: false })
            }
        }
        (Some(Seat::Events(_)), None) if may_come(hook, facts) => Err(stays(Attach::Pending)),
        (Some(Seat::Events(_)), None) => Err(not_attached(hook, Trouble::NoFunction)),
        (Some(Seat::Perf(load)), Some(home)) if *load == facts.load(home) => {
            Err(stays(Attach::Kprobe))
        }
        _ => choose_rung(hook, facts, options).map_err(|trouble| not_attached(hook, trouble)),
    }
}

fn choose_rung(hook: &Hook, facts: &KernelFacts, options: &EbpfOptions) -> Result<Rung, Trouble> {
    let kprobe = |targets, pending| match facts.tracefs {
        Some(_) => Ok(Rung::Tracefs { targets, pending }),
        None if pending => Err(Trouble::NotLoaded(facts.no_tracefs)),
        None => Ok(Rung::PerfKprobe),
    };
    match home(hook, facts) {
        Some(home @ Home::Vmlinux) if facts.trampolines(home) => Ok(Rung::Fentry),
        Some(home @ Home::Module(_))
            if options.attach == AttachMode::Fentry && facts.trampolines(home) =>
        {
            Ok(Rung::Fentry)
        }
        Some(home) => kprobe(vec![target(hook, home)], false),
        None => {
            // With unknown symbols every module is tried: a wrong one is refused or stays pending.
            let candidates: Vec<_> = hook
                .modules
                .iter()
                .filter(|module| !facts.symbols_known || !facts.modules.has(module))
                .map(|module| format!("{module}:{}", hook.symbol))
                .collect();
            if candidates.is_empty() { Err(Trouble::NoFunction) } else { kprobe(candidates, true) }
        }
    }
}

/// Where the function is. One that no module holds on any kernel is in the kernel itself, where
/// nobody may look for it.
fn home<'f>(hook: &Hook, facts: &'f KernelFacts) -> Option<&'f Home> {
    let own = || (!facts.symbols_known && hook.modules.is_empty()).then_some(&Home::Vmlinux);
    facts.symbols.home(hook.symbol).or_else(own)
}

/// The same hooks by the tracepoints of their system calls, of those that are such and may be.
#[must_use]
pub fn by_tracepoints(hooks: &[&'static Hook], options: &EbpfOptions) -> Vec<PlannedHook> {
    if !options.watched.mlock.is_some_and(|mlock| mlock.tracepoints) {
        return Vec::new();
    }
    let syscalls = hooks.iter().filter(|hook| hook.syscall.is_some());
    syscalls.map(|hook| PlannedHook { hook, rung: Rung::Tracepoint }).collect()
}

/// A function as tracefs names it.
fn target(hook: &Hook, home: &Home) -> String {
    match home {
        Home::Vmlinux => hook.symbol.to_owned(),
        Home::Module(module) => format!("{module}:{}", hook.symbol),
    }
}

/// Whether a module that is not loaded may bring the function.
fn may_come(hook: &Hook, facts: &KernelFacts) -> bool {
    !facts.symbols_known || hook.modules.iter().any(|module| !facts.modules.has(module))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Modules, Symbols};
    use crate::model::{MlockOptions, Watched};

    /// What comes next for the pin hook that sits there: its state, or the rung it is to stand on.
    fn next(seat: Seat, facts: &KernelFacts) -> Result<Rung, (Attach, Option<Trouble>)> {
        let seats = Seats::from([(PIN, seat)]);
        let plan = AttachPlan::choose(facts, &EbpfOptions::default(), &seats);
        let mut hooks = plan.stems.into_iter().flat_map(|stem| stem.hooks);
        if let Some(planned) = hooks.find(|planned| planned.hook.name == PIN) {
            return Ok(planned.rung);
        }
        let state = plan.states.into_iter().find(|state| state.hook == PIN).unwrap();
        Err((state.attach, state.trouble))
    }

    fn unloaded() -> KernelFacts {
        KernelFacts { symbols: Symbols::default(), modules: Modules::default(), ..capable() }
    }

    #[test]
    fn a_probe_that_waits_comes_alive_with_its_module_and_waits_again_without() {
        let seat = || Seat::Events(vec!["ib_uverbs:ib_umem_get".into()]);
        assert_eq!(next(seat(), &capable()), Err((Attach::Kprobe, None)));
        assert_eq!(next(seat(), &unloaded()), Err((Attach::Pending, None)));
        // The modules came, the function did not: it will not.
        let without = KernelFacts { symbols: Symbols::default(), ..capable() };
        assert_eq!(next(seat(), &without), Err((Attach::None, Some(Trouble::NoFunction))));
    }

    #[test]
    fn a_function_that_another_module_brings_gets_a_probe_of_its_own() {
        let seat = Seat::Events(vec!["ib_core:ib_umem_get".into()]);
        let targets = vec!["ib_uverbs:ib_umem_get".into()];
        assert_eq!(next(seat, &capable()), Ok(Rung::Tracefs { targets, pending: false }));
    }

    #[test]
    fn a_probe_of_the_perf_pmu_lives_as_long_as_its_load_of_the_module() {
        let loaded = |load| KernelFacts {
            loads: [("ib_uverbs".to_owned(), load)].into(),
            tracefs: None,
            no_tracefs: "none",
            ..capable()
        };
        assert_eq!(next(Seat::Perf(Some(7)), &loaded(7)), Err((Attach::Kprobe, None)));
        assert_eq!(next(Seat::Perf(Some(7)), &loaded(8)), Ok(Rung::PerfKprobe));
        let gone = KernelFacts { tracefs: None, no_tracefs: "none", ..unloaded() };
        let waits_for_nothing = Some(Trouble::NotLoaded("none"));
        assert_eq!(next(Seat::Perf(Some(7)), &gone), Err((Attach::None, waits_for_nothing)));
    }

    #[test]
    fn a_trampoline_stays_where_it_is() {
        assert_eq!(next(Seat::Trampoline, &capable()), Err((Attach::Fentry, None)));
    }

    const PIN: &str = "umem_get";
    const PIN_SYMBOL: &str = "ib_umem_get";

    /// A host where everything works: modules loaded, BTF for all, tracefs writable.
    fn capable() -> KernelFacts {
        KernelFacts {
            symbols: Symbols::parse("0 T ib_umem_get\t[ib_uverbs]\n", &[PIN_SYMBOL]),
            symbols_known: true,
            modules: Modules::parse("ib_uverbs 1 0 - Live 0\nib_core 1 0 - Live 0\n"),
            tracefs: Some("/sys/kernel/tracing".into()),
            vmlinux_btf: true,
            module_btf: ["ib_uverbs".to_owned(), "ib_core".to_owned()].into(),
            ..KernelFacts::default()
        }
    }

    fn fentry() -> EbpfOptions {
        EbpfOptions { attach: AttachMode::Fentry, ..EbpfOptions::default() }
    }

    fn planned(facts: &KernelFacts, options: &EbpfOptions) -> Option<Rung> {
        let plan = AttachPlan::choose(facts, options, &Seats::new());
        let mut hooks = plan.stems.into_iter().flat_map(|stem| stem.hooks);
        hooks.find(|planned| planned.hook.name == PIN).map(|planned| planned.rung)
    }

    fn rung(facts: &KernelFacts, options: &EbpfOptions) -> Rung {
        planned(facts, options).unwrap()
    }

    #[test]
    fn a_module_gets_a_kprobe_of_its_own_by_default_and_a_trampoline_on_request() {
        let live = Rung::Tracefs { targets: vec!["ib_uverbs:ib_umem_get".into()], pending: false };
        assert_eq!(rung(&capable(), &EbpfOptions::default()), live);
        assert_eq!(rung(&capable(), &fentry()), Rung::Fentry);
    }

    #[test]
    fn without_module_btf_a_trampoline_becomes_a_kprobe() {
        let mut facts = capable();
        facts.module_btf.clear();
        assert!(matches!(rung(&facts, &fentry()), Rung::Tracefs { pending: false, .. }));
    }

    #[test]
    fn a_kernel_that_preempts_gets_no_trampoline() {
        let facts = KernelFacts { preempts: true, ..capable() };
        assert!(matches!(rung(&facts, &fentry()), Rung::Tracefs { pending: false, .. }));
    }

    #[test]
    fn without_tracefs_the_perf_pmu_is_left() {
        let mut facts = capable();
        facts.tracefs = None;
        assert_eq!(rung(&facts, &EbpfOptions::default()), Rung::PerfKprobe);
    }

    #[test]
    fn a_function_built_into_the_kernel_gets_a_trampoline_else_a_kprobe() {
        let mut facts = capable();
        facts.symbols = Symbols::parse("0 T ib_umem_get\n", &[PIN_SYMBOL]);
        assert_eq!(rung(&facts, &EbpfOptions::default()), Rung::Fentry);
        facts.vmlinux_btf = false;
        let plain = Rung::Tracefs { targets: vec![PIN_SYMBOL.into()], pending: false };
        assert_eq!(rung(&facts, &EbpfOptions::default()), plain);
    }

    #[test]
    fn without_its_module_a_probe_waits_in_every_module_that_may_bring_it() {
        let mut facts = capable();
        facts.symbols = Symbols::default();
        facts.modules = Modules::default();
        let waiting = Rung::Tracefs {
            targets: vec!["ib_uverbs:ib_umem_get".into(), "ib_core:ib_umem_get".into()],
            pending: true,
        };
        assert_eq!(rung(&facts, &EbpfOptions::default()), waiting);
        facts.tracefs = None;
        assert_eq!(planned(&facts, &EbpfOptions::default()), None);
    }

    #[test]
    fn a_function_that_loaded_modules_lack_is_absent() {
        let mut facts = capable();
        facts.symbols = Symbols::default();
        assert_eq!(planned(&facts, &EbpfOptions::default()), None);
        let plan = AttachPlan::choose(&facts, &EbpfOptions::default(), &Seats::new());
        let state = plan.states.iter().find(|state| state.hook == PIN).unwrap();
        assert_eq!(state.trouble, Some(Trouble::NoFunction));
    }

    #[test]
    fn with_unknown_symbols_every_module_is_tried() {
        let mut facts = capable();
        facts.symbols = Symbols::default();
        facts.symbols_known = false;
        assert!(matches!(
            rung(&facts, &EbpfOptions::default()),
            Rung::Tracefs { pending: true, .. }
        ));
    }

    const LOCK: &str = "mlock_mlock";

    fn rung_of(name: &str, facts: &KernelFacts) -> Option<Rung> {
        let plan = AttachPlan::choose(facts, &EbpfOptions::default(), &Seats::new());
        let mut hooks = plan.stems.into_iter().flat_map(|stem| stem.hooks);
        hooks.find(|planned| planned.hook.name == name).map(|planned| planned.rung)
    }

    #[test]
    fn a_system_call_is_the_kernel_s_own_function_even_where_no_symbol_is_known() {
        let blind = KernelFacts { symbols: Symbols::default(), symbols_known: false, ..capable() };
        assert_eq!(rung_of(LOCK, &blind), Some(Rung::Fentry));
        let preempts = KernelFacts { preempts: true, ..blind };
        let hook = STEMS.iter().flat_map(|stem| stem.hooks).find(|hook| hook.name == LOCK);
        let targets = vec![hook.unwrap().symbol.to_owned()];
        assert_eq!(rung_of(LOCK, &preempts), Some(Rung::Tracefs { targets, pending: false }));
        // Its symbols are known and it is none of them.
        assert_eq!(rung_of(LOCK, &capable()), None);
    }

    #[test]
    fn only_what_is_switched_on_is_planned() {
        let planned = |watched| {
            let blind = KernelFacts { symbols_known: false, ..capable() };
            let options = EbpfOptions { watched, ..EbpfOptions::default() };
            let plan = AttachPlan::choose(&blind, &options, &Seats::new());
            plan.stems.iter().map(|planned| planned.stem.name).collect::<Vec<_>>()
        };
        let mlock = Some(MlockOptions::default());
        assert_eq!(planned(Watched { mr: true, mlock }), ["verbs", "umem", "mlock"]);
        assert_eq!(planned(Watched { mr: true, mlock: None }), ["verbs", "umem"]);
        assert_eq!(planned(Watched { mr: false, mlock }), ["mlock"]);
    }

    #[test]
    fn tracepoints_are_for_system_calls_and_only_when_they_are_asked_for() {
        let hooks: Vec<_> = STEMS.iter().flat_map(|stem| stem.hooks).collect();
        let planned = |tracepoints| {
            let mlock = Some(MlockOptions { tracepoints, ..MlockOptions::default() });
            let watched = Watched { mr: true, mlock };
            by_tracepoints(&hooks, &EbpfOptions { watched, ..EbpfOptions::default() }).len()
        };
        assert_eq!((planned(false), planned(true)), (0, 5));
        assert_eq!(next(Seat::Tracepoint, &capable()), Err((Attach::Tracepoint, None)));
    }
}
