//! The thread that owns the kernel's maps and the ledger: a ticker advances the ledger and frees
//! the dead, scraped or not, and a request for a page gets one that began after it came.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use crate::ebpf::{EventsError, KernelEvents};
use crate::host::{Host, Presence, Processes};
use crate::ledger::{Ledger, LedgerOptions};
use crate::metrics::{EncodeError, Page, text};
use crate::model::{ProcessKey, Snapshot};

use super::exporter::{Report, write_reports};
use super::{CollectError, Collector, Scene, all};

/// How often the ledger advances when nobody asks for a page.
const TICK: Duration = Duration::from_secs(5);

/// A page's text, shared by all who asked for it.
pub type Rendered = Result<Bytes, RenderError>;

/// Why there is no page.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RenderError {
    #[error("{0}")]
    Encode(#[from] Arc<EncodeError>),
    #[error("the thread that reads the kernel has ended")]
    Ended,
}

/// Hands out pages. Cheap to clone; the thread behind it ends when the last is dropped.
#[derive(Debug, Clone)]
pub struct Pages {
    requests: Sender<oneshot::Sender<Rendered>>,
    ready: Arc<AtomicBool>,
    /// Its receiver lives on the thread.
    alive: watch::Sender<()>,
}

impl Pages {
    /// A page that is begun after this call, shared with all who wait meanwhile.
    ///
    /// # Errors
    /// See [`RenderError`].
    pub async fn get(&self) -> Rendered {
        let (reply, page) = oneshot::channel();
        self.requests.send(reply).map_err(|_| RenderError::Ended)?;
        page.await.map_err(|_| RenderError::Ended)?
    }

    /// Completes when the thread behind the pages has ended.
    pub async fn ended(&self) {
        self.alive.closed().await;
    }

    /// Whether everything is attached that can be.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }
}

/// The thread's own things.
pub struct Engine {
    host: Host,
    events: Result<Box<dyn KernelEvents>, EventsError>,
    ledger: Ledger,
    collectors: Vec<Box<dyn Collector>>,
    /// The state last logged of each collector.
    logged: HashMap<&'static str, String>,
    started: Instant,
}

impl Engine {
    /// Starts the thread. `source` runs on it, since the kernel's objects stay where they are made.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start<S>(
        host: Host,
        options: LedgerOptions,
        source: S,
    ) -> std::io::Result<(Pages, JoinHandle<()>)>
    where
        S: FnOnce(Host) -> Result<Box<dyn KernelEvents>, EventsError> + Send + 'static,
    {
        let (requests, inbox) = channel();
        let ready = Arc::new(AtomicBool::new(false));
        let (alive, living) = watch::channel(());
        let pages = Pages { requests, ready: Arc::clone(&ready), alive };
        let thread = std::thread::Builder::new().name("events".into()).spawn(move || {
            let _living = living;
            let events = source(host.clone());
            let mut engine = Self {
                host,
                events,
                ledger: Ledger::new(options),
                collectors: all(),
                logged: HashMap::new(),
                started: Instant::now(),
            };
            engine.page();
            ready.store(true, Ordering::Release);
            tracing::info!("ready");
            engine.run(&inbox);
        })?;
        Ok((pages, thread))
    }

    fn run(&mut self, inbox: &Receiver<oneshot::Sender<Rendered>>) {
        let mut next_tick = Instant::now() + TICK;
        loop {
            match inbox.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
                Ok(first) => {
                    let mut waiting = vec![first];
                    waiting.extend(inbox.try_iter());
                    let page = self.render();
                    for reply in waiting {
                        // Who has gone away needs no page.
                        let _ = reply.send(page.clone());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = self.read() {
                        // The next page says it; no page is asked for now.
                        tracing::debug!("between pages: {error}");
                    }
                    next_tick = Instant::now() + TICK;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn render(&mut self) -> Rendered {
        let page = self.page();
        text(&page).map(Bytes::from).map_err(|error| Arc::new(error).into())
    }

    /// Reads the kernel, takes the rows into the ledger, frees those that are final.
    fn read(&mut self) -> Result<Snapshot, CollectError> {
        let events = match &mut self.events {
            Ok(events) => events,
            Err(error) => return Err(CollectError::from(&*error)),
        };
        let processes = Processes::of(&self.host);
        // Ended before the rows are read: nothing can come after them.
        let gone: HashSet<ProcessKey> = self
            .ledger
            .living()
            .filter(|key| processes.presence(key.tgid, key.start_ns) == Presence::Gone)
            .copied()
            .collect();
        let snapshot = events.snapshot().map_err(|error| CollectError::from(&error))?;
        let final_rows = self.ledger.advance(&snapshot.processes, &gone, self.started.elapsed());
        events.forget(&final_rows);
        Ok(snapshot)
    }

    fn page(&mut self) -> Page {
        let read = self.read();
        let hooks = self.events.as_ref().map(|events| events.hooks()).unwrap_or_default();
        let scene = Scene { events: read.as_ref(), hooks: &hooks, ledger: &self.ledger };
        let mut page = Page::new();
        let mut reports = Vec::with_capacity(self.collectors.len());
        for collector in &mut self.collectors {
            let begun = Instant::now();
            let outcome = collector.collect(&scene, &mut page);
            reports.push(Report { collector: collector.name(), outcome, took: begun.elapsed() });
        }
        if let Err(error) = write_reports(&reports, &mut page) {
            tracing::error!("states of collectors: {error}");
        }
        self.log_changes(&reports);
        page
    }

    /// A state is logged when it changes, not at each page.
    fn log_changes(&mut self, reports: &[Report]) {
        for report in reports {
            let (state, reason) = match &report.outcome {
                Ok(()) => ("ok", String::new()),
                Err(error) => (error.state(), error.to_string()),
            };
            let now = format!("{state} {reason}");
            if self.logged.get(report.collector) == Some(&now) {
                continue;
            }
            match &report.outcome {
                Ok(()) => tracing::info!("collector {}: ok", report.collector),
                Err(CollectError::NoData(_)) => {
                    tracing::info!("collector {}: no data: {reason}", report.collector);
                }
                Err(_) => tracing::warn!("collector {}: {state}: {reason}", report.collector),
            }
            self.logged.insert(report.collector, now);
        }
    }
}
