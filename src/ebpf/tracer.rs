//! The programs in the kernel: loaded, attached, read, and taken out again.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::host::{self, Host, Modules, Processes, Rights};
use crate::model::{
    AttachMode, EbpfOptions, HookState, LostUpdates, Mlocks, Pin, Placed, ProcessKey, Snapshot,
    text,
};

use super::attach::{one_line, os_error};
use super::cost::recursion_misses;
use super::decode::{self, DeviceNames};
use super::device::find_name_offset;
use super::events::{EventsError, KernelEvents};
use super::facts::{FieldOffsets, KernelFacts, loads};
use super::load::history_sets;
use super::maps::SharedMaps;
use super::placement::{self, NotWalked};
use super::readers::{Readers, TOLD};
use super::records::{self, Record};
use super::watch::{Settled, Watch};

/// A call whose end was never seen is given up when its thread is gone; younger ones are not asked.
const STALE_CALL_NS: u64 = 1_000_000_000;

/// Attached programs and their maps. The thread that starts it keeps what it needs of its
/// capabilities, permitted, and has them in effect only while it attaches or may else not read.
pub struct Tracer {
    watch: Watch,
    readers: Option<Readers>,
    maps: SharedMaps,
    host: Host,
    /// The host as it was when the hooks were settled.
    facts: KernelFacts,
    settings: records::settings,
    permanent_drop: bool,
    mlock_per_process: bool,
    /// What the thread has left.
    rights: Rights,
    /// Of that, what a reading takes: nothing from 5.19 on, unless /proc hides processes.
    reading: Rights,
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
        let rights = Rights::TRACING
            .keep()
            .map_err(|error| EventsError::Denied(format!("capabilities: {error}")))?;
        let hidden = rights.for_processes(&host);
        if !hidden.with(|| Processes::of(&host).all_visible()) {
            tracing::warn!(
                "/proc shows the processes of one pid namespace only, or hides those of others: \
                 those that ended can't be told; run mrscope in the host's (hostPID, --pid=host)"
            );
        }
        let facts = rights.with(|| KernelFacts::gather(&host, None));
        if options.attach == AttachMode::Fentry {
            explain_kprobes(&facts);
        }
        if let Err(NotWalked::Because(why)) = placement::choose(&facts, options) {
            tracing::info!("the pages of MRs are not looked at as they are registered: {why}");
        }
        let mut tracer = Self {
            watch: Watch::new(host.clone(), options.clone()),
            readers: None,
            maps: SharedMaps::default(),
            settings: settings(&facts.offsets, history_sets(options)),
            facts: facts.clone(),
            permanent_drop: options.permanent_drop,
            mlock_per_process: options.watched.mlock.is_some_and(|mlock| mlock.per_process),
            rights,
            reading: Rights::NONE,
            host,
            abandoned_calls: 0,
        };
        rights.with(|| tracer.settle(&facts))?;
        tracer.give_up_rest(options.attach == AttachMode::Fentry)?;
        Ok(tracer)
    }

    /// Brings the hooks to where these facts allow them to be. Needs the rights in effect.
    fn settle(&mut self, facts: &KernelFacts) -> Result<(), EventsError> {
        if !self.rights.may_trace() {
            let why = EventsError::Denied("no right to load programs".to_owned());
            return Err(why.explained(&self.host));
        }
        let before = self.watch.count_objects();
        let settled = self.watch.settle(facts, &mut self.maps, self.settings)?;
        if self.watch.is_empty() {
            return Ok(());
        }
        if self.watch.count_objects() != before {
            // There may be more maps to read.
            self.readers = None;
        }
        self.start_readers()?;
        if settled == Settled::Anew {
            self.settings.counting_since_ns = now_ns();
        }
        self.write_settings()
    }

    /// Needs the rights in effect, unless they were started.
    fn start_readers(&mut self) -> Result<(), EventsError> {
        if self.readers.is_none() {
            self.readers = Some(Readers::start(&mut self.maps, &self.host)?);
        }
        Ok(())
    }

    /// Keeps what attaching again and reading take, or reading alone where the rest is to go.
    fn give_up_rest(&mut self, trampolines: bool) -> Result<(), EventsError> {
        let reading = self.find_reading_rights();
        let kept = if self.permanent_drop {
            reading
        } else {
            reading.and(self.rights.for_attaching(&self.host, trampolines))
        };
        self.rights =
            kept.keep().map_err(|error| EventsError::Denied(format!("capabilities: {error}")))?;
        if self.permanent_drop {
            tracing::info!(
                "the right to attach is given up for good: what modules bring later is watched \
                 only where a probe waits for it"
            );
        }
        Ok(())
    }

    /// Tries to read while no capability is in effect.
    fn find_reading_rights(&mut self) -> Rights {
        let tried = self.rows::<u64, records::call>("calls");
        let denied = matches!(&tried, Err(EventsError::Map { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied);
        let maps = if denied { self.rights.for_reading() } else { Rights::NONE };
        self.reading = maps.and(self.rights.for_processes(&self.host));
        self.reading
    }

    /// All rows of a map that is read whole; none of one that nothing that is loaded has.
    fn rows<K: Record, V: Record>(
        &mut self,
        map: &'static str,
    ) -> Result<Vec<(K, V)>, EventsError> {
        let none = || EventsError::Map { map, source: io::ErrorKind::NotFound.into() };
        self.readers.as_mut().ok_or_else(none)?.rows(map)
    }

    fn write_settings(&self) -> Result<(), EventsError> {
        self.maps.write("settings", &0u32, &self.settings)
    }

    /// Looks again when a module or tracefs came or went: what can be attached now, which probes
    /// live, and where fields are.
    fn follow(&mut self) -> Result<(), EventsError> {
        let Ok(modules) = Modules::read(&self.host) else {
            return Ok(());
        };
        let loads_now = loads(&self.host, self.facts.loads.keys().map(String::as_str));
        let tracefs_came = !self.watch.has_probes()
            && !self.permanent_drop
            && self.rights.with(|| host::tracefs(&self.host).is_ok());
        let came = modules.came_since(&self.facts.modules);
        if !tracefs_came && !came && loads_now == self.facts.loads {
            self.facts.modules = modules;
            return Ok(());
        }
        let rights = self.rights;
        let known = &self.facts;
        let facts = rights.with(|| KernelFacts::gather(&self.host, Some(known)));
        if !facts.symbols_known {
            // Nothing is known of any hook; it is logged, and looked for again.
            return Ok(());
        }
        self.facts = KernelFacts { modules, ..facts.clone() };
        let before = self.settings;
        let learned = before.device_name_offset;
        self.settings = records::settings {
            counting_since_ns: before.counting_since_ns,
            ..settings(&facts.offsets, before.history_sets)
        };
        if facts.offsets.device_name.is_none() {
            self.settings.device_name_offset = learned;
        }
        if self.permanent_drop {
            self.watch.note_modules(&facts);
            if self.watch.is_empty() {
                return Ok(());
            }
            return self.reading.with(|| self.write_settings());
        }
        let had_readers = self.readers.is_some();
        rights.with(|| self.settle(&facts))?;
        if !had_readers {
            self.find_reading_rights();
        }
        Ok(())
    }

    /// Samples of devices by kernel address; learns where names are when it is not known yet.
    fn sampled_names(&mut self, present: &[String]) -> Result<Vec<(u64, String)>, EventsError> {
        let samples: Vec<(u64, records::device_sample)> = self.rows("device_samples")?;
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

    /// Names of devices by the ids that rows carry, how many ids there are, and how many devices were
    /// sampled. After the rows with the ids: the kernel names a device before it counts for it.
    fn device_names(&mut self, present: &[String]) -> Result<(DeviceNames, u64, u64), EventsError> {
        let sampled = self.sampled_names(present)?;
        let devices = self.rows("devices")?;
        let names = DeviceNames::new(&devices, |pointer| {
            sampled.iter().find(|(at, _)| *at == pointer).map(|(_, name)| name.clone())
        });
        Ok((names, devices.len() as u64, sampled.len() as u64))
    }

    /// Every live pin.
    fn read_pins(&mut self) -> Result<Vec<Pin>, EventsError> {
        let rows: Vec<(u64, records::pin)> = self.rows("pins")?;
        let (names, ..) = self.device_names(&[])?;
        let mut devices = HashMap::new();
        let pin = |(umem, row): &_| decode::pin(*umem, row, &names, &mut devices);
        Ok(rows.iter().filter_map(pin).collect())
    }

    /// On what each MR lies.
    fn read_placements(&mut self) -> Result<Option<HashMap<u64, Placed>>, EventsError> {
        if !placement::is_walked(&self.settings) {
            return Ok(None);
        }
        let Some(readers) = &mut self.readers else { return Ok(None) };
        let placed = |(umem, row): &_| (*umem, placement::placed(row));
        Ok(readers.placements()?.map(|rows| rows.iter().map(placed).collect()))
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

    fn lost(&mut self) -> Vec<LostUpdates> {
        let counts = self.readers.as_ref().map(Readers::lost);
        let mut lost = decode::lost(&counts.unwrap_or_default());
        // A map that there is not loses nothing.
        lost.retain(|lost| self.maps.get(&lost.source).is_some());
        let mut add = |source: String, reason, count| {
            lost.push(LostUpdates { source, reason, count });
        };
        add("calls".to_owned(), "abandoned", self.abandoned_calls);
        for (program, missed) in self.watch.misses() {
            add(program, "probe_missed", missed);
        }
        for program in self.watch.programs() {
            let count = recursion_misses(program.as_fd());
            if count > 0 {
                add(program.name().to_string_lossy().into_owned(), "recursion", count);
            }
        }
        lost
    }

    fn mlocks(&self) -> Option<Mlocks> {
        let rows = self.readers.as_ref()?.mlocks()?;
        Some(Mlocks { totals: decode::mlock_totals(&rows), per_process: self.mlock_per_process })
    }

    /// One reading of all maps. `present` are the names of the devices that there are.
    fn read(&mut self, present: &[String]) -> Result<Snapshot, EventsError> {
        let now_ns = now_ns();
        let mut calls = self.rows("calls")?;
        self.give_up_calls(&mut calls, now_ns);
        let totals: Vec<(records::totals_key, records::totals)> = self.rows("totals")?;
        let failures = self.rows("failures")?;
        let last_failures = self.rows("last_failures")?;
        let (names, ids, samples) = self.device_names(present)?;
        let processes: Vec<(records::process_key, records::process)> = self.rows("processes")?;
        // Every pin names its process; the map itself is never walked.
        let pins: i64 = processes.iter().map(|(_, row)| row.live_pins).sum();
        let history = self.readers.as_ref().map(Readers::history).unwrap_or_default();
        let of_host = totals.iter().filter(|(key, _)| key.kind == records::KIND_HOST);
        let placed: i64 = of_host.map(|(_, row)| row.active).sum();
        let entries = [
            calls.len() as u64,
            pins.max(0) as u64,
            processes.len() as u64,
            totals.len() as u64,
            failures.len() as u64,
            last_failures.len() as u64,
            ids,
            samples,
            history.taken,
            placed.max(0) as u64,
        ];
        let used = TOLD.into_iter().zip(entries);
        let readers = self.readers.as_ref();
        let maps = used.filter_map(|(map, entries)| readers?.map_use(map, entries)).collect();
        let since = self.settings.counting_since_ns;
        let counts = self.watch.counts_registrations() && since != 0;
        let page_bytes = u64::from(self.settings.page_bytes);
        Ok(Snapshot {
            counting_since_ns: counts.then_some(since),
            devices: decode::device_totals(&totals, &names),
            failures: decode::failures(&failures, &names),
            last_failures: decode::last_failures(&last_failures, &names, page_bytes),
            processes: processes
                .iter()
                .filter_map(|(key, row)| decode::process(key, row))
                .collect(),
            history_forgotten: history.forgotten,
            in_flight: calls
                .iter()
                .filter_map(|(thread, call)| decode::in_flight(*thread, call, now_ns, &names))
                .collect(),
            mlocks: self.mlocks(),
            lost: self.lost(),
            maps,
        })
    }
}

impl KernelEvents for Tracer {
    fn snapshot(&mut self, present: &[String]) -> Result<Snapshot, EventsError> {
        self.follow()?;
        if self.watch.is_empty() {
            return Ok(Snapshot::default());
        }
        if self.readers.is_none() {
            // What stopped it the last time, if it does again.
            let rights = self.rights;
            rights.with(|| self.start_readers())?;
        }
        let reading = self.reading;
        reading.with(|| self.read(present))
    }

    fn pins(&mut self) -> Result<Vec<Pin>, EventsError> {
        let reading = self.reading;
        reading.with(|| self.read_pins())
    }

    fn placements(&mut self) -> Result<Option<HashMap<u64, Placed>>, EventsError> {
        let reading = self.reading;
        reading.with(|| self.read_placements())
    }

    fn forget(&mut self, gone: &[ProcessKey]) {
        let key = |gone: &ProcessKey| records::process_key {
            start_boottime_ns: gone.start_ns,
            tgid: gone.tgid,
            unused: 0,
        };
        let gone: Vec<_> = gone.iter().map(key).collect();
        let reading = self.reading;
        if let Some(readers) = &mut self.readers
            && let Err(error) = reading.with(|| readers.forget(&gone))
        {
            tracing::warn!("rows of processes that ended stay: {error}");
        }
    }

    fn hooks(&self) -> Vec<HookState> {
        self.watch.hooks()
    }
}

/// Says why trampolines were asked for in vain.
fn explain_kprobes(facts: &KernelFacts) {
    if facts.preempts {
        tracing::warn!(
            "this kernel preempts (or does not tell, without debugfs): trampolines would lose \
             calls, kprobes are used"
        );
        return;
    }
    let mut modules: Vec<&str> = facts.symbols.modules().collect();
    modules.sort_unstable();
    modules.dedup();
    modules.retain(|module| !facts.module_btf.contains(*module));
    if !modules.is_empty() {
        tracing::warn!(
            "no trampolines on functions of {}, which have no BTF below /sys/kernel/btf: kprobes \
             are used there",
            modules.join(", ")
        );
    }
}

fn settings(offsets: &FieldOffsets, history_sets: u32) -> records::settings {
    let known = |offset: Option<u32>| offset.unwrap_or(records::OFFSET_UNKNOWN);
    records::settings {
        counting_since_ns: 0,
        page_bytes: host::page_bytes() as u32,
        device_name_offset: known(offsets.device_name),
        attrs_context_offset: known(offsets.attrs_context),
        context_device_offset: known(offsets.context_device),
        history_sets,
        umem_list_offset: known(offsets.umem_list),
        umem_entries_offset: known(offsets.umem_entries),
        unused: 0,
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
pub fn unique_token() -> String {
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
