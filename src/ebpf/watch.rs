//! The hooks of all stems: attached at the start, and again where modules that came or went make it
//! necessary. Owns the programs and their places; never reads a row.

use std::collections::BTreeMap;

use libbpf_rs::{Object, Program};

use crate::host::Host;
use crate::model::{AttachMode, EbpfOptions, HookState, Trouble};

use super::attach::{Attached, Seated, attach_all, log, not_attached};
use super::cost::{Rising, kprobe_misses};
use super::events::EventsError;
use super::facts::KernelFacts;
use super::hook::{Hook, STEMS};
use super::kprobe::KprobeEvents;
use super::load::{load, programs};
use super::maps::SharedMaps;
use super::plan::{AttachPlan, PlannedHook, PlannedStem, Rung, Seat, Seats, by_tracepoints};
use super::records;
use super::tracer::{load_error, unique_token};

/// What is attached. Fields drop in this order: a probe in use can't be removed.
pub struct Watch {
    seated: Vec<Seated>,
    probes: Option<KprobeEvents>,
    objects: Vec<Object>,
    hooks: Vec<HookState>,
    /// What kprobes of the perf PMU missed, by program.
    missed: BTreeMap<String, Rising>,
    /// The last load that was seen of each module.
    loads: BTreeMap<String, u64>,
    host: Host,
    options: EbpfOptions,
    /// Written before any program runs.
    settings: records::settings,
}

/// What settling came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// No program was put in its place.
    AsBefore,
    /// Some were, beside those that were there.
    More,
    /// Some were, and none of whole registrations had been there.
    Anew,
}

impl Watch {
    #[must_use]
    pub fn new(host: Host, options: EbpfOptions) -> Self {
        let settings = records::settings::default();
        Self {
            seated: Vec::new(),
            probes: None,
            objects: Vec::new(),
            hooks: Vec::new(),
            missed: BTreeMap::new(),
            loads: BTreeMap::new(),
            host,
            options,
            settings,
        }
    }

    /// Attaches what can be and is not yet, and notes how each hook stands. Nothing is loaded where
    /// no hook can be attached: maps that nothing can fill would cost the host their memory.
    ///
    /// # Errors
    /// There is something to attach, and not one object could be loaded.
    pub fn settle(
        &mut self,
        facts: &KernelFacts,
        maps: &mut SharedMaps,
        settings: records::settings,
    ) -> Result<Settled, EventsError> {
        self.settings = settings;
        if let (None, Some(at)) = (&self.probes, &facts.tracefs) {
            self.probes = KprobeEvents::new(at, unique_token()).ok();
        }
        self.note_loads(facts);
        let plan = AttachPlan::choose(facts, &self.options, &self.seats());
        self.leave_dead_seats(&plan);
        let counted = self.counts_registrations();
        if !plan.stems.is_empty() && maps.get("settings").is_some() {
            if !counted {
                // Until all are attached again, as at the start.
                self.settings.counting_since_ns = 0;
            }
            maps.write("settings", &0u32, &self.settings)?;
        }
        let before = self.seated.len();
        self.note(plan.states);
        let mut failure = None;
        for planned in plan.stems {
            if let Err(error) = self.attach(planned, facts, maps) {
                failure = Some(error);
            }
        }
        self.use_tracepoints(facts, maps);
        match failure {
            Some(error) if self.objects.is_empty() => Err(error),
            _ if self.seated.len() == before => Ok(Settled::AsBefore),
            _ if counted => Ok(Settled::More),
            _ => Ok(Settled::Anew),
        }
    }

    /// Notes what modules brought or took, without attaching anything.
    pub fn note_modules(&mut self, facts: &KernelFacts) {
        self.note_loads(facts);
        let plan = AttachPlan::choose(facts, &self.options, &self.seats());
        self.leave_dead_seats(&plan);
        self.note(plan.states);
        let given_up = Trouble::Denied(
            "capabilities.permanent_drop gave up the right to attach: restart mrscope".to_owned(),
        );
        let wanted = plan.stems.iter().flat_map(|stem| &stem.hooks);
        let states = wanted.map(|planned| not_attached(planned.hook, given_up.clone())).collect();
        self.note(states);
    }

    /// How each hook stands, in the order of the stems.
    #[must_use]
    pub fn hooks(&self) -> Vec<HookState> {
        let all = STEMS.iter().flat_map(|stem| stem.hooks);
        all.filter_map(|hook| self.hooks.iter().find(|state| state.hook == hook.name))
            .cloned()
            .collect()
    }

    /// Whether any program is loaded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Objects that were loaded: what they brought stays.
    #[must_use]
    pub fn count_objects(&self) -> usize {
        self.objects.len()
    }

    #[must_use]
    pub fn has_probes(&self) -> bool {
        self.probes.is_some()
    }

