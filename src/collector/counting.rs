//! The counters of this machine's CPUs and of processes on it: what is opened, with what rights, and
//! why what is asked for is not counted.

use std::collections::BTreeMap;

use crate::host::perf::{Event, Group, Refused, Target, Why};
use crate::host::{
    CpuCounters, Host, OpensInThread, OpensOnCpu, ProcessCounters, Rights, Uncounted, Verdict,
    online_cpus, page_walk_events, raise_open_files,
};
use crate::model::{
    Counting, ProcessKey, TlbCounter, TlbEvent, TlbFigures, TlbNode, TlbOptions, TlbProcess,
    TlbRole,
};

use super::{CollectError, CountsTlb};

/// EINVAL: the CPU's counters can't do what is asked for.
const INVALID: Why = Why::Other(22);

/// The counters of this machine's CPUs.
pub struct LiveTlb {
    host: Host,
    opener: Opener,
    families: Vec<Family>,
    /// Whether the CPUs have any.
    has_counters: bool,
    /// Files that the counters of CPUs may take.
    files: usize,
    processes: Option<ProcessCounters<Group>>,
    /// Why counters are missing, as it was last logged.
    told: BTreeMap<(TlbEvent, TlbRole), String>,
}

/// What counts an event: by its roles, or why that is not known.
pub type Asked = (TlbEvent, Result<Vec<Event>, Counting>);

/// Counters that belong together.
struct Family {
    event: TlbEvent,
    /// In the order of its roles.
    events: Result<Vec<Event>, Counting>,
    counters: CpuCounters<Group>,
}

/// Has the rights that opening takes in effect while it opens, and no longer.
struct Opener {
    rights: Rights,
    /// Those that it had at the start.
    had: Rights,
}

impl OpensOnCpu for Opener {
    type Open = Group;

    fn open(&mut self, cpu: u32, events: &[Event]) -> Result<Group, Refused> {
        self.rights.with(|| Group::open(Target::Cpu(cpu), events))
    }
}

impl OpensInThread for Opener {
    type Open = Group;

    fn open(&mut self, tid: u32, event: Event) -> Result<Group, Why> {
        let opened = self.rights.with(|| Group::open(Target::Thread(tid), &[event]));
        opened.map_err(|refused| refused.why)
    }
}

impl LiveTlb {
    /// The calling thread keeps what opening counters takes of its capabilities, permitted alone;
    /// with `permanent_drop`, or where nothing can be opened, nothing once all are open.
    #[must_use]
    pub fn open(host: Host, options: &TlbOptions, permanent_drop: bool) -> Self {
        let asked = options.events.iter().map(|event| (*event, events(*event, &host))).collect();
        Self::open_events(host, asked, options.per_process, permanent_drop)
    }

    /// The same, with other events in place of those that are meant.
    #[must_use]
    pub fn open_events(
        host: Host,
        asked: Vec<Asked>,
        per_process: bool,
        permanent_drop: bool,
    ) -> Self {
        let rights = Rights::COUNTING.keep().unwrap_or(Rights::NONE);
        let rights = rights.for_counting(&host, per_process).keep().unwrap_or(Rights::NONE);
        let limit = raise_open_files();
        let families: Vec<Family> = asked.into_iter().map(Family::new).collect();
        let in_processes = families.iter().filter(|family| in_processes(family.event));
        let in_processes = in_processes.filter_map(|family| family.events.as_ref().ok()).flatten();
        let in_processes: Vec<Event> = in_processes.copied().collect();
        let mut tlb = Self {
            host,
            opener: Opener { rights, had: rights },
            has_counters: true,
            families,
            // Half of all is the connections'.
            files: limit / 4,
            processes: per_process.then(|| ProcessCounters::new(&in_processes, limit / 8)),
            told: BTreeMap::new(),
        };
        // What is wrong is said by the next reading.
        let _ = tlb.read();
        let cycles = rights.with(|| Group::open(Target::Cpu(0), &[Event::CYCLES]));
        tlb.has_counters = !matches!(cycles, Err(Refused { why: Why::Absent, .. }));
        if permanent_drop || !tlb.may_change() {
            tlb.opener.rights = Rights::NONE.keep().unwrap_or(Rights::NONE);
        }
        tlb
    }

    /// Reads and opens the counters of all CPUs.
    fn read(&mut self) -> Result<(), CollectError> {
        let cpus = online_cpus(&self.host)?;
        let known = self.families.iter().filter_map(|family| family.events.as_ref().ok());
        let files = cpus.len() * known.map(Vec::len).sum::<usize>();
        if files > self.files {
            return Err(CollectError::Failed(format!(
                "counters of {} CPUs take {files} open files, and may take {} at most, a quarter of \
                 this process's limit: raise it (LimitNOFILE, ulimit -Hn), or choose less in \
                 tlb.events",
                cpus.len(),
                self.files
            )));
        }
        for family in &mut self.families {
            family.counters.read(&mut self.opener, &cpus);
        }
        Ok(())
    }

