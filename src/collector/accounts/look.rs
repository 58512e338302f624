//! One look at a device: what RDMA netlink and sysfs tell of it, and what comes of that.

use std::collections::{BTreeMap, HashMap};

use crate::host::{self, Host, Presence, Processes};
use crate::ledger::reconcile::{Look, Reconciled};
use crate::model::{
    Creator, DeviceId, Found, FoundMr, FoundOwner, MrEntry, MrKind, MrOwner, Pin, PinUse,
    ProcessKey,
};
use crate::nldev::{Dump, End, ListsResources, NldevError, owners};

use super::MOST_QUESTIONS;

/// A list in so few datagrams, its end among them, was made in one piece.
const ONE_PIECE: u32 = 2;

/// The MRs of a device, and what its driver counts.
pub struct List {
    entries: Vec<MrEntry>,
    end: End,
    /// None where the driver counts nothing.
    reg_pages: Option<i32>,
    reg_pages_trouble: Option<String>,
}

impl List {
    /// Reads the list; twice where it comes in pieces, as a piece may lack an MR when another before
    /// it went meanwhile. What was found and is not on it is asked for.
    ///
    /// # Errors
    /// The kernel refuses, or the device is gone.
    pub fn read(
        host: &Host,
        kernel: &mut dyn ListsResources,
        device: &DeviceId,
        found: &BTreeMap<u32, FoundMr>,
    ) -> Result<Self, NldevError> {
        let Dump { entries, mut end, datagrams, .. } = kernel.memory_regions(device.index)?;
        let mut all: BTreeMap<u32, MrEntry> = BTreeMap::new();
        add(&mut all, entries);
        if datagrams > ONE_PIECE {
            let again = kernel.memory_regions(device.index)?;
            add(&mut all, again.entries);
            if again.end != End::Whole {
                end = again.end;
            }
        }
        let missing: Vec<u32> = found
            .keys()
            .filter(|mrn| !all.contains_key(mrn))
            .copied()
            .take(MOST_QUESTIONS)
            .collect();
        for mrn in missing {
            add(&mut all, kernel.memory_region(device.index, mrn)?);
        }
        let (reg_pages, reg_pages_trouble) = match host::reg_pages(host, &device.name) {
            Ok(pages) => (pages, None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Self { entries: all.into_values().collect(), end, reg_pages, reg_pages_trouble })
    }

    /// What of it could not be had.
    pub fn trouble(&self, device: &str) -> Option<String> {
        match self.end {
            End::Whole => self.reg_pages_trouble.clone(),
            End::Partial(limit) => Some(format!(
                "{device}: its list of MRs was not read to its end ({limit}): of those from before the \
                 start none is found, and nothing is compared"
            )),
        }
    }

    /// What is not on it is not there.
    pub fn is_whole(&self) -> bool {
        self.end == End::Whole
    }

    /// As it is compared.
    pub fn between<'a>(&'a self, before: &'a [&'a Pin], after: &'a [&'a Pin]) -> Look<'a> {
        Look { before, entries: &self.entries, after }
    }

    /// Bytes that the driver's count is beyond what is pinned for MRs. The count is one of 32 bits,
    /// which wraps, and the pins change while it is read: what lies between is no difference.
    pub fn beyond_pins(
        &self,
        before: &[&Pin],
        after: &[&Pin],
        reconciled: &Reconciled,
    ) -> Option<i64> {
        let page = host::page_bytes();
        let pages_of = |pins: &[&Pin]| -> HashMap<(u64, u64), u64> {
            let of_mrs = pins.iter().filter(|pin| pin.pin_use == PinUse::Mr);
            of_mrs.map(|pin| (pin.id(), counted_bytes(pin, page) / page)).collect()
        };
        let (before, after) = (pages_of(before), pages_of(after));
        let found = reconciled.found().values().map(|mr| pinned_bytes(mr, page) / page);
        let found: u64 = found.sum();
        let sure: u64 =
            before.iter().filter(|(id, _)| after.contains_key(id)).map(|(_, pages)| pages).sum();
        let fresh: u64 =
            after.iter().filter(|(id, _)| !before.contains_key(id)).map(|(_, pages)| pages).sum();
        let most = before.values().sum::<u64>() + fresh + found;
        let over = self.reg_pages?.wrapping_sub(most as i32);
        let under = self.reg_pages?.wrapping_sub((sure + found) as i32);
        let pages = if over > 0 { over } else { under.min(0) };
        Some(i64::from(pages) * page as i64)
    }
}

/// Those of users.
fn add(all: &mut BTreeMap<u32, MrEntry>, entries: impl IntoIterator<Item = MrEntry>) {
    let of_users = entries.into_iter().filter(|mr| !matches!(mr.creator, Creator::Kernel(_)));
    all.extend(of_users.map(|mr| (mr.mrn, mr)));
}

/// What a driver counts of a pin: dmabufs too, and nothing that is paged on demand.
fn counted_bytes(pin: &Pin, page: u64) -> u64 {
    match pin.kind {
        MrKind::Dmabuf => pin.length_bytes.next_multiple_of(page),
        _ => pin.pinned_bytes,
    }
}

fn pinned_bytes(mr: &FoundMr, page: u64) -> u64 {
    match (mr.kind, mr.length) {
        (MrKind::Host, Some(bytes)) => bytes.next_multiple_of(page),
        _ => 0,
    }
}

