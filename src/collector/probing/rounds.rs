//! The thread that runs the write probe: port by port, one at a time, on its own interval and never
//! at a scrape.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags};

use crate::host::{
    Host, HostError, Port, Processes, device_names, device_node, has_queue_pairs, port,
    port_numbers,
};
use crate::model::{
    DeviceLimit, Measured, PageBytes, PortFigures, PortName, ProbeFigures, ProbeRun, ProbeTrouble,
    WriteProbeOptions,
};
use crate::probe::{NoReport, Pages, ProbeOptions, Reason, Report, call, program_beside, wait};

use super::{Board, MOST_INTERVALS};

/// How long a port's traffic is looked at before it is used.
const LOOK: Duration = Duration::from_millis(200);
/// What becomes of a port's turn without a run.
const SKIPPED: [&str; 7] = [
    "skipped_excluded",
    "skipped_unsupported",
    "skipped_unreadable",
    "skipped_stuck",
    "skipped_back_off",
    "skipped_port_down",
    "skipped_busy",
];
/// After failures a port is left out for at most so many rounds.
const MOST_LEFT_OUT: u32 = 15;
/// Ports of devices that are gone whose counters are kept: soft devices may come and go for ever.
const MOST_ABSENT: usize = 64;

/// What the thread has.
pub struct Rounds {
    host: Host,
    options: WriteProbeOptions,
    program: PathBuf,
    board: Arc<Board>,
    stop: OwnedFd,
    figures: ProbeFigures,
    turns: BTreeMap<PortName, Turn>,
    stuck: Option<Child>,
    random: RandomState,
    /// What the longest round took: with many ports it is what lies between two runs of one.
    longest: Duration,
    /// Ports of devices that are gone, the latest at the end.
    absent: VecDeque<PortName>,
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

/// The thread is to end.
struct Stop;

impl Rounds {
    pub fn new(host: Host, options: WriteProbeOptions, board: Arc<Board>, stop: OwnedFd) -> Self {
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
            longest: Duration::ZERO,
            absent: VecDeque::new(),
        }
    }

    /// Until it is to end.
    pub fn run(mut self) {
        for number in 0u64.. {
            let begun = Instant::now();
            if self.round().is_err() {
                return;
            }
            self.longest = self.longest.max(begun.elapsed());
            self.board.round_is_over();
            if self.pause(self.jittered(number).saturating_sub(begun.elapsed())).is_err() {
                return;
            }
        }
    }

    /// The interval, give or take a tenth: hosts of a cluster must not write at the same moment.
    fn jittered(&self, number: u64) -> Duration {
        let random = (self.random.hash_one(number) % 2001) as f64 / 1000.0 - 1.0;
        self.options.interval.mul_f64(1.0 + random / 10.0)
    }

