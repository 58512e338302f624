//! The source of resources: asks RDMA netlink on a thread of its own, finds the MRs that were there
//! before registrations were watched, and compares what is counted with what the kernel lists.

mod look;

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::ebpf::UNKNOWN_DEVICE;
use crate::host::{Host, Processes, Rights};
use crate::ledger::reconcile::Reconciled;
use crate::model::{
    Account, Accounts, DeviceId, DeviceResources, Excluded, Pin, ResourcesOptions, Snapshot,
};
use crate::nldev::pace::{PERCENT, Pace};
use crate::nldev::{ListsResources, NldevError};

use super::CollectError;
use super::source::Source;
use super::sources::EventsAsk;
use look::{List, Ways, add_found, gone, orphans};

/// What the thread is told with each ask.
#[derive(Debug, Clone, Default)]
pub struct ResourcesAsk {
    /// None while registrations are not watched.
    pub watched: Option<Watching>,
}

/// How far the kernel's programs are.
#[derive(Debug, Clone, Default)]
pub struct Watching {
    pub since_ns: u64,
    /// Of each device.
    pub unknown_releases: BTreeMap<String, u64>,
    pub live_pins: u64,
}

impl Watching {
    /// None where registrations are not watched.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Option<Self> {
        let mut unknown_releases: BTreeMap<String, u64> = BTreeMap::new();
        for totals in &snapshot.devices {
            *unknown_releases.entry(totals.device.clone()).or_default() += totals.unknown_releases;
        }
        let live_pins = snapshot.processes.iter().map(|row| row.live_pins.max(0) as u64).sum();
        Some(Self { since_ns: snapshot.counting_since_ns?, unknown_releases, live_pins })
    }
}

/// All that RDMA netlink told last.
#[derive(Debug, Clone, Default)]
pub struct Resources {
    pub devices: Vec<DeviceResources>,
    pub accounts: Accounts,
}

pub type ResourcesSource = Source<ResourcesAsk, Resources>;

/// Pins that are compared at most: some 100 bytes each while that lasts.
const MOST_PINS: u64 = 1 << 20;
/// MRs that are asked for one by one; of more a list is read.
pub const MOST_QUESTIONS: usize = 256;
/// How long the kernel's pins are waited for.
const PINS_DEADLINE: Duration = Duration::from_secs(10);

/// Starts the thread, which never asks about what is excluded. `pins` is the way to who reads the
/// kernel's maps.
///
/// # Errors
/// The system refuses a thread.
pub fn resources<O>(
    host: Host,
    options: ResourcesOptions,
    excluded: Excluded,
    pins: Sender<EventsAsk>,
    open: O,
) -> std::io::Result<ResourcesSource>
where
    O: FnOnce(Host) -> Box<dyn ListsResources> + Send + 'static,
{
    Source::start("resources", Rights::PROCESSES, move || {
        let rights = Rights::PROCESSES.keep().and_then(|all| all.for_processes(&host).keep());
        let kernel = open(host.clone());
        let mut reader = Reader {
            host,
            kernel,
            options,
            excluded,
            pins,
            since_ns: None,
            devices: BTreeMap::new(),
            begun: Instant::now(),
        };
        let rights = rights.unwrap_or(Rights::NONE);
        move |ask: ResourcesAsk| {
            let read = rights.with(|| reader.read(&ask));
            reader.kernel.rest();
            Some(read)
        }
    })
}

struct Reader {
    host: Host,
    kernel: Box<dyn ListsResources>,
    options: ResourcesOptions,
    excluded: Excluded,
    pins: Sender<EventsAsk>,
    /// Since when registrations were watched at the last ask.
    since_ns: Option<u64>,
    /// By name.
    devices: BTreeMap<String, Device>,
    begun: Instant,
}

struct Device {
    id: DeviceId,
    reconciled: Reconciled,
    account: Option<Account>,
    trouble: Option<String>,
    /// Releases of unknown umems up to which what was found is known to be there.
    releases_seen: u64,
    pace: Pace,
    /// Of the questions whether what was found is still there.
    asks: Pace,
}

impl Reader {
    fn read(&mut self, ask: &ResourcesAsk) -> Result<Resources, CollectError> {
        let devices = self.kernel.resources().map_err(|error| refused(&error))?;
        let Some(mut devices) = devices else {
            self.devices.clear();
            return Err(CollectError::NoData("the RDMA modules are not loaded".into()));
        };
        devices.retain(|device| !self.excluded.has(&device.device.name));
        let since_ns = ask.watched.as_ref().map(|watched| watched.since_ns);
        if since_ns != std::mem::replace(&mut self.since_ns, since_ns) {
            self.devices.clear();
        }
        self.keep(devices.iter().map(|device| &device.device));
        let mut troubles = Vec::new();
        if let Some(watched) = &ask.watched {
            self.check_found(watched);
            if let Err(trouble) = self.compare(watched) {
                troubles.push(trouble);
            }
        }
        Ok(Resources { devices, accounts: self.accounts(troubles) })
    }