    /// Whether anything is open, or may be opened later.
    fn may_change(&self) -> bool {
        let absent =
            |verdict: &Verdict| matches!(verdict, Verdict::Refused { why: Why::Absent, .. });
        self.families
            .iter()
            .filter_map(|family| family.verdicts().ok())
            .any(|all| !all.iter().all(absent))
    }

    fn figures(&self) -> TlbFigures {
        let counters = self.families.iter().flat_map(|family| {
            let verdicts = family.verdicts();
            let spoils = verdicts.as_ref().ok().and_then(|all| spoils(family.event, all));
            roles(family.event).iter().enumerate().map(move |(at, role)| {
                let counting = match &verdicts {
                    Err(counting) => (*counting).clone(),
                    Ok(all) if all[at] == Verdict::Counted && spoils.is_none() => Counting::Counted,
                    Ok(all) => {
                        let at = spoils.filter(|_| all[at] == Verdict::Counted).unwrap_or(at);
                        self.why(family.event, roles(family.event)[at], &all[at])
                    }
                };
                let counted = (counting == Counting::Counted).then(|| family.counters.totals(at));
                let nodes = counted.into_iter().flatten().map(|(node, total)| TlbNode {
                    node: *node,
                    count: total.count,
                    enabled_ns: total.enabled_ns,
                    running_ns: total.running_ns,
                });
                let nodes = nodes.collect();
                TlbCounter { event: family.event, role: *role, counting, nodes }
            })
        });
        TlbFigures { counters: counters.collect(), ..TlbFigures::default() }
    }

    fn why(&self, event: TlbEvent, role: TlbRole, verdict: &Verdict) -> Counting {
        let what = format!("{} ({})", event.word(), role.word());
        match verdict {
            Verdict::Counted => Counting::Counted,
            Verdict::Silent => Counting::NoData(format!("{what}: nothing was counted yet")),
            Verdict::CountsNothing => Counting::Unsupported(format!(
                "{what}: the counters run and count nothing, as those of some virtual machines do"
            )),
            Verdict::Starved { cpu } => Counting::Failed(format!(
                "{what}: on CPU {cpu} the counters get no turn, as others hold them: end other users \
                 of perf events, or set sysctl kernel.nmi_watchdog=0"
            )),
            Verdict::Broken { cpu, what: found } => {
                Counting::Failed(format!("{what}: the counters of CPU {cpu} are dead: {found}"))
            }
            Verdict::Refused { cpu, why } => self.refused(&what, *cpu, *why),
        }
    }

    fn refused(&self, what: &str, cpu: u32, why: Why) -> Counting {
        match why {
            Why::Absent if !self.has_counters => Counting::Unsupported(
                "this machine's CPUs show no performance counters: most virtual machines have none"
                    .to_owned(),
            ),
            Why::Absent => Counting::Unsupported(format!("{what}: CPU {cpu} has no such event")),
            Why::Denied => Counting::Denied(format!("{what}: {}", self.lacking())),
            Why::NoFiles => Counting::Failed(format!(
                "{what}: too many open files: raise the limit (LimitNOFILE, ulimit -Hn)"
            )),
            INVALID => Counting::Unsupported(format!(
                "{what}: CPU {cpu} can't count it on all that it runs"
            )),
            Why::CpuGone | Why::ThreadGone | Why::Other(_) => {
                Counting::Failed(format!("{what}: CPU {cpu}: {why}"))
            }
        }
    }

    /// What helps where the kernel refuses counters.
    fn lacking(&self) -> String {
        if let Some(lacking) = self.opener.had.lacking_to_count(&self.host) {
            format!("the kernel refuses counters; lacking: {lacking}")
        } else if self.opener.rights == self.opener.had {
            "the kernel refuses counters, and not for want of capabilities: a seccomp profile or a \
             security module forbids perf_event_open"
                .to_owned()
        } else {
            "capabilities.permanent_drop gave up the right to open counters: restart mrscope"
                .to_owned()
        }
    }

    /// Counts in these processes what is counted on CPUs: other events prove nothing.
    fn count_in(&mut self, asked: &[ProcessKey], figures: &mut TlbFigures) {
        let Some(processes) = &mut self.processes else { return };
        let pairs = figures.counters.iter().filter(|counter| in_processes(counter.event));
        let (pairs, wanted): (Vec<_>, Vec<_>) = pairs
            .map(|counter| ((counter.event, counter.role), counter.counting == Counting::Counted))
            .unzip();
        // Where /proc hides processes their threads are listed with the right to.
        let rights = self.opener.rights.for_processes(&self.host);
        rights.with(|| processes.read(&mut self.opener, &self.host, asked, &wanted));
        for (key, counts) in processes.counts() {
            for (&(event, role), count) in pairs.iter().zip(counts) {
                figures.processes.extend(count.map(|count| TlbProcess { key, event, role, count }));
            }
        }
        let uncounted: Vec<(u32, Uncounted)> =
            processes.uncounted().iter().map(|(key, why)| (key.tgid, *why)).collect();
        figures.missing = uncounted.into_iter().find_map(|(tgid, why)| self.missing(tgid, why));
    }

