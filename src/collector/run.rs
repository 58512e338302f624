//! The engine: asks the sources, advances the ledger, frees the dead and writes pages. A ticker
//! does it, scraped or not; a request gets a page that began after it came. No source is waited
//! for past its deadline.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use crate::host::{Host, Presence, Processes, Rights, own_figures};
use crate::ledger::{Ledger, LedgerOptions, Reading, View};
use crate::metrics::{Page, text};
use crate::model::{
    COLLECTORS, Found, HookState, ProbeRun, Process, ProcessKey, ProcessLabel, Tasks,
};

use super::exporter::{Report, write_reports};
use super::found::{Holders, Steady};
use super::journal::Journal;
use super::labels::Labeller;
use super::pages::{Choice, Pages, Rendered, Request};
use super::probing::Probes;
use super::readings::{Openers, Seen, SourceOptions, Sources, answer};
use super::status::Notices;
use super::who::Who;
use super::{CollectError, Collector, Scene, all, found};

/// How often the ledger advances when nobody asks for a page.
const TICK: Duration = Duration::from_secs(5);
/// The same while the map of processes is over half full.
const HASTY_TICK: Duration = Duration::from_secs(1);

/// What a single look waits for a source that has not answered yet.
const LOOK_DEADLINE: Duration = Duration::from_secs(10);
/// What a look waits for the first round of the write probe, port by port.
const ROUND_DEADLINE: Duration = Duration::from_mins(1);

/// Between two readings of a single look.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// What the engine is told at its start.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    pub ledger: LedgerOptions,
    /// What tells series of processes apart.
    pub labels: Vec<ProcessLabel>,
    /// Collectors that are switched off.
    pub off: Vec<&'static str>,
    pub sources: SourceOptions,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            ledger: LedgerOptions::default(),
            labels: vec![ProcessLabel::Pid, ProcessLabel::Comm],
            off: Vec::new(),
            sources: SourceOptions::default(),
        }
    }
}

/// What one look found.
#[derive(Debug)]
pub struct Look {
    pub reports: Vec<Report>,
    pub hooks: Vec<HookState>,
    /// Collectors that are switched off.
    pub off: Vec<&'static str>,
}

/// The thread's own things.
pub struct Engine {
    host: Host,
    /// What looking at processes takes: nothing, unless /proc hides them.
    rights: Rights,
    sources: Sources,
    ledger: Ledger,
    /// As it was when it last advanced.
    view: View,
    labels: Labeller,
    who: Who,
    collectors: Vec<Box<dyn Collector>>,
    off: Vec<&'static str>,
    journal: Journal,
    notices: Notices,
    started: Instant,
    /// The kernel's rows as they were last read.
    rows: Vec<Process>,
    /// When that reading was over.
    rows_read: Instant,
    /// MRs that were found, among the rows.
    found: Vec<Found>,
    /// Whose they are.
    holders: Holders,
    /// VmPin beyond what is known to be pinned by RDMA.
    beyond_pins: Steady,
    /// Whether registrations were watched then.
    watches: bool,
    /// The map of processes fills faster than it is cleared.
    hasty: bool,
}