    /// Calls that each program missed, where the kernel tells.
    pub fn misses(&mut self) -> BTreeMap<String, u64> {
        let mut misses = self.probes.as_mut().map(KprobeEvents::misses).unwrap_or_default();
        let on_perf = self.seated.iter().filter(|seated| matches!(seated.seat, Seat::Perf(_)));
        for Attached { program, link } in on_perf.flat_map(|seated| &seated.programs) {
            if let Some(missed) = kprobe_misses(link) {
                self.missed.entry(program.clone()).or_default().rise_to(missed);
            }
        }
        // Of those that are gone, too.
        for (program, missed) in &self.missed {
            *misses.entry(program.clone()).or_default() += missed.total();
        }
        misses
    }

    /// All programs that were loaded.
    pub fn programs(&self) -> impl Iterator<Item = Program<'_>> {
        let programs = self.objects.iter().flat_map(|object| object.progs());
        programs.filter(Program::autoload)
    }

    fn seats(&self) -> Seats {
        let mut seats = Seats::new();
        for Seated { hook, seat, .. } in &self.seated {
            match (seats.get_mut(hook.name), seat) {
                (Some(Seat::Events(targets)), Seat::Events(more)) => targets.extend(more.clone()),
                _ => _ = seats.insert(hook.name, seat.clone()),
            }
        }
        seats
    }

    fn note_loads(&mut self, facts: &KernelFacts) {
        for (module, load) in &facts.loads {
            let before = self.loads.insert(module.clone(), *load);
            if let (Some(probes), true) = (&mut self.probes, before.is_some_and(|it| it != *load)) {
                probes.restart_of(module);
            }
        }
    }

    /// Whether whole registrations are watched.
    #[must_use]
    pub fn counts_registrations(&self) -> bool {
        self.seated.iter().any(|seated| seated.hook.symbol == "ib_uverbs_reg_mr")
    }

    /// Kprobes of the perf PMU whose module is gone, or another load of it there, are dead.
    fn leave_dead_seats(&mut self, plan: &AttachPlan) {
        let lives = |seated: &Seated| {
            let lives_on =
                |state: &HookState| state.hook == seated.hook.name && state.attach.watches();
            !matches!(seated.seat, Seat::Perf(_)) || plan.states.iter().any(lives_on)
        };
        let dead = self.seated.iter().filter(|seated| !lives(seated));
        for Attached { program, .. } in dead.flat_map(|seated| &seated.programs) {
            if let Some(rising) = self.missed.get_mut(program) {
                rising.restart();
            }
        }
        self.seated.retain(lives);
    }

    fn note(&mut self, states: Vec<HookState>) {
        for state in states {
            log(&state);
            match self.hooks.iter_mut().find(|known| known.hook == state.hook) {
                Some(known) => *known = state,
                None => self.hooks.push(state),
            }
        }
    }

    /// Watches system calls that can't be watched otherwise by their tracepoints, where that is
    /// allowed.
    fn use_tracepoints(&mut self, facts: &KernelFacts, maps: &mut SharedMaps) {
        let watched = self.options.watched;
        for stem in STEMS.into_iter().filter(|stem| stem.is_watched(watched)) {
            let seated = |hook: &Hook| self.seated.iter().any(|seated| seated.hook == hook);
            let unseated: Vec<_> = stem.hooks.iter().filter(|hook| !seated(hook)).collect();
            let hooks = by_tracepoints(&unseated, &self.options);
            if !hooks.is_empty() {
                // What stops it is a state of its hooks.
                let _ = self.attach(PlannedStem { stem, hooks }, facts, maps);
            } else if watched.mlock.is_some_and(|mlock| !mlock.tracepoints) {
                self.name_tracepoints(&unseated);
            }
        }
    }

    /// Says what would still watch these where they are system calls.
    fn name_tracepoints(&mut self, unseated: &[&Hook]) {
        let of_syscall = |name| unseated.iter().any(|h| h.name == name && h.syscall.is_some());
        for state in self.hooks.iter_mut().filter(|state| of_syscall(state.hook)) {
            if let Some(Trouble::Refused(why)) = &mut state.trouble {
                why.push_str(
                    "; mlock.tracepoints: true uses tracepoints, which slow down every system \
                     call of the host",
                );
            }
        }
    }

    /// Attaches hooks of a stem: by programs that are loaded already where they are.
    fn attach(
        &mut self,
        planned: PlannedStem,
        facts: &KernelFacts,
        maps: &mut SharedMaps,
    ) -> Result<(), EventsError> {
        let PlannedStem { stem, hooks } = planned;
        let mut unloaded = Vec::new();
        for planned in hooks {
            let Some(object) = self.objects.iter().find(|object| has_loaded(object, &planned))
            else {
                unloaded.push(planned);
                continue;
            };
            let maxactive = self.options.maxactive;
            let probes = self.probes.as_mut();
            let mut outcome = attach_all(object, &[planned], facts, probes, maxactive);
            outcome.explain(&self.host);
            self.seated.extend(outcome.seated);
            self.note(outcome.states);
        }
        if unloaded.is_empty() {
            return Ok(());
        }
        let options = self.options.clone();
        self.start(&PlannedStem { stem, hooks: unloaded }, facts, maps, &options)
    }

    /// Loads programs of a stem and attaches them; by kprobes alone if the kernel refuses a
    /// trampoline.
    fn start(
        &mut self,
        planned: &PlannedStem,
        facts: &KernelFacts,
        maps: &mut SharedMaps,
        options: &EbpfOptions,
    ) -> Result<(), EventsError> {
        let has_trampolines = planned.hooks.iter().any(|p| p.rung == Rung::Fentry);
        let refused = match self.try_to_start(planned, facts, maps, options) {
            Ok(true) => return Ok(()),
            Ok(false) => "a trampoline can't be attached".to_owned(),
            Err(error) if has_trampolines => error.to_string(),
            Err(error) => {
                let error = error.explained(&self.host);
                let trouble = trouble(&error);
                let failed = planned.hooks.iter();
                self.note(failed.map(|p| not_attached(p.hook, trouble.clone())).collect());
                return Err(error);
            }
        };
        let name = planned.stem.name;
        if options.attach == AttachMode::Fentry {
            tracing::warn!("{name}: trampolines are refused, kprobes are used: {refused}");
        } else {
            tracing::info!("{name}: trampolines are refused, kprobes are used: {refused}");
        }
        let kprobes = KernelFacts { vmlinux_btf: false, ..facts.clone() };
        let auto = EbpfOptions { attach: AttachMode::Auto, ..options.clone() };
        self.start(&without_trampolines(planned, &kprobes, &auto), &kprobes, maps, &auto)
    }

    /// False if a trampoline could not be attached: then nothing of it is kept.
    fn try_to_start(
        &mut self,
        planned: &PlannedStem,
        facts: &KernelFacts,
        maps: &mut SharedMaps,
        options: &EbpfOptions,
    ) -> Result<bool, EventsError> {
        let object = load(planned, facts, maps, options).map_err(|error| load_error(&error))?;
        maps.add(&object).map_err(|source| EventsError::Map { map: "all", source })?;
        maps.write("settings", &0u32, &self.settings)?;
        let probes_before = self.probes.as_ref().map_or(0, KprobeEvents::count);
        let (probes, maxactive) = (self.probes.as_mut(), options.maxactive);
        let mut outcome = attach_all(&object, &planned.hooks, facts, probes, maxactive);
        outcome.explain(&self.host);
        if outcome.lost_a_trampoline(&planned.hooks) {
            // Links go before their events, which would be busy.
            drop(outcome);
            if let Some(probes) = &mut self.probes {
                probes.keep_first(probes_before);
            }
            return Ok(false);
        }
        if outcome.seated.iter().any(|seated| matches!(seated.seat, Seat::Perf(_))) {
            tracing::warn!(
                "{}: tracefs can't be written, kprobes of the perf PMU are used until a restart: \
                 return probes follow few calls at once, and kernels before 6.7 don't tell what \
                 they miss ({})",
                planned.stem.name,
                facts.no_tracefs
            );
        }
        self.seated.extend(outcome.seated);
        self.note(outcome.states);
        self.objects.push(object);
        Ok(true)
    }
}

