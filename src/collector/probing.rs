//! The thread that runs the write probe: port by port, one at a time, on its own interval and never
//! at a scrape. Owns the child and what came of it; measures nothing itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::host::{Host, Port, Rights, device_names, device_node, ports};
use crate::model::{
    Measured, PageBytes, PortName, ProbeFigures, ProbeRun, ProbeTrouble, WriteProbeOptions,
};
use crate::probe::{NoReport, Pages, ProbeOptions, Report, call, program_beside, timespec};

/// How long a port's traffic is looked at before it is used.
const LOOK: Duration = Duration::from_millis(200);
/// After failures a port is left out for up to so many intervals.
const MOST_INTERVALS: u32 = 16;
/// The first run comes so soon.
const FIRST: Duration = Duration::from_secs(1);
/// Pids that are remembered as the probe's.
const PIDS: usize = 64;

/// The asker's end. The thread ends, and its child with it, when this is dropped.
pub struct Prober {
    board: Arc<Mutex<Board>>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Board {
    figures: Option<Arc<ProbeFigures>>,
    /// Runs that went well and were not looked for yet, with when they ended.
    runs: Vec<(ProbeRun, Instant)>,
    unseen: BTreeMap<PortName, u64>,
    pids: VecDeque<u32>,
}

fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Prober {
    /// Starts the thread. It lives as long as this, and so does what it starts.
    ///
    /// # Errors
    /// The system refuses a thread or a file.
    pub fn start(host: Host, options: WriteProbeOptions) -> std::io::Result<Self> {
        let board = Arc::new(Mutex::new(Board::default()));
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let its_stop = stop.try_clone()?;
        let its_board = Arc::clone(&board);
        let thread = std::thread::Builder::new().name("write_probe".into()).spawn(move || {
            if let Err(error) = Rights::NONE.keep() {
                tracing::error!("the thread write_probe keeps its capabilities: {error}");
            }
            Rounds::new(host, options, its_board, its_stop).run();
        })?;
        Ok(Self { board, stop, thread: Some(thread) })
    }

    /// What is known of all ports; None before the first round.
    #[must_use]
    pub fn figures(&self) -> Option<ProbeFigures> {
        let board = lock(&self.board);
        let mut figures = ProbeFigures::clone(board.figures.as_ref()?);
        for (port, unseen) in &board.unseen {
            if let Some(port) = figures.ports.get_mut(port) {
                port.unseen = *unseen;
            }
        }
        Some(figures)
    }

    /// Processes that are, or were of late, the probe's.
    #[must_use]
    pub fn pids(&self) -> BTreeSet<u32> {
        lock(&self.board).pids.iter().copied().collect()
    }

    /// Judges the runs that ended before a reading of the kernel's rows began, by whether that has
    /// their registration. Returns those that were not seen.
    pub fn judge(&self, begun: Instant, registered: impl Fn(u32) -> bool) -> Vec<ProbeRun> {
        let mut board = lock(&self.board);
        let mut unseen = Vec::new();
        let mut waiting = Vec::new();
        for (run, ended) in std::mem::take(&mut board.runs) {
            if registered(run.pid) {
                continue;
            }
            if ended < begun { unseen.push(run) } else { waiting.push((run, ended)) }
        }
        board.runs = waiting;
        for run in &unseen {
            *board.unseen.entry(run.port.clone()).or_default() += 1;
        }
        unseen
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        // The thread kills its child and ends. One that hangs in the kernel is not waited for.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Rounds {
    host: Host,
    options: WriteProbeOptions,
    program: PathBuf,
    board: Arc<Mutex<Board>>,
    stop: OwnedFd,
    figures: ProbeFigures,
    turns: BTreeMap<PortName, Turn>,
    stuck: Option<Child>,
    random: RandomState,
}

/// When a port comes next.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    /// Runs so far, for the page size.
    runs: usize,
    failures: u32,
    /// Rounds to leave out.
    wait: u32,
}

impl Rounds {
    fn new(
        host: Host,
        options: WriteProbeOptions,
        board: Arc<Mutex<Board>>,
        stop: OwnedFd,
    ) -> Self {
        let program = options.program.clone().unwrap_or_else(program_beside);
        Self {
            host,
            options,
            program,
            board,
            stop,
            figures: ProbeFigures::default(),
            turns: BTreeMap::new(),
            stuck: None,
            random: RandomState::new(),
        }
    }

    fn run(mut self) {
        let mut pause = FIRST.min(self.options.interval);
        let mut round = 0u64;
        while !self.stopped_within(pause) {
            let begun = Instant::now();
            if self.round() {
                return;
            }
            round += 1;
            pause = self.jittered(round).saturating_sub(begun.elapsed());
        }
    }

