//! The source of resources: asks RDMA netlink on a thread of its own, finds the MRs that were there
//! before registrations were watched, and compares what is counted with what the kernel lists.

mod device;
mod look;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::ebpf::UNKNOWN_DEVICE;
use crate::host::{Host, Processes, Rights};
use crate::model::{Accounts, DeviceResources, Excluded, Pin, ResourcesOptions, Snapshot};
use crate::nldev::pace::{PERCENT, Pace};
use crate::nldev::{ListsResources, NldevError};

use super::CollectError;
use super::source::{Source, Teller};
use super::sources::{EventsAsk, live_pins};
use device::Device;
use look::add_found;

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

    /// Releases of what no row tells of, by the names of one device; those whose device nobody knows
    /// may be of any.
    fn releases<'a>(&self, names: impl Iterator<Item = &'a String>) -> u64 {
        let unknown = self.unknown_releases.get(UNKNOWN_DEVICE);
        names.filter_map(|name| self.unknown_releases.get(name)).chain(unknown).sum()
    }
}

/// All that RDMA netlink told last.
#[derive(Debug, Clone, Default)]
pub struct Resources {
    pub devices: Vec<DeviceResources>,
    pub accounts: Accounts,
}

pub type ResourcesSource = Source<ResourcesAsk, Resources>;

/// Pins that are read whole at most: some 300 bytes each while that lasts.
pub const MOST_PINS: u64 = 1 << 20;
/// MRs that are asked for one by one; of more a list is read.
pub const MOST_QUESTIONS: usize = 256;

/// Starts the thread, which never asks about what is excluded. `pins` is the way to who reads the
/// kernel's maps.
///
/// # Errors
/// The system refuses a thread.
pub fn resources<O>(
    host: Host,
    options: ResourcesOptions,
    excluded: Excluded,
    pins: Teller<EventsAsk>,
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
            listed: None,
            counts: Pace::new(Duration::ZERO, PERCENT),
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
    pins: Teller<EventsAsk>,
    /// Since when registrations are watched, as far as that was told.
    since_ns: Option<u64>,
    /// The counts as they were read last, and when they may be again: counting many MRs keeps
    /// registrations out.
    listed: Option<Vec<DeviceResources>>,
    counts: Pace,
    /// By index.
    devices: BTreeMap<u32, Device>,
    begun: Instant,
}

impl Reader {
    fn read(&mut self, ask: &ResourcesAsk) -> Result<Resources, CollectError> {
        let Some(devices) = self.resources().map_err(|error| refused(&error))? else {
            self.devices.clear();
            return Err(CollectError::NoData("the RDMA modules are not loaded".into()));
        };
        let mut troubles = Vec::new();
        // Where that is not known this time, what was found is still there.
        if let Some(watched) = &ask.watched {
            if self.since_ns.replace(watched.since_ns) != Some(watched.since_ns) {
                self.devices.clear();
            }
            self.keep(&devices);
            self.check_found(&devices, watched);
            if let Err(trouble) = self.compare(watched) {
                troubles.push(trouble);
            }
        }
        Ok(Resources { devices, accounts: self.accounts(troubles) })
    }

    /// How many resources each device has. What was counted serves until a hundred times as long as
    /// that took is over.
    fn resources(&mut self) -> Result<Option<Vec<DeviceResources>>, NldevError> {
        let begun = self.begun.elapsed();
        if self.listed.is_none() || self.counts.is_due(begun) {
            // What was read before is no answer any more, whatever this one is.
            self.listed = None;
            let listed = self.kernel.resources()?;
            self.counts.spent(begun, self.begun.elapsed());
            self.listed = listed.map(|mut devices| {
                devices.retain(|device| !self.excluded.has(&device.device.name));
                devices
            });
        }
        Ok(self.listed.clone())
    }

