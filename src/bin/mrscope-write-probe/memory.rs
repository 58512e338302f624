//! The memory that is registered: of the pages and on the node that were asked for, and with all
//! its pages before anything may fault on it.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use mrscope::probe::Pages;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

use crate::failure::ProbeError;
use crate::guard;

/// Bytes of a word of data.
pub const WORD: usize = 8;

const MAX_NODES: usize = 1024;
const MPOL_DEFAULT: libc::c_int = 0;
const MPOL_PREFERRED: libc::c_int = 1;
const MPOL_BIND: libc::c_int = 2;

/// A policy of this thread for the memory that it takes, until it is dropped.
///
/// A policy of the thread and not of the mapping: MAP_POPULATE, which on kernels before 5.14 is
/// the one way to fill a mapping of hugepages without a SIGBUS, takes pages before mbind could say
/// where.
#[derive(Debug)]
pub struct Policy(());

impl Policy {
    /// Memory comes from that node. Hugepages alone are bound to it: where base pages are, the
    /// kernel would kill somebody before it took another node's, so that is looked for afterwards.
    pub fn on(node: u32, pages: Pages) -> Result<Self, ProbeError> {
        guard::at("set_mempolicy");
        let mode = if pages.pooled() { MPOL_BIND } else { MPOL_PREFERRED };
        let mut mask = [0_u64; MAX_NODES / 64];
        let word = mask.get_mut(node as usize / 64);
        *word.ok_or(ProbeError::SetMempolicy { node, errno: Errno::INVAL })? = 1 << (node % 64);
        set_mempolicy(mode, Some(&mask))
            .map_err(|errno| ProbeError::SetMempolicy { node, errno })?;
        Ok(Self(()))
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let _ = set_mempolicy(MPOL_DEFAULT, None);
    }
}

fn set_mempolicy(mode: libc::c_int, mask: Option<&[u64; MAX_NODES / 64]>) -> Result<(), Errno> {
    let (mask, bits) = match mask {
        // The kernel takes one bit less than it is told.
        Some(mask) => (mask.as_ptr(), MAX_NODES + 1),
        None => (std::ptr::null(), 0),
    };
    // SAFETY: the kernel reads the mask, which is as long as it is told, during the call alone.
    let done = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// The error of the C call that just failed.
pub fn last_errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    code.map_or(Errno::IO, Errno::from_raw_os_error)
}

/// An anonymous mapping of this process alone.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    mapped: usize,
    /// What of it is for the MR.
    bytes: usize,
    pages: Pages,
}

impl Buffer {
    /// Maps `bytes`, rounded up to whole pages. With `touch`, all pages are there when it returns;
    /// hugepages of a pool always are.
    pub fn map(pages: Pages, bytes: u64, touch: bool, thp: usize) -> Result<Self, ProbeError> {
        let bytes = bytes as usize;
        let buffer = match pages {
            Pages::Base => Self::map_aligned(pages, bytes, page_size())?,
            Pages::Transparent => Self::map_aligned(pages, bytes, thp)?,
            Pages::Huge2M => Self::map_pooled(pages, bytes, MapFlags::HUGE_2MB, 2 << 20)?,
            Pages::Huge1G => Self::map_pooled(pages, bytes, MapFlags::HUGE_1GB, 1 << 30)?,
        };
        if touch && !pages.pooled() {
            guard::at("first touch");
            for offset in (0..buffer.mapped).step_by(page_size()) {
                buffer.write(offset / WORD, 0);
            }
        }
        Ok(buffer)
    }

    fn map_pooled(
        pages: Pages,
        bytes: usize,
        size_flag: MapFlags,
        page: usize,
    ) -> Result<Self, ProbeError> {
        guard::at("mmap");
        let mapped = bytes.next_multiple_of(page);
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::POPULATE | size_flag;
        let error = |errno| ProbeError::Mmap { pages, bytes: mapped as u64, errno };
        let start = new_mapping(mapped, flags).map_err(error)?;
        let buffer = Self { start, mapped, bytes, pages };
        // MAP_POPULATE does not tell what it could not have, and whoever touched that would get
        // SIGBUS.
        guard::at("mincore");
        let offsets = (0..mapped).step_by(page);
        let absent = offsets.filter(|offset| !buffer.is_present(*offset)).count();
        if absent > 0 {
            let (wanted, had) = (mapped / page, mapped / page - absent);
            let page_bytes = page as u64;
            return Err(ProbeError::Unpopulated { pages, page_bytes, wanted, had });
        }
        Ok(buffer)
    }

