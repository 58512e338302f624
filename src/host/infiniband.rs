//! RDMA devices by /sys/class/infiniband.

use super::{Host, HostError};

/// Names of the RDMA devices, sorted; none where the kernel has no RDMA.
///
/// # Errors
/// The folder exists and can't be listed.
pub fn device_names(host: &Host) -> Result<Vec<String>, HostError> {
    let path = host.sys("class/infiniband");
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(HostError::Read { path, source }),
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}
