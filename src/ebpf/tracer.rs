//! The programs in the kernel: loaded, attached, read, and taken out again.

use std::io;
use std::os::fd::AsFd;

use libbpf_rs::{MapInfo, Object};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::host::{self, Host, Modules, Processes};
use crate::model::{
    AttachMode, EbpfOptions, HookState, LostUpdates, MapUse, ProcessKey, Snapshot, Trouble, text,
};

use super::attach::{Attached, attach_all, log, not_attached, one_line, os_error};
use super::cost::{kprobe_misses, map_memory, recursion_misses};
use super::decode::{self, DeviceNames};
use super::device::find_name_offset;
use super::events::{EventsError, KernelEvents};
use super::facts::{FieldOffsets, KernelFacts};
use super::hook;
use super::kprobe::KprobeEvents;
use super::load::load;
use super::maps::SharedMaps;
use super::plan::{AttachPlan, PlannedHook, PlannedStem, Rung, restate};
use super::records;

/// A call whose end was never seen is given up when its thread is gone; younger ones are not asked.
const STALE_CALL_NS: u64 = 1_000_000_000;

/// Attached programs and their maps. Fields drop in this order: a probe in use can't be removed.
pub struct Tracer {
    attached: Vec<Attached>,
    probes: Option<KprobeEvents>,
    objects: Vec<Object>,
    maps: SharedMaps,
    hooks: Vec<HookState>,
    host: Host,
    modules: Modules,
    options: EbpfOptions,
    settings: records::settings,
    /// Calls whose thread ended before their return was seen.
    abandoned_calls: u64,
}

impl Tracer {
    /// Loads and attaches what `options` ask for and this kernel can do; what it can't is a state.
    ///
    /// # Errors
    /// Not one object could be loaded.
    pub fn start(host: Host, options: &EbpfOptions) -> Result<Self, EventsError> {
        quiet_libbpf();
        if !Processes::of(&host).all_visible() {
            tracing::warn!(
                "/proc shows the processes of one pid namespace only: those that ended can't be \
                 told; run mrscope in the host's (hostPID, --pid=host)"
            );
        }
        let facts = KernelFacts::gather(&host);
        if options.attach == AttachMode::Fentry && facts.preempts {
            tracing::warn!(
                "this kernel preempts (or does not tell, without debugfs): trampolines would lose \
                 calls, kprobes are used"
            );
        }
        let mut tracer = Self {
            attached: Vec::new(),
            probes: None,
            objects: Vec::new(),
            maps: SharedMaps::default(),
            hooks: Vec::new(),
            settings: settings(&facts.offsets),
            modules: facts.modules.clone(),
            options: options.clone(),
            host,
            abandoned_calls: 0,
        };
        tracer.set_up(&facts)?;
        Ok(tracer)
    }

    /// Loads and attaches all stems; nothing where not one hook can be attached.
    fn set_up(&mut self, facts: &KernelFacts) -> Result<(), EventsError> {
        self.probes = facts.tracefs.as_deref().map(|at| KprobeEvents::new(at, unique_token()));
        let options = self.options.clone();
        let stems = AttachPlan::choose(facts, &options).stems;
        if stems.iter().flat_map(|stem| &stem.hooks).all(|hook| hook.rung.is_absent()) {
            if !host::may_trace() {
                // What is there can't even be looked for.
                return Err(EventsError::Denied("no right to load programs".to_owned()));
            }
            // Maps that nothing can fill would cost the host their memory.
            self.hooks = stems.iter().flat_map(|stem| &stem.hooks).filter_map(absent).collect();
            self.hooks.iter().for_each(log);
            return Ok(());
        }
        self.hooks.clear();
        let mut failure = None;
        for planned in stems {
            if let Err(error) = self.start_stem(&planned, facts, &options) {
                failure = Some(error);
            }
        }
        if let (true, Some(error)) = (self.objects.is_empty(), failure) {
            return Err(error);
        }
        self.settings.counting_since_ns = now_ns();
        self.write_settings()
    }