    fn pause(&self, pause: Duration) -> Result<(), Stop> {
        let stop = self.stop.as_fd();
        let mut fds = [PollFd::new(&stop, PollFlags::IN)];
        match wait(&mut fds, Instant::now() + pause) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Stop),
            Err(error) => {
                tracing::error!("the thread write_probe can't wait, and ends: {error}");
                Err(Stop)
            }
        }
    }

    /// All ports once.
    fn round(&mut self) -> Result<(), Stop> {
        // That nothing can be started is so until something was, also while ports are left out.
        self.figures.trouble.take_if(|trouble| !is_of_program(trouble));
        match device_names(&self.host) {
            Ok(devices) => {
                self.mark_present(&devices);
                for device in devices {
                    self.device(&device)?;
                }
            }
            Err(error) => self.figures.trouble = Some(ProbeTrouble::Failed(error.to_string())),
        }
        self.publish();
        Ok(())
    }

    /// Gauges of a device that is gone go; its counters stay.
    fn mark_present(&mut self, devices: &[String]) {
        for (name, figures) in &mut self.figures.ports {
            let was_present = std::mem::replace(&mut figures.present, devices.contains(&name.0));
            if was_present && !figures.present {
                // Its counters are all that is left.
                let runs = std::mem::take(&mut figures.runs);
                *figures = PortFigures { runs, ..PortFigures::default() };
                self.absent.push_back(name.clone());
            }
        }
        self.figures.limits.retain(|limit| devices.contains(&limit.device));
        self.absent.retain(|(device, _)| !devices.contains(device));
        while self.absent.len() > MOST_ABSENT {
            if let Some(oldest) = self.absent.pop_front() {
                self.figures.ports.remove(&oldest);
                self.board.forget(&oldest);
            }
        }
        self.turns.retain(|(device, _), _| devices.contains(device));
    }

    fn device(&mut self, device: &str) -> Result<(), Stop> {
        // An attribute of a port is asked of the driver; its number is not.
        let numbers = port_numbers(&self.host, device).unwrap_or_default();
        let untouched = if self.options.exclude.has(device) {
            Some("skipped_excluded")
        } else {
            (!has_queue_pairs(&self.host, device)).then_some("skipped_unsupported")
        };
        if let Some(result) = untouched {
            for number in numbers {
                self.count(&(device.to_owned(), number), result);
            }
            return Ok(());
        }
        for number in numbers {
            match port(&self.host, device, number) {
                Ok(port) => self.port(device, &port)?,
                Err(error) => self.unreadable(&(device.to_owned(), number), &error),
            }
            self.publish();
        }
        Ok(())
    }

    fn unreadable(&mut self, name: &PortName, error: &HostError) {
        const WORD: &str = "skipped_unreadable";
        // Or its device went meanwhile.
        let gone = device_names(&self.host).is_ok_and(|devices| !devices.contains(&name.0));
        if !gone {
            self.count(name, WORD);
            self.port_figures(name).failure = Some((WORD, error.to_string()));
        }
    }

    fn port(&mut self, device: &str, port: &Port) -> Result<(), Stop> {
        let name = (device.to_owned(), port.number);
        let figures = self.port_figures(&name);
        figures.rate_bytes_per_second = port.rate_bytes_per_second;
        if let Some(child) = &mut self.stuck {
            if matches!(child.try_wait(), Ok(None)) {
                self.figures.trouble = Some(ProbeTrouble::Failed(format!(
                    "the probe {} hangs in the kernel and can't be killed (a driver may be stuck: \
                     see dmesg); no other is started",
                    child.id()
                )));
                self.count(&name, "skipped_stuck");
                return Ok(());
            }
            self.stuck = None;
        }
        let turn = self.turns.entry(name.clone()).or_default();
        if !port.active {
            // What failed before is not what keeps it from being measured now.
            (turn.wait, turn.failures) = (0, 0);
            self.port_figures(&name).failure = None;
            self.count(&name, "skipped_port_down");
        } else if turn.wait > 0 {
            turn.wait -= 1;
            self.count(&name, "skipped_back_off");
        } else if self.is_busy(device, port)? {
            self.count(&name, "skipped_busy");
        } else {
            self.measure(&name)?;
        }
        Ok(())
    }

    /// A port that does not tell its traffic is never busy.
    fn is_busy(&self, device: &str, port: &Port) -> Result<bool, Stop> {
        let (Some(before), Some(rate)) = (port.moved_bytes, port.rate_bytes_per_second) else {
            return Ok(false);
        };
        let begun = Instant::now();
        self.pause(LOOK)?;
        let again = self::port(&self.host, device, port.number).ok();
        let Some(after) = again.and_then(|port| port.moved_bytes) else { return Ok(false) };
        let moved = after.wrapping_sub(before) as f64;
        // Both directions count against the rate of one.
        let most = rate as f64 * begun.elapsed().as_secs_f64() * self.options.max_port_share as f64;
        Ok(moved * 100.0 > most)
    }

    fn measure(&mut self, name: &PortName) -> Result<(), Stop> {
        let turn = self.turns.entry(name.clone()).or_default();
        let sizes = &self.options.page_sizes;
        let size = sizes[turn.runs % sizes.len().max(1)];
        turn.runs += 1;
        let asked = self.asked(name, size);
        let started = |pid| {
            let started = Processes::of(&self.host).started(pid);
            self.board.started(ProbeRun { port: name.clone(), pid, started });
        };
        let outcome = call(&self.program, &asked, self.options.timeout, self.stop.as_fd(), started);
        match outcome {
            Ok(report) => {
                self.board.reported();
                self.succeeded(name, report);
            }
            Err(NoReport::Stopped) => return Err(Stop),
            Err(why) => self.failed(name, why),
        }
        Ok(())
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
        // Those that warm up and the small ones are among the bytes.
        let small = u64::from(defaults.latency_count) * defaults.latency_message_bytes;
        let fits = most.saturating_sub(small) / defaults.message_bytes;
        ProbeOptions {
            port: *port,
            pages,
            fallback: pages != Pages::Base,
            numa_node: device_node(&self.host, device),
            max_bytes: most,
            count: fits.saturating_sub(u64::from(defaults.depth)).max(1),
            // It ends by itself before it is killed.
            guard_ms: (timeout * 9 / 10).clamp(1, 60_000),
            parent: i32::try_from(std::process::id()).ok(),
            ..defaults
        }
    }

    fn succeeded(&mut self, name: &PortName, report: Report) {
        let limit = report.max_mr.zip(report.max_mr_size).map(|(max_mr, max_mr_size)| {
            DeviceLimit { device: name.0.clone(), max_mr, max_mr_size }
        });
        self.figures.limits.retain(|known| known.device != name.0);
        self.figures.limits.extend(limit);
        let figures = self.port_figures(name);
        figures.last_run = Some(now());
        figures.success = Some(true);
        *figures.runs.entry("ok").or_default() += 1;
        figures.failure = None;
        figures.fallback = report.fallback;
        let measured = Measured {
            bandwidth_bytes_per_second: report.bandwidth_bytes_per_second,
            latency_p50_ns: report.latency_p50_ns,
            latency_p99_ns: report.latency_p99_ns,
            registration_ns: report.registration_ns,
            at: Instant::now(),
        };
        figures.measured.insert((report.page_size_bytes, report.numa_node), measured);
        self.turns.entry(name.clone()).or_default().failures = 0;
        self.figures.trouble.take_if(|trouble| is_of_program(trouble));
    }

    fn failed(&mut self, name: &PortName, why: NoReport) {
        let figures = self.port_figures(name);
        figures.last_run = Some(now());
        figures.success = Some(false);
        *figures.runs.entry(why.word()).or_default() += 1;
        figures.failure = Some((why.word(), why.to_string()));
        let turn = self.turns.entry(name.clone()).or_default();
        turn.failures = turn.failures.saturating_add(1);
        turn.wait = ((1 << turn.failures.min(8)) - 1).min(MOST_LEFT_OUT);
        match why {
            NoReport::NotStarted(why) => {
                self.figures.trouble = Some(ProbeTrouble::Unsupported(why));
                return;
            }
            NoReport::Stuck(child) => self.stuck = Some(child),
            _ => {}
        }
        self.figures.trouble.take_if(|trouble| is_of_program(trouble));
    }

    fn count(&mut self, name: &PortName, result: &'static str) {
        *self.port_figures(name).runs.entry(result).or_default() += 1;
    }

    /// Those of a port that is there. All that can become of a run is there at 0 from then on.
    fn port_figures(&mut self, name: &PortName) -> &mut PortFigures {
        let figures = self.figures.ports.entry(name.clone()).or_insert_with(|| {
            let reasons = Reason::ALL.into_iter().map(Reason::word);
            let words = ["ok"].into_iter().chain(reasons).chain(NoReport::WORDS).chain(SKIPPED);
            PortFigures { runs: words.map(|word| (word, 0)).collect(), ..PortFigures::default() }
        });
        figures.present = true;
        figures
    }

    /// What is known so far, without what is too old: a port may be left out for long.
    fn publish(&mut self) {
        let turns = u32::try_from(self.options.page_sizes.len()).unwrap_or(1);
        let between = self.options.interval.max(self.longest) + self.options.timeout;
        let oldest = MOST_INTERVALS * turns * between;
        for figures in self.figures.ports.values_mut() {
            figures.measured.retain(|_, measured| measured.at.elapsed() < oldest);
        }
        self.board.publish(&self.figures);
    }
}

fn is_of_program(trouble: &ProbeTrouble) -> bool {
    matches!(trouble, ProbeTrouble::Unsupported(_))
}

/// In seconds since the epoch.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
