//! Maps by name, and single rows of them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use libbpf_rs::{Map, MapCore, Object};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::events::EventsError;
use super::records::{Record, as_bytes};

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
        // One that was not to be made has a file all the same, of something else.
        for map in object.maps().filter(Map::autocreate) {
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

    /// The `count` rows of an array, mapped: reading them asks nothing of the kernel.
    ///
    /// # Errors
    /// No object has that map, or the kernel refuses to map it.
    pub fn mapped<T: Record>(
        &self,
        map: &'static str,
        count: usize,
    ) -> Result<Mapped<T>, EventsError> {
        Mapped::of(self.map(map)?, count).map_err(|source| EventsError::Map { map, source })
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

/// Rows of an array that programs and this process share, until it is dropped.
pub struct Mapped<T> {
    at: NonNull<T>,
    count: usize,
}

impl<T: Record> Mapped<T> {
    #[allow(unsafe_code)]
    fn of(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        // The kernel rounds the size of a row up to this.
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let (bytes, rights) = (count * size_of::<T>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
        let at = unsafe { mmap(null_mut(), bytes, rights, MapFlags::SHARED, map, 0) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { at, count })
    }

    #[must_use]
    #[allow(unsafe_code)]
    pub fn read(&self) -> Vec<T> {
        // SAFETY: the mapping has room for `count` rows, begins on a page, and lives as long as
        // self; any bytes are a row, whoever writes them meanwhile.
        (0..self.count).map(|row| unsafe { self.at.add(row).read_volatile() }).collect()
    }

    /// Writes the first rows, as many as there is room for, and zeros to the others.
    #[allow(unsafe_code)]
    pub fn write(&mut self, rows: &[T]) {
        for row in 0..self.count {
            let value = rows.get(row).copied().unwrap_or_default();
            // SAFETY: as above.
            unsafe { self.at.add(row).write_volatile(value) };
        }
    }
}

impl<T> Drop for Mapped<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.count * size_of::<T>()) };
    }
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