    /// Tries again where nothing could be attached: a module or tracefs may have come.
    fn look_again(&mut self) -> Result<(), EventsError> {
        let Ok(modules) = Modules::read(&self.host) else {
            return Ok(());
        };
        let tracefs_came = self.probes.is_none() && host::tracefs(&self.host).is_ok();
        if !tracefs_came && of_hooks(&modules) == of_hooks(&self.modules) {
            return Ok(());
        }
        let facts = KernelFacts::gather(&self.host);
        self.modules = facts.modules.clone();
        self.settings = settings(&facts.offsets);
        self.set_up(&facts)
    }

    /// Loads a stem and attaches its hooks; by kprobes alone if the kernel refuses a trampoline.
    fn start_stem(
        &mut self,
        planned: &PlannedStem,
        facts: &KernelFacts,
        options: &EbpfOptions,
    ) -> Result<(), EventsError> {
        let name = planned.stem.name;
        let has_trampolines = planned.hooks.iter().any(|p| p.rung == Rung::Fentry);
        let refused = match self.try_stem(planned, options) {
            Ok(true) => return Ok(()),
            Ok(false) => "a trampoline can't be attached".to_owned(),
            Err(error) if has_trampolines => error.to_string(),
            Err(error) => {
                let error = error.explained(&self.host);
                let trouble = match &error {
                    EventsError::Denied(_) | EventsError::LockedDown(_) => {
                        Trouble::Denied(error.to_string())
                    }
                    _ => Trouble::Refused(error.to_string()),
                };
                let states = planned.hooks.iter().map(|p| not_attached(p.hook, trouble.clone()));
                self.hooks.extend(states);
                return Err(error);
            }
        };
        tracing::info!("{name}: trampolines are refused, kprobes are used: {refused}");
        let kprobes = KernelFacts { vmlinux_btf: false, ..facts.clone() };
        let auto = EbpfOptions { attach: AttachMode::Auto, ..options.clone() };
        let plan = AttachPlan::choose(&kprobes, &auto);
        match plan.stems.into_iter().find(|planned| planned.stem.name == name) {
            Some(planned) => self.start_stem(&planned, &kprobes, &auto),
            None => Ok(()),
        }
    }

    /// False if a trampoline could not be attached: then nothing of the stem is kept.
    fn try_stem(
        &mut self,
        planned: &PlannedStem,
        options: &EbpfOptions,
    ) -> Result<bool, EventsError> {
        let object = load(planned, &self.maps, options).map_err(|error| load_error(&error))?;
        self.maps.add(&object).map_err(|source| EventsError::Map { map: "all", source })?;
        self.write_settings()?;
        let outcome = attach_all(&object, &planned.hooks, self.probes.as_mut(), options.maxactive);
        if outcome.lost_a_trampoline(&planned.hooks) {
            return Ok(false);
        }
        if planned.hooks.iter().any(|p| p.rung == Rung::PerfKprobe) {
            tracing::warn!(
                "{}: tracefs can't be written: return probes follow few calls at once, and \
                 kernels before 6.7 don't tell what they miss",
                planned.stem.name
            );
        }
        self.attached.extend(outcome.attached);
        self.hooks.extend(outcome.hooks);
        self.objects.push(object);
        Ok(true)
    }

    fn write_settings(&self) -> Result<(), EventsError> {
        self.maps.write("settings", &0u32, &self.settings)
    }

    /// Looks again at what a module brought or took: which probes live, and where fields are.
    fn follow_modules(&mut self) -> Result<(), EventsError> {
        let Ok(modules) = Modules::read(&self.host) else {
            return Ok(());
        };
        if of_hooks(&modules) == of_hooks(&self.modules) {
            return Ok(());
        }
        let facts = KernelFacts::gather(&self.host);
        self.modules = facts.modules.clone();
        if self.probes.is_some() {
            restate(&mut self.hooks, &facts);
        }
        let counting_since_ns = self.settings.counting_since_ns;
        let learned = self.settings.device_name_offset;
        self.settings = records::settings { counting_since_ns, ..settings(&facts.offsets) };
        if facts.offsets.device_name.is_none() {
            self.settings.device_name_offset = learned;
        }
        self.write_settings()
    }