impl Drop for Watch {
    /// Taking out a probe waits for a grace period of the kernel: all wait for theirs at once.
    fn drop(&mut self) {
        let seated = std::mem::take(&mut self.seated);
        std::thread::scope(|scope| {
            for one in seated.into_iter().flat_map(|seated| seated.programs) {
                // Refused a thread, the closure is dropped here, and the link with it.
                let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(one));
            }
        });
    }
}

/// The same hooks, each on the rung that it has where there are no trampolines.
fn without_trampolines(
    planned: &PlannedStem,
    facts: &KernelFacts,
    options: &EbpfOptions,
) -> PlannedStem {
    let plan = AttachPlan::choose(facts, options, &Seats::new());
    let same = plan.stems.into_iter().filter(|other| other.stem.name == planned.stem.name);
    let asked = |other: &PlannedHook| planned.hooks.iter().any(|one| one.hook == other.hook);
    let hooks = same.flat_map(|stem| stem.hooks).filter(asked).collect();
    PlannedStem { stem: planned.stem, hooks }
}

fn has_loaded(object: &Object, planned: &PlannedHook) -> bool {
    programs(planned).iter().all(|wanted| {
        object.progs().any(|program| program.autoload() && program.name() == wanted.as_str())
    })
}

fn trouble(error: &EventsError) -> Trouble {
    match error {
        EventsError::Denied(_) | EventsError::LockedDown(_) => Trouble::Denied(error.to_string()),
        _ => Trouble::Refused(error.to_string()),
    }
}