    /// The interval, give or take a tenth: hosts of a cluster must not write at the same moment.
    fn jittered(&self, round: u64) -> Duration {
        let random = (self.random.hash_one(round) % 2001) as f64 / 1000.0 - 1.0;
        self.options.interval.mul_f64(1.0 + random / 10.0)
    }

    /// Waits; true as soon as the thread is to end.
    fn stopped_within(&self, pause: Duration) -> bool {
        let stop = self.stop.as_fd();
        let mut fds = [PollFd::new(&stop, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(pause))) {
            Ok(ready) => ready > 0,
            // Interrupted: the wait is shorter, nothing else.
            Err(_) => false,
        }
    }

    /// All ports once; true if the thread is to end.
    fn round(&mut self) -> bool {
        let devices = match device_names(&self.host) {
            Ok(devices) => devices,
            Err(error) => {
                self.figures.trouble = Some(ProbeTrouble::Failed(error.to_string()));
                self.publish();
                return false;
            }
        };
        self.figures.trouble = None;
        self.mark_present(&devices);
        for device in devices {
            if self.options.exclude.iter().any(|pattern| matches(pattern, &device)) {
                self.count(&(device, 0), "skipped_excluded");
                continue;
            }
            let found = match ports(&self.host, &device) {
                Ok(found) => found,
                // It went while its folder was read, or says so at the next round.
                Err(error) => {
                    tracing::debug!("write probe: {error}");
                    continue;
                }
            };
            for port in found {
                if self.port(&device, &port) {
                    return true;
                }
                self.publish();
            }
        }
        self.publish();
        false
    }

    /// Gauges of a device that is gone go; its counters stay.
    fn mark_present(&mut self, devices: &[String]) {
        for ((device, _), figures) in &mut self.figures.ports {
            figures.present = devices.contains(device);
            if !figures.present {
                figures.measured.clear();
                figures.success = None;
                figures.failure = None;
                figures.fallback = None;
            }
        }
        self.turns.retain(|(device, _), _| devices.contains(device));
    }

    fn port(&mut self, device: &str, port: &Port) -> bool {
        let name = (device.to_owned(), port.number);
        let figures = self.figures.ports.entry(name.clone()).or_default();
        figures.present = true;
        figures.rate_bytes_per_second = port.rate_bytes_per_second;
        if let Some(child) = &mut self.stuck {
            if matches!(child.try_wait(), Ok(None)) {
                self.figures.trouble = Some(ProbeTrouble::Failed(format!(
                    "the probe {} hangs in the kernel and can't be killed (a driver may be stuck: \
                     see dmesg); no other is started",
                    child.id()
                )));
                self.count(&name, "skipped_stuck");
                return false;
            }
            self.stuck = None;
        }
        let turn = self.turns.entry(name.clone()).or_default();
        if turn.wait > 0 {
            turn.wait -= 1;
            self.count(&name, "skipped_back_off");
            return false;
        }
        if !port.active {
            self.count(&name, "skipped_port_down");
            return false;
        }
        match self.is_busy(device, port) {
            None => return true,
            Some(true) => {
                self.count(&name, "skipped_busy");
                return false;
            }
            Some(false) => {}
        }
        self.measure(name)
    }

    /// None if the thread is to end. A port that does not tell its traffic is never busy.
    fn is_busy(&self, device: &str, port: &Port) -> Option<bool> {
        let (Some(before), Some(rate)) = (port.moved_bytes, port.rate_bytes_per_second) else {
            return Some(false);
        };
        let begun = Instant::now();
        if self.stopped_within(LOOK) {
            return None;
        }
        let now = ports(&self.host, device).ok();
        let again = now.and_then(|now| now.into_iter().find(|it| it.number == port.number));
        let Some(after) = again.and_then(|port| port.moved_bytes) else { return Some(false) };
        let moved = after.wrapping_sub(before) as f64;
        // Both directions count against the rate of one.
        let most = rate as f64 * begun.elapsed().as_secs_f64() * self.options.max_port_share as f64;
        Some(moved * 100.0 > most)
    }