    /// Samples of devices by kernel address; learns where names are when it is not known yet.
    fn sampled_names(&mut self, present: &[String]) -> Result<Vec<(u64, String)>, EventsError> {
        let samples: Vec<(u64, records::device_sample)> = self.maps.rows("device_samples")?;
        if samples.is_empty() {
            return Ok(Vec::new());
        }
        if self.settings.device_name_offset == records::OFFSET_UNKNOWN {
            let learned = samples
                .iter()
                .find_map(|(_, sample)| find_name_offset(&sample_bytes(sample), present));
            if let Some(offset) = learned {
                tracing::debug!("device names are {offset} bytes into ib_device");
                self.settings.device_name_offset = offset;
                self.write_settings()?;
            }
        }
        let offset = self.settings.device_name_offset as usize;
        Ok(samples
            .iter()
            .filter_map(|(pointer, sample)| {
                let bytes = sample_bytes(sample);
                Some((*pointer, text(bytes.get(offset..)?)))
            })
            .collect())
    }

    /// Removes calls whose thread ended before a return probe saw them end.
    fn give_up_calls(&mut self, calls: &mut Vec<(u64, records::call)>, now_ns: u64) {
        let processes = Processes::of(&self.host);
        calls.retain(|(pid_tgid, call)| {
            let old = now_ns.saturating_sub(call.start_ns) > STALE_CALL_NS;
            let (tgid, tid) = ((pid_tgid >> 32) as u32, *pid_tgid as u32);
            if !old || !processes.thread_is_gone(tgid, tid) {
                return true;
            }
            if self.maps.delete("calls", pid_tgid) {
                self.abandoned_calls += 1;
            }
            false
        });
    }

    fn lost(&mut self) -> Result<Vec<LostUpdates>, EventsError> {
        let mut lost = decode::lost(&self.maps.array("lost", records::LOST_REASONS)?);
        let mut add = |source: String, reason, count| {
            lost.push(LostUpdates { source, reason, count });
        };
        add("calls".to_owned(), "abandoned", self.abandoned_calls);
        if let Some(probes) = &mut self.probes {
            for (program, missed) in probes.misses() {
                add(program, "probe_missed", missed);
            }
        } else {
            for Attached { program, link } in &self.attached {
                if let Some(missed) = kprobe_misses(link) {
                    add(program.clone(), "probe_missed", missed);
                }
            }
        }
        for object in &self.objects {
            for program in object.progs().filter(libbpf_rs::Program::autoload) {
                let count = recursion_misses(program.as_fd());
                if count > 0 {
                    add(program.name().to_string_lossy().into_owned(), "recursion", count);
                }
            }
        }
        Ok(lost)
    }

    fn map_use(&self, map: &'static str, entries: u64) -> Result<MapUse, EventsError> {
        let fd = self.maps.map(map)?;
        let info = MapInfo::new(fd)
            .map_err(|error| EventsError::Map { map, source: io::Error::other(error) })?;
        Ok(MapUse {
            map,
            entries,
            max_entries: u64::from(info.info.max_entries),
            memory_bytes: map_memory(fd),
        })
    }
}

impl Drop for Tracer {
    /// Taking out a probe waits for a grace period of the kernel: all wait for theirs at once.
    fn drop(&mut self) {
        let attached = std::mem::take(&mut self.attached);
        std::thread::scope(|scope| {
            for one in attached {
                // Refused a thread, the closure is dropped here, and the link with it.
                let _ = std::thread::Builder::new().spawn_scoped(scope, move || drop(one));
            }
        });
    }
}