    /// Devices that there are now; one of an old name with another index is another.
    fn keep<'a>(&mut self, present: impl Iterator<Item = &'a DeviceId>) {
        let present: BTreeMap<&str, &DeviceId> =
            present.map(|device| (device.name.as_str(), device)).collect();
        self.devices.retain(|name, device| present.get(name.as_str()) == Some(&&device.id));
        for (name, id) in present {
            self.devices.entry(name.to_owned()).or_insert_with(|| Device {
                id: id.clone(),
                reconciled: Reconciled::default(),
                account: None,
                trouble: None,
                releases_seen: 0,
                pace: Pace::new(self.options.interval, PERCENT),
                asks: Pace::new(Duration::ZERO, PERCENT),
            });
        }
    }

    /// Where something unknown was released, what was found may be gone.
    fn check_found(&mut self, watched: &Watching) {
        for (name, device) in &mut self.devices {
            let releases = releases(watched, name);
            let begun = self.begun.elapsed();
            if device.reconciled.found().is_empty() {
                device.releases_seen = releases;
            }
            if releases == device.releases_seen {
                continue;
            }
            let mrns: Vec<u32> = device.reconciled.found().keys().copied().collect();
            // One by one they are asked for at once; a list costs more the longer it is.
            let by_list = mrns.len() > MOST_QUESTIONS;
            if by_list && !device.asks.is_due(begun) {
                continue;
            }
            match gone(&mut *self.kernel, device.id.index, &mrns) {
                Ok(gone) => {
                    device.reconciled.forget(&gone);
                    device.releases_seen = releases;
                }
                Err(error) => device.trouble = Some(format!("{name}: {error}")),
            }
            if by_list {
                device.asks.spent(begun, self.begun.elapsed());
            }
        }
    }

    /// Looks at all devices that are due; at those that are new twice, so that what was there
    /// before is found at once.
    fn compare(&mut self, watched: &Watching) -> Result<(), String> {
        let now = self.begun.elapsed();
        let due: Vec<String> = self
            .devices
            .iter()
            .filter(|(_, device)| device.pace.is_due(now))
            .map(|(name, _)| name.clone())
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        if watched.live_pins > MOST_PINS {
            return Err(format!(
                "{} pins live, and {MOST_PINS} at most are compared: MRs from before the start are \
                 not counted, and nothing is compared",
                watched.live_pins
            ));
        }
        let new: Vec<String> = due
            .iter()
            .filter(|name| self.devices.get(*name).is_some_and(|device| device.account.is_none()))
            .cloned()
            .collect();
        self.look(&due, watched)?;
        if !new.is_empty() {
            self.look(&new, watched)?;
        }
        Ok(())
    }

    /// Pins, the lists of these devices, and pins again.
    fn look(&mut self, due: &[String], watched: &Watching) -> Result<(), String> {
        let before = self.live_pins()?;
        let mut lists = Vec::new();
        for name in due {
            let Some(device) = self.devices.get_mut(name) else { continue };
            let begun = self.begun.elapsed();
            let found = device.reconciled.found();
            match List::read(&self.host, &mut *self.kernel, &device.id, found) {
                Ok(list) => {
                    device.trouble = list.trouble(name);
                    lists.push((name, list));
                }
                Err(error) => device.trouble = Some(format!("{name}: {error}")),
            }
            device.pace.spent(begun, self.begun.elapsed());
        }
        let after = self.live_pins()?;
        let processes = Processes::of(&self.host);
        for (name, list) in lists {
            let Some(device) = self.devices.get_mut(name) else { continue };
            let (before, after) = (of_device(&before, name), of_device(&after, name));
            let mut ways = Ways::of(&mut *self.kernel, device.id.index, &processes);
            let look = list.between(&before, &after);
            let beyond_ledger_bytes =
                device.reconciled.take(&look, &mut |entries| ways.owners(entries));
            device.releases_seen = releases(watched, name);
            let orphans = orphans(&after, &device.reconciled, &processes);
            device.account = Some(Account {
                orphaned: orphans.map(|(count, _)| count),
                orphaned_bytes: orphans.map(|(_, bytes)| bytes),
                beyond_ledger_bytes,
                reg_pages_bytes: list.beyond_pins(&before, &after, &device.reconciled),
                at: now_seconds(),
            });
        }
        Ok(())
    }

    fn live_pins(&self) -> Result<Vec<Pin>, String> {
        let (reply, pins) = channel();
        let late = |_| "the kernel's live pins could not be read in time".to_owned();
        self.pins.send(EventsAsk::Pins(reply)).map_err(|_| "mrscope ends".to_owned())?;
        pins.recv_timeout(PINS_DEADLINE).map_err(late)?.map_err(|error| error.to_string())
    }

    fn accounts(&self, mut troubles: Vec<String>) -> Accounts {
        let mut found = BTreeMap::new();
        for (name, device) in &self.devices {
            troubles.extend(device.trouble.clone());
            for mr in device.reconciled.found().values() {
                add_found(&mut found, name, mr);
            }
        }
        let account = |(name, device): (&String, &Device)| Some((name.clone(), device.account?));
        Accounts {
            devices: self.devices.iter().filter_map(account).collect(),
            found: found.into_values().collect(),
            troubles,
        }
    }
}

fn of_device<'a>(pins: &'a [Pin], device: &str) -> Vec<&'a Pin> {
    pins.iter().filter(|pin| *pin.device == *device).collect()
}

fn releases(watched: &Watching, device: &str) -> u64 {
    // Those whose device nobody knows may be of any.
    [device, UNKNOWN_DEVICE].iter().filter_map(|name| watched.unknown_releases.get(*name)).sum()
}

fn refused(error: &NldevError) -> CollectError {
    if error.denied() {
        CollectError::Denied(error.to_string())
    } else {
        CollectError::Failed(error.to_string())
    }
}

fn now_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map(|since| since.as_secs_f64()).unwrap_or_default()
}
