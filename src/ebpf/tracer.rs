//! The programs in the kernel: loaded, attached, read, and taken out again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::{Link, MapInfo, Object, TracepointCategory};
use rustix::time::{ClockId, clock_gettime};

use crate::host::{self, Host};
use crate::model::{Attach, HookState, LostUpdates, MapUse, ProcessKey, Snapshot};

use super::decode::{self, DeviceNames};
use super::device::{find_name_offset, text};
use super::events::{EventsError, KernelEvents};
use super::facts::KernelFacts;
use super::hook::{Hook, Side};
use super::kprobe::KprobeEvents;
use super::load::load;
use super::maps::SharedMaps;
use super::plan::{AttachMode, AttachPlan, EbpfOptions, PlannedHook, PlannedStem, Rung};
use super::records;

/// A call whose end was never seen is given up when its thread is gone; younger ones are not asked.
const STALE_CALL_NS: u64 = 1_000_000_000;

/// Attached programs and their maps. Fields drop in this order: a probe in use can't be removed.
pub struct Tracer {
    links: Vec<Link>,
    probes: Option<KprobeEvents>,
    objects: Vec<Object>,
    maps: SharedMaps,
    hooks: Vec<HookState>,
    host: Host,
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
        let facts = KernelFacts::gather(&host);
        let mut tracer = Self {
            links: Vec::new(),
            probes: facts.tracefs.as_deref().map(|at| KprobeEvents::new(at, unique_token())),
            objects: Vec::new(),
            maps: SharedMaps::default(),
            hooks: Vec::new(),
            settings: settings(&facts),
            host,
            abandoned_calls: 0,
        };
        let mut failure = None;
        for planned in AttachPlan::choose(&facts, options).stems {
            if let Err(error) = tracer.start_stem(planned, &facts, options) {
                failure = Some(error);
            }
        }
        if let (true, Some(error)) = (tracer.objects.is_empty(), failure) {
            return Err(error);
        }
        tracer.settings.counting_since_ns = now_ns();
        tracer.write_settings()?;
        Ok(tracer)
    }

    /// Loads a stem, without trampolines if the kernel refuses those, and attaches its hooks.
    fn start_stem(
        &mut self,
        mut planned: PlannedStem,
        facts: &KernelFacts,
        options: &EbpfOptions,
    ) -> Result<(), EventsError> {
        let mut loaded = load(&planned, &self.maps);
        if loaded.is_err() && planned.hooks.iter().any(|p| p.rung == Rung::Fentry) {
            tracing::info!(
                "{}: trampolines are refused, kprobes are used: {}",
                planned.stem.name,
                one_line(loaded.as_ref().err())
            );
            planned = without_fentry(planned.stem.name, facts, options).unwrap_or(planned);
            loaded = load(&planned, &self.maps);
        }
        let object = match loaded {
            Ok(object) => object,
            Err(error) => {
                let failure = load_error(&error);
                for PlannedHook { hook, .. } in planned.hooks {
                    self.note(hook, Attach::None, failure.to_string());
                }
                return Err(failure);
            }
        };
        self.maps.add(&object).map_err(|source| EventsError::Map { map: "all", source })?;
        if self.objects.is_empty() {
            self.write_settings()?;
        }
        for PlannedHook { hook, rung } in planned.hooks {
            match self.attach(&object, hook, &rung, options.maxactive) {
                Ok(attach) => self.note(hook, attach, String::new()),
                Err(reason) => self.note(hook, Attach::None, reason),
            }
        }
        self.objects.push(object);
        Ok(())
    }

    fn note(&mut self, hook: &Hook, attach: Attach, reason: String) {
        if reason.is_empty() {
            tracing::debug!("{} ({}): {}", hook.name, hook.symbol, attach.label());
        } else {
            tracing::debug!("{} ({}): not attached: {reason}", hook.name, hook.symbol);
        }
        self.hooks.push(HookState { hook: hook.name, symbol: hook.symbol, attach, reason });
    }

    /// Attaches both sides of a hook, or neither: half a hook would count wrongly.
    fn attach(
        &mut self,
        object: &Object,
        hook: &Hook,
        rung: &Rung,
        maxactive: u32,
    ) -> Result<Attach, String> {
        let mut links = Vec::new();
        let attach = match rung {
            Rung::Absent(reason) => return Err((*reason).to_owned()),
            Rung::Fentry => {
                for side in hook.shape.sides() {
                    let name = hook.fentry_program(*side);
                    links.push(with_program(object, &name, |p| p.attach_trace())?);
                }
                Attach::Fentry
            }
            Rung::PerfKprobe => {
                for side in hook.shape.sides() {
                    let name = hook.kprobe_program(*side);
                    let returns = *side == Side::Exit;
                    links.push(with_program(object, &name, |p| {
                        p.attach_kprobe(returns, hook.symbol)
                    })?);
                }
                Attach::Kprobe
            }
            Rung::Tracefs { targets, pending } => {
                let mut refused = String::new();
                for target in targets {
                    match self.attach_events(object, hook, target, maxactive) {
                        Ok(pair) => links.extend(pair),
                        Err(error) => refused = error,
                    }
                }
                if links.is_empty() {
                    return Err(refused);
                }
                if *pending { Attach::Pending } else { Attach::Kprobe }
            }
        };
        self.links.append(&mut links);
        Ok(attach)
    }

    fn attach_events(
        &mut self,
        object: &Object,
        hook: &Hook,
        target: &str,
        maxactive: u32,
    ) -> Result<Vec<Link>, String> {
        let probes = self.probes.as_mut().ok_or("tracefs can't be written")?;
        let mut links = Vec::new();
        // The return first: an entry that is seen finds its return watched.
        for side in hook.shape.sides().iter().rev() {
            let event = probes
                .define(hook.name, *side, target, maxactive)
                .map_err(|error| format!("kprobe on {target}: {error}"))?;
            let category = TracepointCategory::Custom(event.group);
            // libbpf opens the event for all processes on CPU 0, which fires on every CPU.
            links.push(with_program(object, &hook.kprobe_program(*side), |program| {
                program.attach_tracepoint(category, &event.name)
            })?);
        }
        Ok(links)
    }

    fn write_settings(&self) -> Result<(), EventsError> {
        self.maps.write("settings", &0u32, &self.settings)
    }

    /// Samples of devices by kernel address; learns where names are when it is not known yet.
    fn sampled_names(&mut self) -> Result<Vec<(u64, String)>, EventsError> {
        let samples: Vec<(u64, records::device_sample)> = self.maps.rows("device_samples")?;
        if samples.is_empty() {
            return Ok(Vec::new());
        }
        if self.settings.device_name_offset == records::OFFSET_UNKNOWN {
            let names = host::device_names(&self.host).unwrap_or_default();
            let learned = samples
                .iter()
                .find_map(|(_, sample)| find_name_offset(&sample_bytes(sample), &names));
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
        calls.retain(|(pid_tgid, call)| {
            let old = now_ns.saturating_sub(call.start_ns) > STALE_CALL_NS;
            let (tgid, tid) = ((pid_tgid >> 32) as u32, *pid_tgid as u32);
            if !old || host::thread_exists(&self.host, tgid, tid) {
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
        lost.push(LostUpdates {
            source: "calls".to_owned(),
            reason: "abandoned",
            count: self.abandoned_calls,
        });
        let profiles = self.probes.as_mut().map(KprobeEvents::profile).unwrap_or_default();
        lost.extend(profiles.into_iter().map(|(source, profile)| LostUpdates {
            source,
            reason: "probe_missed",
            count: profile.missed,
        }));
        for object in &self.objects {
            for program in object.progs().filter(libbpf_rs::Program::autoload) {
                let count = recursion_misses(program.as_fd());
                if count > 0 {
                    let source = program.name().to_string_lossy().into_owned();
                    lost.push(LostUpdates { source, reason: "recursion", count });
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
        let links = std::mem::take(&mut self.links);
        std::thread::scope(|scope| {
            for link in links {
                scope.spawn(move || drop(link));
            }
        });
    }
}

impl KernelEvents for Tracer {
    fn snapshot(&mut self) -> Result<Snapshot, EventsError> {
        let sampled = self.sampled_names()?;
        let devices = self.maps.rows("devices")?;
        let names = DeviceNames::new(&devices, |pointer| {
            sampled.iter().find(|(at, _)| *at == pointer).map(|(_, name)| name.clone())
        });
        let now_ns = now_ns();
        let mut calls = self.maps.rows("calls")?;
        self.give_up_calls(&mut calls, now_ns);
        let totals = self.maps.rows("totals")?;
        let failures = self.maps.rows("failures")?;
        let processes: Vec<(records::process_key, records::process)> =
            self.maps.rows("processes")?;
        let gauges: Vec<i64> = self.maps.array("gauges", records::GAUGES)?;
        let pins = gauges[records::GAUGE_PINS as usize];
        let maps = vec![
            self.map_use("calls", calls.len() as u64)?,
            self.map_use("pins", pins.max(0) as u64)?,
            self.map_use("processes", processes.len() as u64)?,
            self.map_use("totals", totals.len() as u64)?,
            self.map_use("failures", failures.len() as u64)?,
            self.map_use("devices", devices.len() as u64)?,
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

fn settings(facts: &KernelFacts) -> records::settings {
    let known = |offset: Option<u32>| offset.unwrap_or(records::OFFSET_UNKNOWN);
    records::settings {
        counting_since_ns: 0,
        page_bytes: rustix::param::page_size() as u32,
        device_name_offset: known(facts.offsets.device_name),
        attrs_context_offset: known(facts.offsets.attrs_context),
        context_device_offset: known(facts.offsets.context_device),
    }
}

fn without_fentry(stem: &str, facts: &KernelFacts, options: &EbpfOptions) -> Option<PlannedStem> {
    let facts = KernelFacts { vmlinux_btf: false, ..facts.clone() };
    let options = EbpfOptions { attach: AttachMode::Auto, ..options.clone() };
    AttachPlan::choose(&facts, &options).stems.into_iter().find(|p| p.stem.name == stem)
}

fn with_program(
    object: &Object,
    name: &str,
    attach: impl FnOnce(&libbpf_rs::ProgramMut<'_>) -> libbpf_rs::Result<Link>,
) -> Result<Link, String> {
    let program = object
        .progs_mut()
        .find(|program| program.name() == name)
        .ok_or_else(|| format!("the object has no program {name}"))?;
    attach(&program).map_err(|error| format!("{name}: {}", one_line(Some(&error))))
}

fn sample_bytes(sample: &records::device_sample) -> Vec<u8> {
    let length = (sample.length as usize).min(sample.bytes.len());
    sample.bytes[..length].iter().map(|c| *c as u8).collect()
}

/// An error with its causes, on one line.
fn one_line(error: Option<&libbpf_rs::Error>) -> String {
    error.map(|error| format!("{error:#}").replace('\n', " ")).unwrap_or_default()
}

fn load_error(error: &libbpf_rs::Error) -> EventsError {
    // EPERM is a missing capability; the verifier's refusals are EACCES and others.
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(io) = at.downcast_ref::<io::Error>()
            && io.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error())
        {
            return EventsError::Denied(one_line(Some(error)));
        }
        cause = at.source();
    }
    EventsError::Unsupported(one_line(Some(error)))
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
fn quiet_libbpf() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |level, text| {
        if !matches!(level, libbpf_rs::PrintLevel::Debug) {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
        }
    })));
}

/// Kernel memory of a map, as its fdinfo tells; 0 where it doesn't.
fn map_memory(map: BorrowedFd<'_>) -> u64 {
    use std::os::fd::AsRawFd;
    std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))
        .ok()
        .and_then(|text| {
            text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
        })
        .unwrap_or(0)
}

/// Runs of a program that the kernel left out because it was already inside one; 0 before 5.12.
#[allow(unsafe_code)]
fn recursion_misses(program: BorrowedFd<'_>) -> u64 {
    use std::os::fd::AsRawFd;
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` is as large as `length` says, and zeroed.
    let status = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
    };
    if status == 0 { info.recursion_misses } else { 0 }
}
