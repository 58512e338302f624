//! What the write probe found, port by port.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::device::Excluded;

/// How and how often it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteProbeOptions {
    /// Between two runs of a port, give or take a tenth.
    pub interval: Duration,
    /// After so long a run is killed.
    pub timeout: Duration,
    /// Of the memory that is registered, in turn.
    pub page_sizes: Vec<PageBytes>,
    /// What a run writes at most.
    pub max_bytes: u64,
    /// Names of devices that are never touched; * stands for any letters.
    pub exclude: Excluded,
    /// A port that moves more of its rate than that, in per cent, is left alone.
    pub max_port_share: u64,
    /// The program; None: the one beside mrscope.
    pub program: Option<PathBuf>,
}

/// A size of pages that the probe can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageBytes {
    /// Whatever the kernel's smallest are.
    Base,
    Huge2M,
    Huge1G,
}

impl PageBytes {
    pub const ALL: [Self; 3] = [Self::Base, Self::Huge2M, Self::Huge1G];

    /// As it is written in the configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Huge2M => "2097152",
            Self::Huge1G => "1073741824",
        }
    }
}

impl Default for WriteProbeOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_mins(1),
            timeout: Duration::from_secs(10),
            page_sizes: vec![PageBytes::Huge2M],
            max_bytes: 32 << 20,
            exclude: Excluded::default(),
            max_port_share: 50,
            program: None,
        }
    }
}

/// A port: its device's name, and its number.
pub type PortName = (String, u8);

/// All ports that were seen.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProbeFigures {
    pub ports: BTreeMap<PortName, PortFigures>,
    /// Of the devices that are there and were measured, by the newest run of each.
    pub limits: Vec<DeviceLimit>,
    /// What keeps every port from being measured, and what helps.
    pub trouble: Option<ProbeTrouble>,
}

/// What a device says it can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLimit {
    pub device: String,
    pub max_mr: u64,
    /// Bytes of one MR.
    pub max_mr_size: u64,
}

/// Why nothing is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeTrouble {
    /// The program is not there, or has not what it needs.
    Unsupported(String),
    Failed(String),
}

/// One port.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PortFigures {
    /// Its device is there.
    pub present: bool,
    pub rate_bytes_per_second: Option<u64>,
    /// The latest of each page size in bytes and NUMA node, while its device is there.
    pub measured: BTreeMap<(u64, Option<u32>), Measured>,
    /// Whether the last run that was not skipped went well; None before the first.
    pub success: Option<bool>,
    /// When that was, in seconds since the epoch.
    pub last_run: Option<f64>,
    /// Runs by what came of them.
    pub runs: BTreeMap<&'static str, u64>,
    /// Why the last one failed: a word of `runs`, then what was met and what helps.
    pub failure: Option<(&'static str, String)>,
    /// Why it is not on the pages that were asked for.
    pub fallback: Option<String>,
    /// Runs whose registration the kernel's programs did not see.
    pub unseen: u64,
}

/// What a run measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub bandwidth_bytes_per_second: f64,
    pub latency_p50_ns: u64,
    pub latency_p99_ns: u64,
    pub registration_ns: u64,
    pub at: Instant,
}

/// A run, for the engine to look for in the kernel's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeRun {
    pub port: PortName,
    pub pid: u32,
    /// Its start in clock ticks since boot; None where pids are not the kernel's own.
    pub started: Option<u64>,
}

impl ProbeRun {
    /// As [`super::ProcessKey::tick`].
    #[must_use]
    pub fn tick(&self) -> Option<(u32, u64)> {
        Some((self.pid, self.started?))
    }
}