    /// Devices that there are now.
    fn keep(&mut self, present: &[DeviceResources]) {
        let ids = || present.iter().map(|resources| &resources.device);
        self.devices.retain(|index, _| ids().any(|id| id.index == *index));
        for id in ids() {
            for (_, device) in self.devices.iter_mut().filter(|(index, _)| **index != id.index) {
                device.give_up_name(&id.name);
            }
            let new = || Device::new(id.clone(), self.options.interval);
            self.devices.entry(id.index).or_insert_with(new).rename(&id.name);
        }
    }

    fn check_found(&mut self, present: &[DeviceResources], watched: &Watching) {
        let begun = self.begun;
        for resources in present {
            if let Some(device) = self.devices.get_mut(&resources.device.index) {
                let in_use = resources.in_use("mr");
                let clock = || begun.elapsed();
                device.check_found(&mut *self.kernel, watched, in_use, &clock);
            }
        }
    }

    /// Looks at all devices that are due; at those that are new twice, so that what was there
    /// before is found at once.
    fn compare(&mut self, watched: &Watching) -> Result<(), String> {
        let now = self.begun.elapsed();
        let due = |(_, device): &(&u32, &Device)| device.is_due(now);
        let due: Vec<(u32, bool)> = self
            .devices
            .iter()
            .filter(due)
            .map(|(index, device)| (*index, device.is_new()))
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        if watched.live_pins > MOST_PINS {
            return Err(format!(
                "over {MOST_PINS} pins live: MRs from before the start are not counted, and nothing \
                 is compared"
            ));
        }
        self.look(due.iter().map(|(index, _)| *index), watched)?;
        let again = due.iter().filter(|(index, new)| {
            *new && self.devices.get(index).is_some_and(|device| !device.is_new())
        });
        let again: Vec<u32> = again.map(|(index, _)| *index).collect();
        if again.is_empty() { Ok(()) } else { self.look(again.into_iter(), watched) }
    }

    /// Pins, the lists of these devices, and pins again.
    fn look(&mut self, due: impl Iterator<Item = u32>, watched: &Watching) -> Result<(), String> {
        let before = self.live_pins()?;
        let mut lists = Vec::new();
        for index in due {
            let Some(device) = self.devices.get_mut(&index) else { continue };
            let begun = self.begun.elapsed();
            if let Some(list) = device.list(&self.host, &mut *self.kernel) {
                lists.push((index, list));
            }
            device.spent(begun, self.begun.elapsed());
        }
        let after = self.live_pins()?;
        let nameless = self.under_no_name(&after);
        let processes = Processes::of(&self.host);
        for (index, list) in lists {
            let Some(device) = self.devices.get_mut(&index) else { continue };
            let pins = (device.own(&before), device.own(&after));
            let kernel = &mut *self.kernel;
            device.compare(&list, (&pins.0, &pins.1), &nameless, kernel, &processes, watched);
        }
        Ok(())
    }

    /// Pins under names that no listed device has or had: of one that was renamed, or came, since the
    /// devices were listed; it may be any.
    fn under_no_name<'a>(&self, pins: &'a [Pin]) -> Vec<&'a Pin> {
        let has_device = |pin: &Pin| self.devices.values().any(|device| device.owns(pin));
        pins.iter().filter(|pin| !has_device(pin) && !self.excluded.has(&pin.device)).collect()
    }

    fn live_pins(&self) -> Result<Vec<Pin>, String> {
        live_pins(&self.pins).map_err(|error| error.to_string())
    }

    fn accounts(&self, mut troubles: Vec<String>) -> Accounts {
        let mut found = BTreeMap::new();
        for device in self.devices.values() {
            troubles.extend(device.trouble.clone());
            for mr in device.reconciled.found().values() {
                add_found(&mut found, &device.id.name, mr);
            }
        }
        let account = |device: &Device| Some((device.id.name.clone(), device.account?));
        Accounts {
            devices: self.devices.values().filter_map(account).collect(),
            found: found.into_values().collect(),
            troubles,
        }
    }
}

fn refused(error: &NldevError) -> CollectError {
    if error.denied() {
        CollectError::Denied(error.to_string())
    } else {
        CollectError::Failed(error.to_string())
    }
}
