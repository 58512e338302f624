//! What the host as a whole tells: when it booted.

use std::io::{Error, ErrorKind};

use super::{Host, HostError};

/// When the host booted, in whole seconds since the epoch: `btime` of /proc/stat.
///
/// # Errors
/// The file can't be read, or has no such line.
pub fn boot_seconds(host: &Host) -> Result<u64, HostError> {
    let text = host.proc_text("stat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|seconds| seconds.trim().parse().ok()).ok_or_else(|| HostError::Read {
        path: host.proc("stat"),
        source: Error::new(ErrorKind::InvalidData, "no line \"btime SECONDS\""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_booted_when_its_uptime_began() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let booted = boot_seconds(&Host::live()).unwrap() as f64;
        assert!((now.as_secs_f64() - uptime - booted).abs() < 30.0);
    }
}
