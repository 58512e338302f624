//! Maps by name, and their rows: one, or all in batches. `libbpf_rs::MapCore::lookup_batch` takes a
//! short batch for the end and so loses rows; the end is ENOENT alone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::{MapCore, Object};

use super::events::EventsError;
use super::records::{Record, as_bytes, from_bytes};

/// The maps that all objects share, as the first object made them.
#[derive(Default)]
pub struct SharedMaps(Vec<(String, OwnedFd)>);

impl SharedMaps {
    #[must_use]
    pub fn get(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, fd)| fd.as_fd())
    }

    /// Takes in the maps of an object that are not known yet.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn add(&mut self, object: &Object) -> io::Result<()> {
        for map in object.maps() {
            let name = map.name().to_string_lossy().into_owned();
            if self.get(&name).is_none() {
                self.0.push((name, map.as_fd().try_clone_to_owned()?));
            }
        }
        Ok(())
    }

    /// The map of that name.
    ///
    /// # Errors
    /// No object has one.
    pub fn map(&self, map: &'static str) -> Result<BorrowedFd<'_>, EventsError> {
        let none = || EventsError::Map { map, source: io::ErrorKind::NotFound.into() };
        self.get(map).ok_or_else(none)
    }

    /// All rows of a hash map.
    ///
    /// # Errors
    /// See [`read_all`].
    pub fn rows<K: Record, V: Record>(
        &self,
        map: &'static str,
    ) -> Result<Vec<(K, V)>, EventsError> {
        read_all(self.map(map)?).map_err(|source| EventsError::Map { map, source })
    }

    /// The first `count` rows of an array.
    ///
    /// # Errors
    /// What the kernel answers to BPF_MAP_LOOKUP_ELEM.
    pub fn array<V: Record>(&self, map: &'static str, count: u32) -> Result<Vec<V>, EventsError> {
        let fd = self.map(map)?;
        (0..count)
            .map(|row| lookup_one(fd, row))
            .collect::<io::Result<_>>()
            .map_err(|source| EventsError::Map { map, source })
    }

    /// Writes a row.
    ///
    /// # Errors
    /// What the kernel answers to BPF_MAP_UPDATE_ELEM.
    pub fn write<K: Record, V: Record>(
        &self,
        map: &'static str,
        key: &K,
        value: &V,
    ) -> Result<(), EventsError> {
        update_one(self.map(map)?, key, value).map_err(|source| EventsError::Map { map, source })
    }

    /// Deletes a row; true if it was there.
    pub fn delete<K: Record>(&self, map: &'static str, key: &K) -> bool {
        self.get(map).is_some_and(|fd| delete_one(fd, key))
    }
}

/// Rows asked for at first; a bucket that does not fit doubles it.
const FIRST_BATCH: usize = 1024;

/// All rows of a hash map, in no order. Rows that come or go meanwhile may or may not be among them.
///
/// # Errors
/// What the kernel answers to BPF_MAP_LOOKUP_BATCH.
pub fn read_all<K: Record, V: Record>(map: impl AsFd) -> io::Result<Vec<(K, V)>> {
    let fd = map.as_fd().as_raw_fd();
    let mut rows = Vec::new();
    let mut batch = FIRST_BATCH;
    let mut position: Option<u32> = None;
    let mut keys = vec![0u8; batch * size_of::<K>()];
    let mut values = vec![0u8; batch * size_of::<V>()];
    loop {
        let mut next = 0u32;
        let mut count = batch as u32;
        let status = lookup(fd, position.as_ref(), &mut next, &mut keys, &mut values, &mut count);
        match -status {
            0 | libc_errno::ENOENT => {
                let keys = keys.chunks_exact(size_of::<K>());
                let values = values.chunks_exact(size_of::<V>());
                rows.extend(
                    keys.zip(values)
                        .take(count as usize)
                        .map(|(key, value)| (from_bytes(key), from_bytes(value))),
                );
                if status != 0 {
                    return Ok(rows);
                }
                position = Some(next);
            }
            libc_errno::ENOSPC => {
                batch *= 2;
                keys.resize(batch * size_of::<K>(), 0);
                values.resize(batch * size_of::<V>(), 0);
            }
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The two answers that are not failures.
mod libc_errno {
    pub const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
    pub const ENOSPC: i32 = rustix::io::Errno::NOSPC.raw_os_error();
}

#[allow(unsafe_code)]
fn lookup_one<V: Record>(map: BorrowedFd<'_>, row: u32) -> io::Result<V> {
    let mut value = vec![0u8; size_of::<V>()];
    // SAFETY: an array's key is 4 bytes, and the value has the size of the map's.
    let status = unsafe {
        libbpf_sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            std::ptr::from_ref(&row).cast(),
            value.as_mut_ptr().cast(),
        )
    };
    result(status).map(|()| from_bytes(&value))
}

#[allow(unsafe_code)]
fn update_one<K: Record, V: Record>(map: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<()> {
    // SAFETY: key and value are records of the map's sizes; the kernel only reads them.
    result(unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            as_bytes(key).as_ptr().cast(),
            as_bytes(value).as_ptr().cast(),
            0,
        )
    })
}

#[allow(unsafe_code)]
fn delete_one<K: Record>(map: BorrowedFd<'_>, key: &K) -> bool {
    // SAFETY: the key is a record of the map's size; the kernel only reads it.
    let status =
        unsafe { libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), as_bytes(key).as_ptr().cast()) };
    status == 0
}

fn result(status: i32) -> io::Result<()> {
    if status < 0 { Err(io::Error::from_raw_os_error(-status)) } else { Ok(()) }
}

#[allow(unsafe_code)]
fn lookup(
    fd: i32,
    position: Option<&u32>,
    next: &mut u32,
    keys: &mut [u8],
    values: &mut [u8],
    count: &mut u32,
) -> i32 {
    let from = position.map_or(std::ptr::null_mut(), |p| std::ptr::from_ref(p).cast_mut().cast());
    // SAFETY: keys and values have room for `count` rows of the map's sizes; a position of a hash
    // map is 4 bytes, the kernel reads `from` and writes `next`.
    unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            fd,
            from,
            std::ptr::from_mut(next).cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            count,
            std::ptr::null(),
        )
    }
}