impl KernelEvents for Tracer {
    fn snapshot(&mut self, present: &[String]) -> Result<Snapshot, EventsError> {
        if self.objects.is_empty() {
            self.look_again()?;
            if self.objects.is_empty() {
                return Ok(Snapshot::default());
            }
        }
        self.follow_modules()?;
        let now_ns = now_ns();
        let mut calls = self.maps.rows("calls")?;
        self.give_up_calls(&mut calls, now_ns);
        let totals = self.maps.rows("totals")?;
        let failures = self.maps.rows("failures")?;
        // After the rows that carry their ids: the kernel names a device before it counts for it.
        let sampled = self.sampled_names(present)?;
        let devices = self.maps.rows("devices")?;
        let names = DeviceNames::new(&devices, |pointer| {
            sampled.iter().find(|(at, _)| *at == pointer).map(|(_, name)| name.clone())
        });
        let processes: Vec<(records::process_key, records::process)> =
            self.maps.rows("processes")?;
        // Every pin names its process; the map itself is never walked.
        let pins: i64 = processes.iter().map(|(_, row)| row.live_pins).sum();
        let maps = vec![
            self.map_use("calls", calls.len() as u64)?,
            self.map_use("pins", pins.max(0) as u64)?,
            self.map_use("processes", processes.len() as u64)?,
            self.map_use("totals", totals.len() as u64)?,
            self.map_use("failures", failures.len() as u64)?,
            self.map_use("devices", devices.len() as u64)?,
            self.map_use("device_samples", sampled.len() as u64)?,
        ];
        Ok(Snapshot {
            devices: decode::device_totals(&totals, &names),
            failures: decode::failures(&failures, &names),
            processes: processes
                .iter()
                .filter_map(|(key, row)| decode::process(key, row))
                .collect(),
            in_flight: calls
                .iter()
                .filter_map(|(thread, call)| decode::in_flight(*thread, call, now_ns, &names))
                .collect(),
            lost: self.lost()?,
            maps,
        })
    }

    fn forget(&mut self, gone: &[ProcessKey]) {
        for key in gone {
            let key =
                records::process_key { start_boottime_ns: key.start_ns, tgid: key.tgid, unused: 0 };
            // A row that is not there any more is what was asked for.
            self.maps.delete("processes", &key);
        }
    }

    fn hooks(&self) -> Vec<HookState> {
        self.hooks.clone()
    }
}

/// Which modules of hooks are loaded.
fn of_hooks(modules: &Modules) -> Vec<bool> {
    hook::modules().map(|module| modules.has(module)).collect()
}

/// The state of a hook that no rung can be had for.
fn absent(planned: &PlannedHook) -> Option<HookState> {
    match &planned.rung {
        Rung::Absent(trouble) => Some(not_attached(planned.hook, trouble.clone())),
        _ => None,
    }
}

fn settings(offsets: &FieldOffsets) -> records::settings {
    let known = |offset: Option<u32>| offset.unwrap_or(records::OFFSET_UNKNOWN);
    records::settings {
        counting_since_ns: 0,
        page_bytes: rustix::param::page_size() as u32,
        device_name_offset: known(offsets.device_name),
        attrs_context_offset: known(offsets.attrs_context),
        context_device_offset: known(offsets.context_device),
    }
}

fn sample_bytes(sample: &records::device_sample) -> Vec<u8> {
    let length = (sample.length as usize).min(sample.bytes.len());
    sample.bytes[..length].iter().map(|c| *c as u8).collect()
}

/// EPERM is a missing capability; the verifier's refusals are EACCES and others.
pub fn load_error(error: &libbpf_rs::Error) -> EventsError {
    if os_error(error) == Some(Errno::PERM.raw_os_error()) {
        EventsError::Denied(one_line(error))
    } else {
        EventsError::Unsupported(one_line(error))
    }
}

/// The clock of bpf_ktime_get_ns.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Unique on this host, though two containers may both be pid 1.
fn unique_token() -> String {
    format!("{}_{:04x}", std::process::id(), (now_ns() >> 10) & 0xffff)
}

/// libbpf's own words go to the debug log: what matters of them is in our errors.
pub fn quiet_libbpf() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |level, text| {
        if !matches!(level, libbpf_rs::PrintLevel::Debug) {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
        }
    })));
}
