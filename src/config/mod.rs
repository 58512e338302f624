//! What the user may choose, checked: every value here can be used as it is.
//! It reads the file that it is told, and nothing else of the machine.

mod file;
pub mod notation;
mod web;

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::model::{
    COLLECTORS, EbpfOptions, Excluded, MlockOptions, PlacementOptions, ProcessLabel,
    ResourcesOptions, TlbOptions, WriteProbeOptions,
};

pub use web::{ListenAddress, Web, listen_address, telemetry_path};

/// How many calls a return probe may follow.
pub const MAXACTIVE: RangeInclusive<u64> = 1..=EbpfOptions::MAXACTIVE_LIMIT as u64;
/// How many rows a map of the kernel may have.
const ROWS: RangeInclusive<u64> = 1..=EbpfOptions::ROWS_LIMIT as u64;
/// In how many processes translations may be counted: each takes files for each of its threads.
const COUNTED: RangeInclusive<u64> = 1..=1000;
/// What a run of the write probe may write: at least its warm-up and one write.
const PROBE_BYTES: RangeInclusive<u64> = 2 << 20..=1 << 30;
const PER_CENT: RangeInclusive<u64> = 1..=100;
/// How many processes may have series of their own.
pub const PROCESSES: RangeInclusive<u64> = 0..=u64::MAX;

/// All that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub web: Web,
    pub log: Log,
    pub path: Paths,
    pub ebpf: EbpfOptions,
    pub process: ProcessOptions,
    pub mlock: MlockOptions,
    pub tlb: TlbOptions,
    pub write_probe: WriteProbeOptions,
    pub devices: DeviceOptions,
    pub resources: ResourcesOptions,
    pub placement: PlacementOptions,
    /// By [`COLLECTORS`].
    collectors: [bool; COLLECTORS.len()],
}

/// Which devices are looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceOptions {
    /// By nobody, the write probe included.
    pub exclude: Excluded,
}

/// What is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    /// Least severity.
    pub level: LogLevel,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Logfmt,
    Json,
}

/// Where the kernel's file systems are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    pub procfs: PathBuf,
    pub sysfs: PathBuf,
}

/// Which processes have series, and what tells them apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOptions {
    /// Processes with series of their own at most.
    pub max: usize,
    /// How long the counters of a process outlive it.
    pub linger: Duration,
    /// At least one, each once.
    pub labels: Vec<ProcessLabel>,
}

/// Why the file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{path}: {cause}, expected a readable YAML file", path = path.display())]
    Read { path: PathBuf, cause: io::Error },
    /// `place` is FILE:LINE:COLUMN.
    #[error("{place}: not YAML: {problem}")]
    Syntax { place: String, problem: String },
    /// YAML, but no configuration. `place` is FILE:LINE.
    #[error("{place}: {problem}")]
    Refused { place: String, problem: String },
}

impl Config {
    /// The file's values, and defaults for what it leaves out.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| ConfigError::Read { path: path.to_owned(), cause })?;
        Self::parse(path, &text)
    }

    /// The same of text; `file` is what an error names.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        file::read_over(&mut config, file, text)?;
        Ok(config)
    }

    /// Whether a collector of [`COLLECTORS`] is on. A word that is none of them is off.
    #[must_use]
    pub fn enabled(&self, collector: &str) -> bool {
        self.collectors.iter().zip(COLLECTORS).any(|(on, word)| *on && word == collector)
    }

    /// Switches a collector of [`COLLECTORS`]; of any other word nothing comes.
    pub fn set_enabled(&mut self, collector: &str, enabled: bool) {
        for (on, word) in self.collectors.iter_mut().zip(COLLECTORS) {
            if word == collector {
                *on = enabled;
            }
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            web: Web::default(),
            log: Log { level: LogLevel::Info, format: LogFormat::Logfmt },
            path: Paths { procfs: "/proc".into(), sysfs: "/sys".into() },
            ebpf: EbpfOptions::default(),
            process: ProcessOptions {
                max: 100,
                linger: Duration::from_mins(1),
                labels: vec![ProcessLabel::Pid, ProcessLabel::Comm],
            },
            mlock: MlockOptions::default(),
            tlb: TlbOptions::default(),
            write_probe: WriteProbeOptions::default(),
            devices: DeviceOptions::default(),
            resources: ResourcesOptions::default(),
            placement: PlacementOptions::default(),
            collectors: [true; COLLECTORS.len()],
        }
    }
}

impl LogLevel {
    pub const ALL: [Self; 4] = [Self::Error, Self::Warn, Self::Info, Self::Debug];

    /// The word for it on the command line and in the file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl LogFormat {
    pub const ALL: [Self; 2] = [Self::Logfmt, Self::Json];

    /// The word for it on the command line and in the file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Logfmt => "logfmt",
            Self::Json => "json",
        }
    }
}

#[cfg(test)]
mod tests;
