//! The write probe as the engine has it: what is known of every port, and whose processes those are
//! that measure. Owns the thread of the rounds; measures nothing itself.

mod rounds;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::host::{Host, Rights};
use crate::model::{PortName, ProbeFigures, ProbeRun, Process, WriteProbeOptions};

use super::CollectError;
use rounds::Rounds;

/// Processes of the probe that are remembered: those of some intervals.
const RUNS: usize = 64;
/// What the thread's end is waited for: more than a child takes to die.
const ENDING: Duration = Duration::from_secs(2);
/// Intervals after which what was found is too old.
const MOST_INTERVALS: u32 = 3;

/// Who measures ports, by processes of its own.
pub trait Probes: Send {
    /// What is known of all ports.
    ///
    /// # Errors
    /// No round is over yet, or nothing was heard for too long.
    fn figures(&self) -> Result<ProbeFigures, CollectError>;

    /// Waits until each port had its turn once, or for that deadline.
    fn wait(&self, deadline: Instant);

    /// Processes that are, or were of late, the probe's: pid and start in clock ticks.
    fn processes(&self) -> HashSet<(u32, u64)>;

    /// Looks for the registrations of runs in the kernel's rows, whose reading began then; returns
    /// the runs whose registration they should have and do not.
    fn judge(&self, begun: Instant, rows: &[Process]) -> Vec<ProbeRun>;

    /// Registrations of the runs so far are not looked for: nothing watched.
    fn settle(&self);
}

/// The thread, which ends, and its child with it, when this is dropped.
pub struct Prober {
    board: Arc<Board>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
    /// After so long without a word of it the thread hangs.
    patience: Duration,
}

/// What the thread says.
pub struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    figures: ProbeFigures,
    /// Each port had its turn.
    whole: bool,
    heard: Instant,
    runs: VecDeque<Watched>,
    unseen: BTreeMap<PortName, u64>,
    /// The thread is over, however it ended.
    ended: bool,
}

/// Says that the thread is over.
struct End(Arc<Board>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

/// A process of the probe, from its start on.
struct Watched {
    run: ProbeRun,
    /// When it had told what it measured: it has registered, then.
    reported: Option<Instant>,
    /// Its registration was seen, or missed.
    settled: bool,
}

impl Board {
    fn new() -> Self {
        let state = State {
            figures: ProbeFigures::default(),
            whole: false,
            heard: Instant::now(),
            runs: VecDeque::new(),
            unseen: BTreeMap::new(),
            ended: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, figures: &ProbeFigures) {
        let mut state = self.lock();
        state.figures = figures.clone();
        state.heard = Instant::now();
    }

    fn forget(&self, port: &PortName) {
        self.lock().unseen.remove(port);
    }

    fn round_is_over(&self) {
        self.lock().whole = true;
        self.changed.notify_all();
    }

    fn started(&self, run: ProbeRun) {
        let mut state = self.lock();
        state.runs.push_back(Watched { run, reported: None, settled: false });
        if state.runs.len() > RUNS {
            state.runs.pop_front();
        }
    }

    /// Waits until that is so, or for that deadline; whether it is.
    fn wait(&self, deadline: Instant, is_so: impl Fn(&State) -> bool) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, left, |state| !is_so(state));
        is_so(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// The one that was started last told what it measured.
    fn reported(&self) {
        if let Some(last) = self.lock().runs.back_mut() {
            last.reported = Some(Instant::now());
        }
    }
}

impl Prober {
    /// Starts the thread. It lives as long as this, and so does what it starts.
    ///
    /// # Errors
    /// The system refuses a thread or a file.
    pub fn start(host: Host, options: WriteProbeOptions) -> std::io::Result<Self> {
        let board = Arc::new(Board::new());
        let patience = MOST_INTERVALS * (options.interval + options.timeout);
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let its_stop = stop.try_clone()?;
        let its_board = Arc::clone(&board);
        let thread = std::thread::Builder::new().name("write_probe".into()).spawn(move || {
            let _end = End(Arc::clone(&its_board));
            if let Err(error) = Rights::NONE.keep() {
                tracing::error!("the thread write_probe keeps its capabilities: {error}");
            }
            Rounds::new(host, options, its_board, its_stop).run();
        })?;
        Ok(Self { board, stop, thread: Some(thread), patience })
    }
}

impl Probes for Prober {
    fn figures(&self) -> Result<ProbeFigures, CollectError> {
        let state = self.board.lock();
        if state.ended {
            return Err(CollectError::Failed("its thread has ended: see the log".to_owned()));
        }
        if state.heard.elapsed() > self.patience {
            return Err(CollectError::Stale(format!(
                "nothing was heard of it for more than {} s: a driver may hang, see dmesg",
                self.patience.as_secs()
            )));
        }
        if !state.whole {
            return Err(CollectError::NoData("the first round is not over".to_owned()));
        }
        let mut figures = state.figures.clone();
        for (port, unseen) in &state.unseen {
            figures.ports.entry(port.clone()).or_default().unseen = *unseen;
        }
        Ok(figures)
    }

    fn wait(&self, deadline: Instant) {
        self.board.wait(deadline, |state| state.whole || state.ended);
    }

    fn processes(&self) -> HashSet<(u32, u64)> {
        self.board.lock().runs.iter().filter_map(|watched| watched.run.tick()).collect()
    }

    fn judge(&self, begun: Instant, rows: &[Process]) -> Vec<ProbeRun> {
        let with_mrs = rows.iter().filter(|row| row.counters.registrations() > 0);
        let registered: HashSet<_> = with_mrs.map(|row| row.key.tick()).collect();
        let mut unseen = Vec::new();
        let mut state = self.board.lock();
        let State { runs, unseen: counts, .. } = &mut *state;
        for watched in runs.iter_mut().filter(|watched| !watched.settled) {
            // Looked for from its start on: a row is freed as soon as it is final, which may be
            // before the report was read. One whose start nobody told can't be found.
            if watched.run.tick().is_none_or(|tick| registered.contains(&tick)) {
                watched.settled = true;
            } else if watched.reported.is_some_and(|reported| reported < begun) {
                watched.settled = true;
                *counts.entry(watched.run.port.clone()).or_default() += 1;
                unseen.push(watched.run.clone());
            }
        }
        unseen
    }

    fn settle(&self) {
        for watched in &mut self.board.lock().runs {
            watched.settled = true;
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        // The thread kills its child and ends. A child that hangs in the kernel is not waited for,
        // nor is the thread where it hangs itself, in a driver that it asked.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let ended = self.board.wait(Instant::now() + ENDING, |state| state.ended);
        if let Some(thread) = self.thread.take().filter(|_| ended) {
            let _ = thread.join();
        }
    }
}
