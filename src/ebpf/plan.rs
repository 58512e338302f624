//! Which rung of the ladder each hook stands on: decided from facts alone, without I/O.

use crate::host::Home;
use crate::model::{Attach, AttachMode, EbpfOptions, HookState, Trouble};

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
    Absent(Trouble),
}

impl Rung {
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent(_))
    }
}

/// One hook with its rung.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedHook {
    pub hook: &'static Hook,
    pub rung: Rung,
}

/// The hooks of one BPF object.
#[derive(Debug, Clone)]
pub struct PlannedStem {
    pub stem: &'static Stem,
    pub hooks: Vec<PlannedHook>,
}

/// What to load and where to attach it.
#[derive(Debug, Clone)]
pub struct AttachPlan {
    pub stems: Vec<PlannedStem>,
}

impl AttachPlan {
    /// Chooses a rung for every hook.
    #[must_use]
    pub fn choose(facts: &KernelFacts, options: &EbpfOptions) -> Self {
        let plan_hook = |hook| PlannedHook { hook, rung: choose_rung(hook, facts, options) };
        Self {
            stems: STEMS
                .iter()
                .map(|stem| PlannedStem { stem, hooks: stem.hooks.iter().map(plan_hook).collect() })
                .collect(),
        }
    }
}

fn choose_rung(hook: &Hook, facts: &KernelFacts, options: &EbpfOptions) -> Rung {
    let kprobe = |targets, pending| match facts.tracefs {
        Some(_) => Rung::Tracefs { targets, pending },
        None if pending => Rung::Absent(Trouble::NotLoaded(facts.no_tracefs)),
        None => Rung::PerfKprobe,
    };
    match facts.symbols.home(hook.symbol) {
        Some(home @ Home::Vmlinux) if facts.trampolines(home) => Rung::Fentry,
        Some(Home::Vmlinux) => kprobe(vec![hook.symbol.to_owned()], false),
        Some(home) if options.attach == AttachMode::Fentry && facts.trampolines(home) => {
            Rung::Fentry
        }
        Some(Home::Module(module)) => kprobe(vec![format!("{module}:{}", hook.symbol)], false),
        None => {
            // With unknown symbols every module is tried: a wrong one is refused or stays pending.
            let candidates: Vec<_> = hook
                .modules
                .iter()
                .filter(|module| !facts.symbols_known || !facts.modules.has(module))
                .map(|module| format!("{module}:{}", hook.symbol))
                .collect();
            if candidates.is_empty() {
                Rung::Absent(Trouble::NoFunction)
            } else {
                kprobe(candidates, true)
            }
        }
    }
}

/// Follows modules that came or went: tracefs' probes live and wait by themselves.
pub fn restate(hooks: &mut [HookState], facts: &KernelFacts) {
    for state in hooks {
        if !matches!(state.attach, Attach::Kprobe | Attach::Pending) {
            continue;
        }
        let hook = STEMS.iter().flat_map(|stem| stem.hooks).find(|hook| hook.name == state.hook);
        let may_come = hook.is_some_and(|hook| hook.modules.iter().any(|m| !facts.modules.has(m)));
        (state.attach, state.trouble) = match facts.symbols.home(state.symbol) {
            Some(_) => (Attach::Kprobe, None),
            None if may_come || !facts.symbols_known => (Attach::Pending, None),
            None => (Attach::None, Some(Trouble::NoFunction)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Modules, Symbols};

    #[test]
    fn a_probe_that_waits_comes_alive_with_its_module_and_waits_again_without() {
        let state = |attach, trouble| HookState { hook: PIN, symbol: PIN_SYMBOL, attach, trouble };
        let mut hooks = [state(Attach::Pending, None)];
        restate(&mut hooks, &capable());
        assert_eq!(hooks, [state(Attach::Kprobe, None)]);

        let unloaded =
            KernelFacts { symbols: Symbols::default(), modules: Modules::default(), ..capable() };
        restate(&mut hooks, &unloaded);
        assert_eq!(hooks, [state(Attach::Pending, None)]);

        // The modules came, the function did not: it will not.
        restate(&mut hooks, &KernelFacts { symbols: Symbols::default(), ..capable() });
        assert_eq!(hooks, [state(Attach::None, Some(Trouble::NoFunction))]);
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

    fn rung(facts: &KernelFacts, options: &EbpfOptions) -> Rung {
        let plan = AttachPlan::choose(facts, options);
        let mut hooks = plan.stems.into_iter().flat_map(|stem| stem.hooks);
        hooks.find(|planned| planned.hook.name == PIN).map(|planned| planned.rung).unwrap()
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
        assert!(matches!(rung(&facts, &EbpfOptions::default()), Rung::Absent(_)));
    }

    #[test]
    fn a_function_that_loaded_modules_lack_is_absent() {
        let mut facts = capable();
        facts.symbols = Symbols::default();
        assert_eq!(rung(&facts, &EbpfOptions::default()), Rung::Absent(Trouble::NoFunction));
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
}