impl Engine {
    /// Starts the engine and its sources.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        host: Host,
        options: EngineOptions,
        openers: Openers,
    ) -> std::io::Result<(Pages, JoinHandle<()>)> {
        let (requests, inbox) = channel();
        let ready = Arc::new(AtomicBool::new(false));
        let (alive, living) = watch::channel(());
        let mut engine = Self::new(host, options, openers)?;
        let status = engine.notices.reader();
        let pages = Pages { requests, ready: Arc::clone(&ready), on: engine.on(), status, alive };
        let everything = pages.choose(&[""; 0]);
        let thread = std::thread::Builder::new().name("pages".into()).spawn(move || {
            let _living = living;
            let Ok(everything) = everything else { return };
            engine.keep_rights();
            let seen = engine.first();
            engine.page(&seen, &everything);
            ready.store(true, Ordering::Release);
            tracing::info!("ready");
            engine.run(&inbox, &everything);
            engine.end();
        })?;
        Ok((pages, thread))
    }

    /// One look at everything, for nobody's page; afterwards all is taken out of the kernel. The
    /// calling thread gives up its rights.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn look(host: Host, options: EngineOptions, openers: Openers) -> std::io::Result<Look> {
        let mut engine = Self::new(host, options, openers)?;
        engine.keep_rights();
        let mut seen = engine.first();
        let everything = Choice::of(engine.on());
        let deadline = Instant::now() + LOOK_DEADLINE;
        if let Some(prober) = engine.sources.prober() {
            prober.wait(Instant::now() + ROUND_DEADLINE);
            seen = engine.read();
        }
        let reports = loop {
            let (_, reports) = engine.collect(&seen, &everything);
            let late = |report: &Report| matches!(report.outcome, Err(CollectError::Stale(_)));
            if !reports.iter().any(late) || Instant::now() > deadline {
                break reports;
            }
            std::thread::park_timeout(LOOK_PAUSE);
            seen = engine.read();
        };
        let hooks = seen.hooks().cloned().collect();
        let off = engine.off.clone();
        engine.end();
        Ok(Look { reports, hooks, off })
    }

    fn new(host: Host, options: EngineOptions, openers: Openers) -> std::io::Result<Self> {
        let EngineOptions { ledger, labels, off, sources } = options;
        let tells = ledger.labels_name_one && !off.contains(&"process");
        Ok(Self {
            sources: Sources::start(&host, openers, sources, &off)?,
            ledger: Ledger::new(ledger),
            view: View::default(),
            who: Who::new(tells),
            labels: Labeller::new(host.clone(), labels),
            host,
            rights: Rights::NONE,
            collectors: all(),
            notices: Notices::new(&off),
            off,
            journal: Journal::default(),
            started: Instant::now(),
            rows: Vec::new(),
            rows_read: Instant::now(),
            found: Vec::new(),
            holders: Holders::default(),
            beyond_pins: Steady::default(),
            watches: false,
            hasty: false,
        })
    }

    /// Collectors that are not switched off.
    fn on(&self) -> Vec<&'static str> {
        COLLECTORS.into_iter().filter(|collector| !self.off.contains(collector)).collect()
    }

    fn end(self) {
        self.sources.end();
    }

    /// The first reading after all is loaded and attached.
    fn first(&mut self) -> Seen {
        self.sources.wait_for_start();
        self.read()
    }

    fn run(&mut self, inbox: &Receiver<Request>, everything: &Choice) {
        let mut next_tick = Instant::now() + TICK;
        loop {
            match inbox.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
                Ok(first) => self.answer([first].into_iter().chain(inbox.try_iter()).collect()),
                Err(RecvTimeoutError::Timeout) => {
                    let seen = self.read();
                    // No page is asked for: what changed is logged.
                    self.page(&seen, everything);
                    next_tick = Instant::now() + if self.hasty { HASTY_TICK } else { TICK };
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// One reading for all who wait, and one page for all who chose the same.
    fn answer(&mut self, requests: Vec<Request>) {
        let seen = self.read();
        let mut rendered: BTreeMap<Choice, Rendered> = BTreeMap::new();
        for Request { choice, reply } in requests {
            let page = rendered.entry(choice).or_insert_with_key(|choice| {
                text(&self.page(&seen, choice)).map(Bytes::from).map_err(|e| Arc::new(e).into())
            });
            // Who has gone away needs no page.
            let _ = reply.send(page.clone());
        }
    }

    /// Asks all sources, and takes what they say into the ledger.
    fn read(&mut self) -> Seen {
        let seen = self.sources.read(&self.holders());
        self.advance(&seen);
        seen
    }

    /// Processes that hold MRs, those that hold most first.
    fn holders(&self) -> Vec<ProcessKey> {
        let mut holders: Vec<&Process> =
            self.rows.iter().filter(|row| row.gauges.active > 0).collect();
        holders.sort_by_key(|row| std::cmp::Reverse((row.gauges.active_bytes, row.key)));
        holders.iter().map(|row| row.key).collect()
    }

    /// Called on the thread of the engine.
    fn keep_rights(&mut self) {
        let kept = Rights::PROCESSES.keep().and_then(|all| {
            self.rights = all.for_processes(&self.host);
            self.who.rights(all).and(self.rights).keep()
        });
        if let Err(error) = kept {
            tracing::error!("the thread pages keeps its capabilities: {error}");
        }
    }

    fn advance(&mut self, seen: &Seen) {
        let rights = self.rights;
        rights.with(|| self.take_in(seen));
    }

    fn take_in(&mut self, seen: &Seen) {
        let list = seen.tasks.as_ref().ok();
        let tasks = list.and_then(|list| list.value.as_ref().ok()).map(|list| &list.tasks);
        let newest = seen.events.as_ref().ok().filter(|published| published.begun > self.rows_read);
        let rows =
            newest.and_then(|published| published.value.as_ref().ok()?.snapshot.as_ref().ok());
        let mut gone = HashSet::new();
        if let (Some(published), Some(snapshot)) = (newest, rows) {
            // Who was known before the list was begun and is not on it had ended before its row
            // was read: the row is final.
            if let (Some(list), Some(tasks)) = (list, tasks.filter(|tasks| tasks.whole))
                && list.lies_between(self.rows_read, published.begun)
            {
                gone = self.missing_on(tasks);
            }
            self.judge_probe(published.begun, &snapshot.processes, seen);
            self.rows_read = published.begun + published.took;
            self.rows.clone_from(&snapshot.processes);
            found::keep_up(&mut self.found, answer(&seen.resources));
            self.holders.add_to_rows(&mut self.rows, &self.found, tasks);
            let counted = snapshot.counting_since_ns.is_some();
            let compared = tasks.filter(|tasks| counted && tasks.whole && tasks.exact);
            self.beyond_pins.push(compared.map(|tasks| found::beyond_pins(tasks, &self.rows)));
            self.hasty = snapshot
                .maps
                .iter()
                .any(|map| map.map == "processes" && map.entries * 2 > map.max_entries);
        }
        // Where memory is not shown, who only pins or locks is nobody to show.
        let tasks = tasks.filter(|_| !self.off.contains(&"process"));
        let own = self.sources.prober().map(Probes::processes).unwrap_or_default();
        let reading = Reading {
            rows: &self.rows,
            tasks,
            gone: &gone,
            own: &own,
            unowned: found::unowned(&self.found),
            now: self.started.elapsed(),
        };
        self.labels.begin();
        let labels = &mut self.labels;
        let final_rows = self.ledger.advance(&reading, &mut |newcomer| labels.of(newcomer));
        if !final_rows.is_empty() {
            self.rows.retain(|row| !final_rows.contains(&row.key));
            self.sources.forget(final_rows);
        }
        self.view = self.ledger.view();
        self.who.keep_up(&self.view.shown, tasks, &self.rows, &mut self.labels);
    }

    /// Whether the kernel's programs saw what the write probe registered: the whole way, from end to
    /// end. What is not watched can't be missed.
    fn judge_probe(&mut self, begun: Instant, rows: &[Process], seen: &Seen) {
        let watches = seen.hooks().any(|it| it.hook == "verbs_reg_mr" && it.attach.watches());
        let watched = std::mem::replace(&mut self.watches, watches);
        let Some(prober) = self.sources.prober() else { return };
        if !(watches && watched) {
            // Attached since the last reading, at some time: who registered before was not seen.
            prober.settle();
            return;
        }
        for ProbeRun { port: (device, port), pid, .. } in prober.judge(begun, rows) {
            tracing::warn!(
                "the write probe {pid} registered an MR on {device} port {port} that the collector \
                 mr did not see: its figures are not whole"
            );
        }
    }

    /// Those that are not on the list, and of which /proc says the same: some kernels keep
    /// processes of others from iterators.
    fn missing_on(&self, tasks: &Tasks) -> HashSet<ProcessKey> {
        let exact: HashSet<_> = tasks.rows.iter().map(|task| task.key).collect();
        let by_tick: HashSet<_> =
            if tasks.exact { HashSet::new() } else { exact.iter().map(ProcessKey::tick).collect() };
        let listed = |key: &ProcessKey| exact.contains(key) || by_tick.contains(&key.tick());
        let processes = Processes::of(&self.host);
        let gone = |key: &ProcessKey| {
            !listed(key) && processes.presence(key.tgid, key.start_ns) == Presence::Gone
        };
        self.ledger.living().copied().filter(gone).collect()
    }

    /// A page; what changed is logged.
    fn page(&mut self, seen: &Seen, choice: &Choice) -> Page {
        let (page, reports) = self.collect(seen, choice);
        self.journal.collectors(&reports);
        self.notices.publish(&reports, seen.snapshot());
        self.journal.hooks(seen.hooks());
        if let Ok(snapshot) = seen.snapshot() {
            self.journal.losses(snapshot);
        }
        page
    }

    /// A page, and how each collector's turn went.
    fn collect(&mut self, seen: &Seen, choice: &Choice) -> (Page, Vec<Report>) {
        let events = answer(&seen.events);
        let tasks = answer(&seen.tasks);
        let others = self.labels.of_others();
        let own = own_figures(&self.host).ok();
        let scene = Scene {
            events: seen.snapshot(),
            hooks: events.map(|events| events.hooks.as_slice()).unwrap_or_default(),
            lister: tasks.ok().map(|list| &list.hook),
            tasks,
            devices: answer(&seen.devices),
            memory: answer(&seen.memory),
            tlb: answer(&seen.tlb),
            write_probe: seen.write_probe.as_ref(),
            resources: answer(&seen.resources),
            places: answer(&seen.places).map(|places| &**places),
            found: &self.found,
            beyond_pins_bytes: self.beyond_pins.value(),
            present: &seen.present,
            view: &self.view,
            who: &self.who,
            others: &others,
            own: own.as_ref(),
            took: seen.times(),
        };
        let mut page = Page::new(self.labels.names());
        let mut reports = Vec::with_capacity(self.collectors.len());
        for collector in &mut self.collectors {
            if !choice.has(collector.name()) {
                continue;
            }
            let begun = Instant::now();
            let outcome = collector.collect(&scene, &mut page);
            let took = begun.elapsed() + collector.reading(&scene.took);
            reports.push(Report { collector: collector.name(), outcome, took });
        }
        // Of those that were asked for always; that others are off is the exporter's to tell.
        let off: &[_] = if choice.has("exporter") { &self.off } else { &[] };
        if let Err(error) = write_reports(&reports, off, &mut page) {
            tracing::error!("states of collectors: {error}");
        }
        (page, reports)
    }
}
