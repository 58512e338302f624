//! What this process itself costs, by /proc/self.

use procfs::FromRead;
use procfs::process::{LimitValue, Limits, Stat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Host, HostError, boot_seconds};

/// The figures that exporters show of themselves. None where the host does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OwnFigures {
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    pub threads: u64,
    /// Seconds since the epoch.
    pub start_seconds: Option<f64>,
    pub open_files: Option<u64>,
    pub max_files: Option<u64>,
}

/// Size of a base page.
#[must_use]
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Raises the number of files that this process may have open to what it may be raised to.
/// Returns what it is then.
#[must_use]
pub fn raise_open_files() -> usize {
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(_) => now.current,
    };
    limit.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Raises the memory that this process may lock to what it may be raised to: kernels before 5.11
/// count maps against it.
pub fn raise_memlock() {
    let unlimited = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, unlimited).is_err() {
        let maximum = getrlimit(Resource::Memlock).maximum;
        // What is left is as before.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
}

/// Reads them.
///
/// # Errors
/// /proc/self/stat can't be read, or is none.
pub fn own_figures(host: &Host) -> Result<OwnFigures, HostError> {
    let path = host.proc("self/stat");
    let strange = |error: procfs::ProcError| HostError::Read {
        path: path.clone(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string()),
    };
    let text = host.proc_text("self/stat")?;
    let stat = Stat::from_read(text.as_bytes()).map_err(strange)?;
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    let max_files = host
        .proc_text("self/limits")
        .ok()
        .and_then(|text| Limits::from_read(text.as_bytes()).ok())
        .and_then(|limits| match limits.max_open_files.soft_limit {
            LimitValue::Value(files) => Some(files),
            LimitValue::Unlimited => None,
        });
    Ok(OwnFigures {
        cpu_seconds: (stat.utime + stat.stime) as f64 / per_second,
        resident_bytes: stat.rss * page_bytes(),
        virtual_bytes: stat.vsize,
        threads: stat.num_threads.max(0) as u64,
        start_seconds: boot_seconds(host)
            .ok()
            .map(|boot| boot as f64 + stat.starttime as f64 / per_second),
        open_files: std::fs::read_dir(host.proc("self/fd")).ok().map(|files| files.count() as u64),
        max_files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_thread_some_memory_and_some_files() {
        let own = own_figures(&Host::live()).unwrap();
        assert!(own.threads >= 1 && own.resident_bytes > 1 << 16, "{own:?}");
        assert!(own.virtual_bytes > own.resident_bytes, "{own:?}");
        assert!(own.open_files >= Some(3) && own.max_files > own.open_files, "{own:?}");
    }
}
