//! Whether kprobe events of our own can be had in tracefs, and where.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::Host;

/// The tracefs whose kprobe events can be written.
///
/// # Errors
/// Why there is none, and what helps.
pub fn tracefs(host: &Host) -> Result<PathBuf, &'static str> {
    let places = ["kernel/tracing", "kernel/debug/tracing"].map(|place| host.sys(place));
    if let Some(place) = places.iter().find(|place| place.join("kprobe_events").exists()) {
        return match OpenOptions::new().append(true).open(place.join("kprobe_events")) {
            Ok(_) => Ok(place.clone()),
            Err(_) => {
                Err("kprobe_events of tracefs can't be written: is it mounted read-only, or \
                           are rights missing?")
            }
        };
    }
    let closed = |place: &PathBuf| {
        std::fs::metadata(place.join("trace"))
            .is_err_and(|e| e.kind() == ErrorKind::PermissionDenied)
    };
    // The PMU comes with kprobe events, and is to be seen without tracefs.
    if places.iter().any(|place| place.join("trace").exists())
        || !host.sys("bus/event_source/devices/kprobe").exists()
    {
        return Err("this kernel has no kprobe events (CONFIG_KPROBE_EVENTS): nothing helps but \
                    another kernel");
    }
    if places.iter().any(closed) {
        return Err("tracefs is root's: lacking CAP_DAC_OVERRIDE");
    }
    Err("tracefs is not to be seen: mount -t tracefs nodev /sys/kernel/tracing, which is followed \
         without a restart")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told() {
        let root = std::env::temp_dir().join(format!("mrscope-tracefs-{}", std::process::id()));
        let host = Host::at(&root);
        let why = || tracefs(&host).err().unwrap_or_default();
        let place = root.join("sys/kernel/tracing");
        assert!(why().starts_with("this kernel has no kprobe events"), "{}", why());
        std::fs::create_dir_all(root.join("sys/bus/event_source/devices/kprobe")).unwrap();
        assert!(why().starts_with("tracefs is not to be seen"), "{}", why());
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("trace"), "").unwrap();
        assert!(why().starts_with("this kernel has no kprobe events"), "{}", why());
        std::fs::write(place.join("kprobe_events"), "").unwrap();
        assert_eq!(tracefs(&host), Ok(place));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
