//! Where tracefs is mounted.

use std::path::PathBuf;

use super::Host;

/// The first of the two usual places that holds a tracefs, if any.
#[must_use]
pub fn tracefs(host: &Host) -> Option<PathBuf> {
    ["kernel/tracing", "kernel/debug/tracing"]
        .into_iter()
        .map(|place| host.sys(place))
        .find(|place| place.join("kprobe_events").exists())
}