    /// A mapping whose start is a multiple of `unit`, for the kernel to use such pages, or not to.
    fn map_aligned(pages: Pages, bytes: usize, unit: usize) -> Result<Self, ProbeError> {
        guard::at("mmap");
        let mapped = bytes.next_multiple_of(unit);
        let whole = mapped + unit;
        let error = |errno| ProbeError::Mmap { pages, bytes: whole as u64, errno };
        let start = new_mapping(whole, MapFlags::PRIVATE).map_err(error)?;
        let before = start.as_ptr().align_offset(unit);
        // SAFETY: both ends lie in the new mapping, which nobody knows yet; what is kept is between
        // them, and its start is within the mapping, thus not null.
        let start = unsafe {
            cut(start, before);
            let kept = start.add(before);
            cut(kept.add(mapped), unit - before);
            kept
        };
        let buffer = Self { start, mapped, bytes, pages };
        let advice = match pages {
            Pages::Transparent => Advice::LinuxHugepage,
            _ => Advice::LinuxNoHugepage,
        };
        guard::at("madvise");
        // SAFETY: the range is the whole mapping; its contents stay what they are.
        let advised = unsafe { madvise(buffer.start.as_ptr().cast(), mapped, advice) };
        match advised {
            Ok(()) => Ok(buffer),
            // A kernel without transparent hugepages has nothing else than base pages.
            Err(_) if pages == Pages::Base => Ok(buffer),
            Err(errno) => Err(ProbeError::Madvise { errno }),
        }
    }

    fn is_present(&self, offset: usize) -> bool {
        let mut state = 0_u8;
        // SAFETY: one page of this mapping is asked for, which gives one byte.
        let asked = unsafe {
            libc::mincore(self.start.as_ptr().add(offset).cast(), page_size(), &raw mut state)
        };
        asked == 0 && state & 1 == 1
    }

    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes for the MR.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the whole mapping.
    pub fn mapped(&self) -> usize {
        self.mapped
    }

    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Writes a word; the device may write at the same time.
    pub fn write(&self, index: usize, value: u64) {
        // SAFETY: in bounds, aligned as the mapping is, and volatile, as the device has part in it.
        unsafe { self.at(index).write_volatile(value) }
    }

    /// Reads a word, whoever wrote it.
    pub fn read(&self, index: usize) -> u64 {
        // SAFETY: as above; memory of an anonymous mapping has a value from the start.
        unsafe { self.at(index).read_volatile() }
    }

    // A mapping starts with a page.
    #[allow(clippy::cast_ptr_alignment)]
    fn at(&self, index: usize) -> *mut u64 {
        assert!(index < self.mapped / WORD, "word {index} of {} bytes", self.mapped);
        // SAFETY: it was just seen to lie in the mapping.
        unsafe { self.start.as_ptr().cast::<u64>().add(index) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and an MR on it borrows this value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

fn new_mapping(bytes: usize, flags: MapFlags) -> Result<NonNull<u8>, Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses a range that nothing else is mapped in.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }?;
    NonNull::new(start.cast()).ok_or(Errno::FAULT)
}

/// Unmaps what of a mapping is not needed.
///
/// # Safety
/// The range is mapped, and nobody has use for it.
unsafe fn cut(start: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // SAFETY: by the caller.
        let _ = unsafe { munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_pages_are_there_and_hold_what_is_written() {
        let buffer = Buffer::map(Pages::Base, 10_000, true, 2 << 20).unwrap();
        assert_eq!((buffer.bytes(), buffer.mapped() % page_size()), (10_000, 0));
        assert_eq!(buffer.address() % page_size(), 0);
        assert!((0..buffer.mapped()).step_by(page_size()).all(|offset| buffer.is_present(offset)));
        buffer.write(1249, 77);
        assert_eq!((buffer.read(1248), buffer.read(1249)), (0, 77));
    }

    #[test]
    fn untouched_memory_has_no_page() {
        let buffer = Buffer::map(Pages::Base, 1 << 20, false, 2 << 20).unwrap();
        assert!(!(0..buffer.mapped()).step_by(page_size()).any(|at| buffer.is_present(at)));
    }

    #[test]
    fn memory_for_transparent_hugepages_starts_where_one_can() {
        let thp = 2 << 20;
        let buffer = Buffer::map(Pages::Transparent, 3 << 20, false, thp).unwrap();
        assert_eq!((buffer.address() % thp, buffer.mapped()), (0, 4 << 20));
    }

    #[test]
    fn a_node_that_no_kernel_has_is_refused() {
        for node in [1023, 1024, u32::MAX] {
            let refused = Policy::on(node, Pages::Base);
            assert!(matches!(refused, Err(ProbeError::SetMempolicy { .. })), "{node}");
        }
    }
}
