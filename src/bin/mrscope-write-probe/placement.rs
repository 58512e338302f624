//! On which pages, and on which node, the memory really lies: by the kernel's own word.
#![allow(unsafe_code)]

use std::path::Path;

use mrscope::probe::Pages;

use crate::failure::ProbeError;
use crate::guard;
use crate::memory::Buffer;

/// Pages that are asked where they are.
const SAMPLES: usize = 64;

/// Of transparent hugepages, where the kernel does not tell.
const USUAL_THP_BYTES: usize = 2 << 20;

/// Where a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    pub page_bytes: u64,
    /// None: several, or untold.
    pub node: Option<u32>,
}

/// What smaps says of the mappings in a range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Smaps {
    /// The kernel's page size of them, if they have one in common.
    page_bytes: Option<u64>,
    /// Bytes of transparent hugepages.
    transparent: u64,
}

/// Size of a transparent hugepage.
pub fn transparent_bytes(root: &Path) -> usize {
    let path = root.join("sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().ok().filter(|b: &usize| b.is_power_of_two()).unwrap_or(USUAL_THP_BYTES)
}

impl Placement {
    /// Of memory that has its pages.
    ///
    /// # Errors
    /// The pages are others than those that it was mapped for, or lie on another node than `node`.
    pub fn of(buffer: &Buffer, thp: usize, node: Option<u32>) -> Result<Self, ProbeError> {
        guard::at("/proc/self/smaps");
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let start = buffer.address();
        let seen = smaps(&text, start, start + buffer.mapped());
        let page_bytes = page_of(buffer.pages(), seen, buffer.mapped() as u64, thp as u64)?;
        guard::at("move_pages");
        let on = common(&nodes_of(buffer, page_bytes as usize));
        match (node, on) {
            (Some(wanted), Some(node)) if wanted != node => {
                Err(ProbeError::OtherNode { pages: buffer.pages(), wanted, node })
            }
            (Some(wanted), None) => Err(ProbeError::SeveralNodes { pages: buffer.pages(), wanted }),
            _ => Ok(Self { page_bytes, node: on }),
        }
    }
}

/// The size of the pages, if they are those that were asked for.
fn page_of(pages: Pages, seen: Smaps, mapped: u64, thp: u64) -> Result<u64, ProbeError> {
    let other = ProbeError::OtherPages { pages, mapped, transparent: seen.transparent };
    let page = seen.page_bytes.filter(|bytes| bytes.is_power_of_two());
    match (pages, page) {
        (Pages::Base, Some(bytes)) if seen.transparent == 0 => Ok(bytes),
        (Pages::Transparent, Some(_)) if seen.transparent == mapped => Ok(thp),
        (Pages::Huge2M, Some(bytes @ 0x20_0000)) | (Pages::Huge1G, Some(bytes @ 0x4000_0000)) => {
            Ok(bytes)
        }
        _ => Err(other),
    }
}

/// Adds up the mappings of a range.
fn smaps(text: &str, start: usize, end: usize) -> Smaps {
    let mut seen = Smaps::default();
    let (mut inside, mut first) = (false, true);
    for line in text.lines() {
        if let Some((from, to)) = range_of(line) {
            inside = from < end && start < to;
            continue;
        }
        if !inside {
            continue;
        }
        if let Some(bytes) = bytes_of(line, "KernelPageSize:") {
            let same = first || seen.page_bytes == Some(bytes);
            seen.page_bytes = same.then_some(bytes);
            first = false;
        }
        if let Some(bytes) = bytes_of(line, "AnonHugePages:") {
            seen.transparent += bytes;
        }
    }
    seen
}

/// `7f00-7f10 rw-p …`: the first line of a mapping.
fn range_of(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_once(' ')?.0.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

fn bytes_of(line: &str, key: &str) -> Option<u64> {
    let kilobytes = line.strip_prefix(key)?.trim().strip_suffix("kB")?;
    kilobytes.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Nodes of pages all over the buffer, or what the kernel said instead.
fn nodes_of(buffer: &Buffer, page: usize) -> Vec<i32> {
    let count = buffer.bytes().div_ceil(page);
    let samples = count.min(SAMPLES);
    let mut addresses: Vec<*const libc::c_void> = (0..samples)
        // The first, the last, and others between them.
        .map(|sample| sample * (count - 1) / (samples - 1).max(1) * page)
        .map(|offset| (buffer.address() + offset) as *const libc::c_void)
        .collect();
    let mut status = vec![i32::MIN; samples];
    // SAFETY: both lists have `samples` entries; without nodes no page is moved, and each of the
    // addresses is only looked up in this process.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            samples,
            addresses.as_mut_ptr(),
            std::ptr::null::<libc::c_int>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if asked == 0 { status } else { Vec::new() }
}

/// The node of all of them.
fn common(nodes: &[i32]) -> Option<u32> {
    let first = *nodes.first()?;
    let same = nodes.iter().all(|node| *node == first);
    same.then_some(first)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use rustix::param::page_size;

    use super::*;

    const TEXT: &str = "\
5500000000-5500001000 r-xp 00000000 00:1f 12 /usr/bin/probe
KernelPageSize:        4 kB
AnonHugePages:         0 kB
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Size:               2048 kB
KernelPageSize:        4 kB
AnonHugePages:      2048 kB
7f0000200000-7f0000400000 rw-p 00000000 00:00 0
KernelPageSize:        4 kB
AnonHugePages:         0 kB
7f0000400000-7f0000600000 rw-p 00000000 00:0f 44 /anon_hugepage (deleted)
KernelPageSize:     2048 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me ht
";
    const AT: usize = 0x7f00_0000_0000;
    const HUGE: usize = 2 << 20;

    fn judged(pages: Pages, from: usize, to: usize) -> Option<u64> {
        let seen = smaps(TEXT, AT + from, AT + to);
        page_of(pages, seen, (to - from) as u64, HUGE as u64).ok()
    }

    #[test]
    fn pages_are_what_smaps_says_of_the_range_and_else_none() {
        assert_eq!(judged(Pages::Transparent, 0, HUGE), Some(2 << 20));
        assert_eq!(judged(Pages::Base, 0, HUGE), None);
        assert_eq!(judged(Pages::Base, HUGE, 2 * HUGE), Some(4096));
        assert_eq!(judged(Pages::Transparent, HUGE, 2 * HUGE), None);
        // Half of it.
        assert_eq!(judged(Pages::Transparent, 0, 2 * HUGE), None);
        assert_eq!(judged(Pages::Huge2M, 2 * HUGE, 3 * HUGE), Some(2 << 20));
        assert_eq!(judged(Pages::Huge1G, 2 * HUGE, 3 * HUGE), None);
        // Of two sizes, and of none.
        assert_eq!(judged(Pages::Base, HUGE, 3 * HUGE), None);
        assert_eq!(judged(Pages::Base, 3 * HUGE, 4 * HUGE), None);
    }

    #[test]
    fn one_node_is_that_of_all_pages() {
        assert_eq!(common(&[1, 1, 1]), Some(1));
        assert_eq!(common(&[0, 1]), None);
        // A page that is not there (ENOENT), and a kernel that does not tell.
        assert_eq!(common(&[-2, -2]), None);
        assert_eq!(common(&[]), None);
    }

    #[test]
    fn memory_of_this_process_lies_on_base_pages_of_some_node() {
        for bytes in [16, 1 << 20, 3 << 20] {
            let buffer = Buffer::map(Pages::Base, bytes, true, HUGE).unwrap();
            let placement = Placement::of(&buffer, HUGE, None).unwrap();
            assert_eq!(placement.page_bytes, page_size() as u64);
            let nodes = nodes_of(&buffer, page_size());
            assert_eq!(nodes.len(), buffer.bytes().div_ceil(page_size()).min(SAMPLES));
        }
    }

    #[test]
    fn the_size_of_a_transparent_hugepage_is_read_or_the_usual() {
        assert_eq!(transparent_bytes(Path::new("/nonexistent")), 2 << 20);
        assert!(transparent_bytes(Path::new("/")).is_power_of_two());
    }
}
