//! The C records of bpf/*.h as Rust types, made by the build; and bytes of the kernel as records.

#![allow(unsafe_code)]

#[allow(non_camel_case_types, non_upper_case_globals, dead_code, clippy::all, clippy::pedantic)]
#[allow(clippy::undocumented_unsafe_blocks)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/records.rs"));
}

pub use generated::*;

/// A record of plain integers: any bytes of its size are a value of it.
///
/// # Safety
/// The type must be `repr(C)`, without padding that matters, and valid for every bit pattern.
pub unsafe trait Record: Copy + Default {}

// SAFETY: integers and arrays of integers only, made from bpf/*.h with their layout asserted.
unsafe impl Record for process_key {}
// SAFETY: as above.
unsafe impl Record for process {}
// SAFETY: as above.
unsafe impl Record for totals_key {}
// SAFETY: as above.
unsafe impl Record for totals {}
// SAFETY: as above.
unsafe impl Record for device {}
// SAFETY: as above.
unsafe impl Record for call {}
// SAFETY: as above.
unsafe impl Record for pin {}
// SAFETY: as above.
unsafe impl Record for failure_key {}
// SAFETY: as above.
unsafe impl Record for last_failure {}
// SAFETY: as above.
unsafe impl Record for settings {}
// SAFETY: as above.
unsafe impl Record for device_sample {}
// SAFETY: as above.
unsafe impl Record for task {}
// SAFETY: as above.
unsafe impl Record for mlock_totals {}
// SAFETY: as above.
unsafe impl Record for mlock_choice {}
// SAFETY: as above.
unsafe impl Record for history_use {}
// SAFETY: as above.
unsafe impl Record for placement {}
// SAFETY: as above.
unsafe impl Record for placement_choice {}
// SAFETY: any bytes are an integer.
unsafe impl Record for u32 {}
// SAFETY: any bytes are an integer.
unsafe impl Record for u64 {}
// SAFETY: any bytes are an integer.
unsafe impl Record for i64 {}

/// The record in the first bytes, or its default where there are too few.
pub fn from_bytes<T: Record>(bytes: &[u8]) -> T {
    if bytes.len() < size_of::<T>() {
        return T::default();
    }
    // SAFETY: there are enough bytes, any are a value of T, and the read needs no alignment.
    unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) }
}

/// The bytes of a record.
pub fn as_bytes<T: Record>(record: &T) -> &[u8] {
    // SAFETY: T is plain integers without uninitialised padding, and lives as long as the slice.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
}
