//! One device and what is known of its MRs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::host::{Host, Processes};
use crate::ledger::reconcile::Reconciled;
use crate::model::{Account, DeviceId, Pin};
use crate::nldev::pace::{PERCENT, Pace};
use crate::nldev::{ListsResources, NldevError};

use super::look::{List, Ways, gone, orphans};
use super::{MOST_QUESTIONS, Watching};

/// Hundredths of all time that lists may take by which what was found is looked for again: it is to
/// be off the page soon.
const SEARCH_PERCENT: u32 = 10 * PERCENT;

pub struct Device {
    pub id: DeviceId,
    /// Names that it had before: its older pins carry them.
    older_names: Vec<String>,
    pub reconciled: Reconciled,
    /// None until it was compared.
    pub account: Option<Account>,
    pub trouble: Option<String>,
    /// What the last comparison came to, if that was below zero.
    below: i64,
    /// Releases of unknown umems up to which what was found is known to be there.
    releases_seen: u64,
    pace: Pace,
    search: Pace,
}

impl Device {
    pub fn new(id: DeviceId, interval: Duration) -> Self {
        Self {
            id,
            older_names: Vec::new(),
            reconciled: Reconciled::default(),
            account: None,
            trouble: None,
            below: 0,
            releases_seen: 0,
            pace: Pace::new(interval, PERCENT),
            search: Pace::new(Duration::ZERO, SEARCH_PERCENT),
        }
    }

    pub fn rename(&mut self, name: &str) {
        if self.id.name != name {
            let older = std::mem::replace(&mut self.id.name, name.to_owned());
            self.older_names.retain(|known| known != name);
            self.older_names.push(older);
        }
    }

    /// Another device has that name now.
    pub fn give_up_name(&mut self, name: &str) {
        self.older_names.retain(|known| known != name);
    }

    pub fn is_due(&self, now: Duration) -> bool {
        self.pace.is_due(now)
    }

    /// It was not compared yet.
    pub fn is_new(&self) -> bool {
        self.account.is_none()
    }

    pub fn spent(&mut self, begun: Duration, ended: Duration) {
        self.pace.spent(begun, ended);
    }

    /// Whether a pin was made under a name that it has or had.
    pub fn owns(&self, pin: &Pin) -> bool {
        *pin.device == *self.id.name || self.older_names.iter().any(|name| *pin.device == **name)
    }

    /// Its own of all pins.
    pub fn own<'a>(&self, pins: &'a [Pin]) -> Vec<&'a Pin> {
        pins.iter().filter(|pin| self.owns(pin)).collect()
    }

    fn releases(&self, watched: &Watching) -> u64 {
        watched.releases(std::iter::once(&self.id.name).chain(&self.older_names))
    }

    /// Where something unknown was released, what was found may be gone. `in_use` are its MRs by the
    /// kernel's count.
    pub fn check_found(
        &mut self,
        kernel: &mut dyn ListsResources,
        watched: &Watching,
        in_use: Option<u64>,
        clock: &dyn Fn() -> Duration,
    ) {
        let releases = self.releases(watched);
        let found = self.reconciled.found();
        if found.is_empty() {
            self.releases_seen = releases;
        }
        if releases == self.releases_seen {
            return;
        }
        // One by one they are asked for at once; a list costs more the longer it is.
        let by_list = found.len() > MOST_QUESTIONS && in_use != Some(0);
        let begun = clock();
        if by_list && !self.search.is_due(begun) {
            return;
        }
        let gone = match in_use {
            Some(0) => Ok(Some(found.keys().copied().collect())),
            _ => gone(kernel, self.id.index, found),
        };
        match gone {
            Ok(Some(gone)) => {
                self.reconciled.forget(&gone);
                self.releases_seen = releases;
            }
            // Not known: again the next time.
            Ok(None) => {}
            Err(error) => self.trouble = Some(self.named(&error)),
        }
        if by_list {
            self.search.spent(begun, clock());
        }
    }

    /// Its list, where it can be had to its end.
    pub fn list(&mut self, host: &Host, kernel: &mut dyn ListsResources) -> Option<List> {
        match List::read(host, kernel, &self.id, self.reconciled.found()) {
            Ok(list) => {
                self.trouble = list.trouble(&self.id.name);
                Some(list).filter(List::is_whole)
            }
            Err(error) => {
                self.trouble = Some(self.named(&error));
                None
            }
        }
    }

    fn named(&self, error: &NldevError) -> String {
        format!("{}: {error}", self.id.name)
    }

    /// Compares the list with the pins around it, and with those that may be any device's.
    pub fn compare(
        &mut self,
        list: &List,
        (before, after): (&[&Pin], &[&Pin]),
        nameless: &[&Pin],
        kernel: &mut dyn ListsResources,
        processes: &Processes<'_>,
        watched: &Watching,
    ) {
        let mut ways = Ways::of(kernel, self.id.index, processes, list);
        // After the list alone: pins that may have one of its MRs, and are not sure to.
        let may: Vec<&Pin> = after.iter().chain(nameless).copied().collect();
        let look = list.between(before, &may);
        let beyond = self.reconciled.take(&look, &mut |entries| ways.owners(entries));
        self.releases_seen = self.releases(watched);
        // An MR is off the list before its pin is: what is below zero once is on its way out.
        let below = beyond.map_or(0, |bytes| bytes.min(0));
        let steady = beyond.map(|bytes| if bytes < 0 { bytes.max(self.below) } else { bytes });
        self.below = below;
        let orphans = orphans(after, &self.reconciled, processes);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        self.account = Some(Account {
            orphaned: orphans.map(|(count, _)| count),
            orphaned_bytes: orphans.map(|(_, bytes)| bytes),
            beyond_ledger_bytes: steady,
            reg_pages_bytes: list.beyond_pins(before, after, &self.reconciled),
            at: since.map(|since| since.as_secs_f64()).unwrap_or_default(),
        });
    }
}
