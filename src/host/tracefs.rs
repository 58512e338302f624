//! Where tracefs is mounted.

use std::path::PathBuf;

use super::Host;

/// The first of the two usual places that holds a tracefs, if any.
#[must_use]
pub fn tracefs(host: &Host) -> Option<PathBuf> {
    ["sys/kernel/tracing", "sys/kernel/debug/tracing"]
        .into_iter()
        .map(|place| host.path(place))
        .find(|place| place.join("kprobe_events").exists())
}