    fn missing(&self, tgid: u32, why: Uncounted) -> Option<Counting> {
        let what = "tlb.per_process";
        Some(match why {
            // Each is tried again.
            Uncounted::Ended | Uncounted::Restless => {
                tracing::debug!("pid {tgid} is not counted in: {why:?}");
                return None;
            }
            Uncounted::Refused(Why::Denied) => {
                Counting::Denied(format!("{what}: {}", self.lacking()))
            }
            Uncounted::Hidden => Counting::Denied(format!(
                "{what}: /proc does not show whose pids are whose; run mrscope in the host's pid \
                 namespace (hostPID: true, --pid=host), and where /proc is mounted with hidepid with \
                 CAP_SYS_PTRACE"
            )),
            Uncounted::Files | Uncounted::Refused(Why::NoFiles) => Counting::Failed(format!(
                "{what}: counters of all threads would take too many open files: raise the limit \
                 (LimitNOFILE, ulimit -Hn), or lower tlb.max_processes"
            )),
            Uncounted::Refused(why) => Counting::Failed(format!("{what}: pid {tgid}: {why}")),
        })
    }

    /// One line for each counter that is lost or found, while others are counted: if none is, that
    /// is what the collector says.
    fn log(&mut self, figures: &TlbFigures) {
        if !figures.counters.iter().any(|counter| counter.counting == Counting::Counted) {
            return;
        }
        for TlbCounter { event, role, counting, .. } in &figures.counters {
            let why = match counting {
                Counting::Counted => {
                    if self.told.remove(&(*event, *role)).is_some() {
                        tracing::info!("{} ({}) is counted", event.word(), role.word());
                    }
                    continue;
                }
                Counting::NoData(why)
                | Counting::Unsupported(why)
                | Counting::Denied(why)
                | Counting::Failed(why) => why,
            };
            if self.told.get(&(*event, *role)) != Some(why) {
                tracing::info!("not counted: {why}");
                self.told.insert((*event, *role), why.clone());
            }
        }
    }
}

impl CountsTlb for LiveTlb {
    fn count(&mut self, processes: &[ProcessKey]) -> Result<TlbFigures, CollectError> {
        self.read()?;
        let mut figures = self.figures();
        self.count_in(processes, &mut figures);
        self.log(&figures);
        Ok(figures)
    }
}

impl Family {
    fn new((event, events): Asked) -> Self {
        let counters = CpuCounters::new(events.as_deref().unwrap_or_default());
        Self { event, events, counters }
    }

    fn verdicts(&self) -> Result<Vec<Verdict>, &Counting> {
        let events = self.events.as_ref()?;
        Ok((0..events.len()).map(|at| self.counters.verdict(at)).collect())
    }
}

fn roles(event: TlbEvent) -> &'static [TlbRole] {
    match event {
        TlbEvent::PageWalk => &[TlbRole::Cycles, TlbRole::Walks, TlbRole::WalkCycles],
        _ => &[TlbRole::Access, TlbRole::Miss],
    }
}

/// Page walks are not.
fn in_processes(event: TlbEvent) -> bool {
    event != TlbEvent::PageWalk
}

/// Accesses and misses by the kernel's names for them, page walks by those of the vendor.
fn events(event: TlbEvent, host: &Host) -> Result<Vec<Event>, Counting> {
    const DATA: u32 = 3;
    const INSTRUCTION: u32 = 4;
    const LOAD: u32 = 0;
    const STORE: u32 = 1;
    let (tlb, operation) = match event {
        TlbEvent::DataLoad => (DATA, LOAD),
        TlbEvent::DataStore => (DATA, STORE),
        TlbEvent::InstructionLoad => (INSTRUCTION, LOAD),
        TlbEvent::PageWalk => {
            return match page_walk_events(host) {
                Ok(Some(events)) => Ok(events.to_vec()),
                Ok(None) => Err(Counting::Unsupported(format!(
                    "{}: how this CPU counts page walks is not known to mrscope",
                    event.word()
                ))),
                Err(error) => Err(Counting::Failed(error.to_string())),
            };
        }
    };
    Ok([0, 1].map(|result| Event::cache(tlb, operation, result)).to_vec())
}

/// The counter that makes others of its event mean nothing: accesses that are there and count
/// nothing, or any part of page walks.
fn spoils(event: TlbEvent, all: &[Verdict]) -> Option<usize> {
    match event {
        TlbEvent::PageWalk => all.iter().position(|verdict| *verdict != Verdict::Counted),
        _ => matches!(all[0], Verdict::Silent | Verdict::CountsNothing).then_some(0),
    }
}
