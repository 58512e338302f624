//! The source of devices: one thread lists them, and one for each reads its attributes, so that a
//! driver that hangs hides no other device.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::host::{self, Host, Rights};
use crate::model::{Excluded, RdmaDevice};

use super::CollectError;
use super::source::Source;

/// What a listing waits for attributes, all devices together: less than a page waits for it.
const ATTRIBUTES_DEADLINE: Duration = Duration::from_millis(250);

/// The devices of the host.
#[derive(Debug, Default)]
pub struct Devices {
    pub names: Vec<String>,
    /// Those whose attributes are known.
    pub known: Vec<RdmaDevice>,
    /// The others: their drivers do not answer.
    pub silent: Vec<String>,
}

pub type DevicesSource = Source<(), Devices>;

/// Starts the thread that lists; attributes older than `max_age` are dropped, and
/// nothing is read of those that are excluded.
///
/// # Errors
/// The system refuses a thread.
pub fn devices(
    host: Host,
    max_age: Duration,
    excluded: Excluded,
) -> std::io::Result<DevicesSource> {
    Source::start("devices", Rights::NONE, move || {
        let mut readers = BTreeMap::new();
        move |()| Some(list(&host, &mut readers, max_age, &excluded))
    })
}

type Readers = BTreeMap<String, Source<(), RdmaDevice>>;

fn list(
    host: &Host,
    readers: &mut Readers,
    max_age: Duration,
    excluded: &Excluded,
) -> Result<Devices, CollectError> {
    let mut names = host::device_names(host)?;
    names.retain(|name| !excluded.has(name));
    // The thread of a device that is gone ends when its reading does.
    readers.retain(|name, _| names.contains(name));
    for name in &names {
        if !readers.contains_key(name) {
            readers.insert(name.clone(), reader(host.clone(), name.clone())?);
        }
    }
    for reader in readers.values_mut() {
        reader.ask(());
    }
    let deadline = Instant::now() + ATTRIBUTES_DEADLINE;
    let mut devices = Devices { names, ..Devices::default() };
    for (name, reader) in readers {
        reader.wait(deadline);
        match reader.latest(max_age).and_then(|published| published.value.clone()) {
            Ok(device) => devices.known.push(device),
            Err(_) => devices.silent.push(name.clone()),
        }
    }
    Ok(devices)
}

fn reader(host: Host, name: String) -> Result<Source<(), RdmaDevice>, CollectError> {
    let open = move || move |()| Some(Ok(host::device(&host, &name)));
    Source::start("device", Rights::NONE, open)
        .map_err(|error| CollectError::Failed(format!("no thread for a device: {error}")))
}
