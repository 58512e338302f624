//! What reads the maps, without keeping programs out, and the sizes that they were made with.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::MapInfo;

use crate::host::Host;
use crate::model::MapUse;

use super::cost::map_memory;
use super::events::EventsError;
use super::maps::{Mapped, SharedMaps};
use super::placement;
use super::records::{self, Record};
use super::rows::RowWalks;

/// Maps whose use is told, in the order of their figures.
pub const TOLD: [&str; 10] = [
    "calls",
    "pins",
    "processes",
    "totals",
    "failures",
    "last_failures",
    "devices",
    "device_samples",
    HISTORY,
    placement::ROWS,
];

/// Its rows are sets, of which each has several places.
const HISTORY: &str = "history";

/// What reads maps.
pub struct Readers {
    walks: RowWalks,
    lost: Mapped<u64>,
    /// None while locks are not watched.
    mlocks: Option<Mapped<records::mlock_totals>>,
    /// None while registrations are not watched.
    history: Option<Mapped<records::history_use>>,
    /// Pages of MRs are looked at.
    places: Option<OwnedFd>,
    /// Most rows and kernel memory of each map, which stay as they were made.
    sizes: BTreeMap<&'static str, (u64, u64)>,
}

impl Readers {
    /// Needs the rights in effect.
    ///
    /// # Errors
    /// The kernel refuses a walk, or to map what is mapped.
    pub fn start(maps: &mut SharedMaps, host: &Host) -> Result<Self, EventsError> {
        let walks = RowWalks::start(maps).map_err(|why| why.explained(host))?;
        let lost = maps.mapped("lost", records::LOST_REASONS as usize)?;
        let mlocks = maps.get("mlocks").is_some();
        let mlocks =
            mlocks.then(|| maps.mapped("mlocks", records::MLOCK_SYSCALLS as usize)).transpose()?;
        let history = maps.get("history_use").is_some();
        let history = history.then(|| maps.mapped("history_use", 1)).transpose()?;
        let places = maps.get(placement::ROWS).map(|fd| fd.try_clone_to_owned()).transpose();
        let places = places.map_err(|source| EventsError::Map { map: placement::ROWS, source })?;
        let told = TOLD.into_iter().filter(|map| maps.get(map).is_some());
        let sizes = told.map(|map| Ok((map, size(maps, map)?)));
        let sizes = sizes.collect::<Result<_, EventsError>>()?;
        Ok(Self { walks, lost, mlocks, history, places, sizes })
    }

    /// All rows of a map that is read whole; none of one that nothing that is loaded has.
    ///
    /// # Errors
    /// The kernel refuses the walk, or ends it halfway.
    pub fn rows<K: Record, V: Record>(
        &mut self,
        map: &'static str,
    ) -> Result<Vec<(K, V)>, EventsError> {
        if self.sizes.contains_key(map) { self.walks.read(map) } else { Ok(Vec::new()) }
    }

    /// On what MRs lie; None where that is not looked at.
    ///
    /// # Errors
    /// The kernel refuses the walk, or ends it halfway.
    pub fn placements(&mut self) -> Result<Option<Vec<(u64, records::placement)>>, EventsError> {
        let walks = &mut self.walks;
        self.places.is_some().then(|| walks.read(placement::ROWS)).transpose()
    }

    /// Deletes rows of processes.
    ///
    /// # Errors
    /// As of `rows`.
    pub fn forget(&mut self, gone: &[records::process_key]) -> Result<(), EventsError> {
        self.walks.forget(gone)
    }

    pub fn lost(&self) -> Vec<u64> {
        self.lost.read()
    }

    /// None while locks are not watched.
    pub fn mlocks(&self) -> Option<Vec<records::mlock_totals>> {
        Some(self.mlocks.as_ref()?.read())
    }

    /// What of the history is taken and was forgotten.
    pub fn history(&self) -> records::history_use {
        let read = self.history.as_ref().map(Mapped::read);
        read.and_then(|rows| rows.first().copied()).unwrap_or_default()
    }

    /// How full a map is. None if there is none.
    pub fn map_use(&self, map: &'static str, entries: u64) -> Option<MapUse> {
        let (max_entries, mut memory_bytes) = *self.sizes.get(map)?;
        if let (placement::ROWS, Some(places)) = (map, &self.places) {
            // Its rows are made on demand.
            memory_bytes = map_memory(places.as_fd());
        }
        // CPUs that take one place at once each count it.
        Some(MapUse { map, entries: entries.min(max_entries), max_entries, memory_bytes })
    }
}

/// Most rows, or places, and kernel memory of a map.
fn size(maps: &SharedMaps, map: &'static str) -> Result<(u64, u64), EventsError> {
    let fd = maps.map(map)?;
    let info = MapInfo::new(fd)
        .map_err(|error| EventsError::Map { map, source: io::Error::other(error) })?;
    let rows = u64::from(info.info.max_entries);
    let places = if map == HISTORY { u64::from(records::HISTORY_PLACES) } else { 1 };
    Ok((rows * places, map_memory(fd)))
}