/// Which of these MRs are not there any more, or are others by their length. None where the list that
/// would tell is not whole.
///
/// # Errors
/// The kernel refuses, or the device is gone.
pub fn gone(
    kernel: &mut dyn ListsResources,
    device: u32,
    found: &BTreeMap<u32, FoundMr>,
) -> Result<Option<Vec<u32>>, NldevError> {
    let mut missing = found.clone();
    // A list may lack what is there, but hardly the same twice.
    for _ in 0..2 {
        if missing.len() <= MOST_QUESTIONS {
            break;
        }
        let list = kernel.memory_regions(device)?;
        if list.end != End::Whole {
            return Ok(None);
        }
        let there: HashMap<u32, Option<u64>> =
            list.entries.iter().map(|mr| (mr.mrn, mr.length)).collect();
        missing.retain(|mrn, mr| there.get(mrn) != Some(&mr.length));
    }
    if missing.len() <= MOST_QUESTIONS {
        for (mrn, mr) in std::mem::take(&mut missing) {
            let there = kernel.memory_region(device, mrn)?;
            if there.is_none_or(|there| there.length != mr.length) {
                missing.insert(mrn, mr);
            }
        }
    }
    Ok(Some(missing.into_keys().collect()))
}

/// Whose MRs of a device are: by their PDs and contexts, which are read when owners are first asked
/// for, of the whole list at once.
pub struct Ways<'a> {
    kernel: &'a mut dyn ListsResources,
    device: u32,
    processes: &'a Processes<'a>,
    list: &'a List,
    owned: Option<HashMap<u32, FoundOwner>>,
}

impl<'a> Ways<'a> {
    pub fn of(
        kernel: &'a mut dyn ListsResources,
        device: u32,
        processes: &'a Processes<'a>,
        list: &'a List,
    ) -> Self {
        Self { kernel, device, processes, list, owned: None }
    }

    /// Whose these are, in their order.
    pub fn owners(&mut self, entries: &[&MrEntry]) -> Vec<FoundOwner> {
        let owned = self.owned.take().unwrap_or_else(|| self.all());
        let owner = |mr: &&MrEntry| owned.get(&mr.mrn).copied().unwrap_or(FoundOwner::Unknown);
        let owners = entries.iter().map(owner).collect();
        self.owned = Some(owned);
        owners
    }

    fn all(&mut self) -> HashMap<u32, FoundOwner> {
        // Without them fewer owners are known.
        let pds = self.kernel.protection_domains(self.device).map(|dump| dump.entries);
        let contexts = self.kernel.contexts(self.device).map(|dump| dump.map(|dump| dump.entries));
        let (pds, contexts) =
            (pds.unwrap_or_default(), contexts.ok().flatten().unwrap_or_default());
        let entries = &self.list.entries;
        let owners = owners(entries, &pds, &contexts, |tid| self.processes.of_thread(tid));
        let mut started: HashMap<u32, FoundOwner> = HashMap::new();
        let mut key = |tgid| {
            *started.entry(tgid).or_insert_with(|| match self.processes.started(tgid) {
                Some(ticks) => FoundOwner::Process(ProcessKey::of_tick(tgid, ticks)),
                None => FoundOwner::Gone,
            })
        };
        let mut owner = |owner| match owner {
            MrOwner::Process { tgid, .. } => key(tgid),
            MrOwner::Gone => FoundOwner::Gone,
            MrOwner::Kernel | MrOwner::Unknown => FoundOwner::Unknown,
        };
        entries.iter().map(|mr| mr.mrn).zip(owners.into_iter().map(&mut owner)).collect()
    }
}

/// How many MRs there are whose process has ended, and their lengths. None where ends can't be told.
/// What was found and has nobody is not among them: the kernel names threads, and the process of those
/// that made it may live on.
pub fn orphans(
    pins: &[&Pin],
    reconciled: &Reconciled,
    processes: &Processes<'_>,
) -> Option<(u64, u64)> {
    if !processes.all_visible() {
        return None;
    }
    let mut ended: HashMap<ProcessKey, bool> = HashMap::new();
    let mut has_ended = |key: ProcessKey| {
        *ended
            .entry(key)
            .or_insert_with(|| processes.presence(key.tgid, key.start_ns) == Presence::Gone)
    };
    let mut orphans = (0, 0);
    for pin in pins.iter().filter(|pin| pin.pin_use == PinUse::Mr && pin.committed) {
        if pin.owner.is_some_and(&mut has_ended) {
            orphans = (orphans.0 + 1, orphans.1 + pin.length_bytes);
        }
    }
    for mr in reconciled.found().values() {
        let gone = match mr.owner {
            FoundOwner::Process(key) => has_ended(key),
            FoundOwner::Gone | FoundOwner::Unknown => false,
        };
        if gone {
            orphans = (orphans.0 + 1, orphans.1 + mr.length.unwrap_or_default());
        }
    }
    Some(orphans)
}

/// Adds an MR to what was found of its device and owner.
pub fn add_found(
    all: &mut BTreeMap<(String, MrKind, FoundOwner), Found>,
    device: &str,
    mr: &FoundMr,
) {
    let key = (device.to_owned(), mr.kind, mr.owner);
    let into = all.entry(key).or_insert_with(|| Found {
        device: device.to_owned(),
        kind: mr.kind,
        owner: mr.owner,
        count: 0,
        bytes: 0,
        pinned_bytes: 0,
        largest_bytes: 0,
    });
    let bytes = mr.length.unwrap_or_default();
    into.count += 1;
    into.bytes += bytes;
    into.pinned_bytes += pinned_bytes(mr, host::page_bytes());
    into.largest_bytes = into.largest_bytes.max(bytes);
}