    fn measure(&mut self, name: PortName) -> bool {
        let turn = self.turns.entry(name.clone()).or_default();
        let sizes = &self.options.page_sizes;
        let size = sizes[turn.runs % sizes.len().max(1)];
        turn.runs += 1;
        let asked = self.asked(&name, size);
        let (board, timeout) = (Arc::clone(&self.board), self.options.timeout);
        let mut pid = 0;
        let outcome = call(&self.program, &asked, timeout, self.stop.as_fd(), |it| {
            pid = it;
            let mut board = lock(&board);
            board.pids.push_back(it);
            if board.pids.len() > PIDS {
                board.pids.pop_front();
            }
        });
        match &outcome {
            Err(NoReport::Stopped) => return true,
            Err(NoReport::NotStarted(why)) => {
                self.figures.trouble = Some(ProbeTrouble::Unsupported(why.clone()));
            }
            _ => {}
        }
        self.take(&name, outcome, pid);
        false
    }

    fn asked(&self, (device, port): &PortName, size: PageBytes) -> ProbeOptions {
        let timeout = u64::try_from(self.options.timeout.as_millis()).unwrap_or(u64::MAX);
        let pages = match size {
            PageBytes::Base => Pages::Base,
            PageBytes::Huge2M => Pages::Huge2M,
            PageBytes::Huge1G => Pages::Huge1G,
        };
        let defaults = ProbeOptions::new(device);
        let most = self.options.max_bytes;
        let fits = most / defaults.message_bytes;
        ProbeOptions {
            port: *port,
            pages,
            fallback: pages != Pages::Base,
            numa_node: device_node(&self.host, device),
            max_bytes: most,
            // Warm-up and latency are among the bytes.
            count: defaults.count.min(fits.saturating_sub(u64::from(defaults.depth) + 1).max(1)),
            // It ends by itself before it is killed.
            guard_ms: (timeout * 9 / 10).clamp(1, 60_000),
            parent: i32::try_from(std::process::id()).ok(),
            ..defaults
        }
    }

    /// Takes in what came of a run; a change is logged.
    fn take(&mut self, name: &PortName, outcome: Result<Report, NoReport>, pid: u32) {
        let figures = self.figures.ports.entry(name.clone()).or_default();
        let turn = self.turns.entry(name.clone()).or_default();
        let before = (figures.success, figures.failure.is_some(), figures.fallback.is_some());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        figures.last_run = Some(now.as_secs_f64());
        figures.success = Some(outcome.is_ok());
        let (device, number) = name;
        match outcome {
            Ok(report) => {
                *turn = Turn { failures: 0, ..*turn };
                *figures.runs.entry("ok").or_default() += 1;
                figures.failure = None;
                figures.fallback = report.fallback;
                let measured = Measured {
                    bandwidth_bytes_per_second: report.bandwidth_bytes_per_second,
                    latency_p50_ns: report.latency_p50_ns,
                    latency_p99_ns: report.latency_p99_ns,
                    registration_ns: report.registration_ns,
                };
                figures.measured.insert((report.page_size_bytes, report.numa_node), measured);
                let run = ProbeRun { port: name.clone(), pid };
                lock(&self.board).runs.push((run, Instant::now()));
                let after = (Some(true), false, figures.fallback.is_some());
                match &figures.fallback {
                    _ if before == after => {}
                    Some(why) => {
                        tracing::warn!("write probe of {device} port {number}: base pages: {why}");
                    }
                    None => tracing::info!("write probe of {device} port {number}: ok"),
                }
            }
            Err(why) => {
                let reason = why.word();
                turn.failures = (turn.failures + 1).min(MOST_INTERVALS);
                turn.wait = (1 << turn.failures.min(4)).min(MOST_INTERVALS) - 1;
                *figures.runs.entry(reason).or_default() += 1;
                let said = format!("{reason}: {why}");
                if figures.failure.as_ref() != Some(&said) {
                    tracing::warn!("write probe of {device} port {number} failed: {said}");
                }
                figures.failure = Some(said);
                if let NoReport::Stuck(child) = why {
                    self.stuck = Some(child);
                }
            }
        }
    }

    fn count(&mut self, name: &PortName, result: &'static str) {
        *self.figures.ports.entry(name.clone()).or_default().runs.entry(result).or_default() += 1;
    }

    fn publish(&self) {
        lock(&self.board).figures = Some(Arc::new(self.figures.clone()));
    }
}

/// Whether a pattern, in which * stands for any letters, is the whole of a name.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.get(at..).is_some_and(|name| matches(rest, name)))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name, is_it) in [
            ("mlx5_0", "mlx5_0", true),
            ("mlx5_0", "mlx5_01", false),
            ("mlx5_*", "mlx5_bond_0", true),
            ("*", "rxe0", true),
            ("*_0", "mlx5_0", true),
            ("*_0", "mlx5_01", false),
            ("m*5*0", "mlx5_0", true),
            ("", "rxe0", false),
        ] {
            assert_eq!(matches(pattern, name), is_it, "{pattern} {name}");
        }
    }
}
