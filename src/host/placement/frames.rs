//! How large the page is that a page frame is part of, by /proc/kpageflags.

use std::io;

use crate::host::Host;

/// Bits of /proc/kpageflags.
const TAIL: u64 = 1 << 16;
const HUGETLB: u64 = 1 << 17;
const NO_PAGE: u64 = 1 << 20;

/// Bits of /proc/PID/pagemap.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// What an entry of /proc/PID/pagemap says of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// Never touched, swapped out, or nothing is mapped there.
    NotThere,
    /// In memory; which frame it is, is kept from who opened the file without CAP_SYS_ADMIN.
    Hidden,
    Frame(u64),
}

impl Entry {
    pub fn of(entry: u64) -> Self {
        match entry & FRAME {
            _ if entry & PRESENT == 0 => Self::NotThere,
            0 => Self::Hidden,
            frame => Self::Frame(frame),
        }
    }
}

/// The sizes of pages that the host has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Of a base page, in bytes, as all below.
    pub base: u64,
    /// Of a transparent hugepage. None on a kernel without.
    transparent: Option<u64>,
    /// All huge ones, ascending.
    huge: Vec<u64>,
}

impl Sizes {
    pub fn of(host: &Host, base: u64) -> Self {
        let transparent = host
            .sys_text("kernel/mm/transparent_hugepage/hpage_pmd_size")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .filter(|bytes: &u64| bytes.is_power_of_two() && *bytes > base);
        let folders = std::fs::read_dir(host.sys("kernel/mm/hugepages")).into_iter().flatten();
        let names = folders.flatten().map(|entry| entry.file_name());
        let mut huge: Vec<u64> = names
            .filter_map(|name| {
                let kib = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
                kib.parse::<u64>().ok()?.checked_mul(1024)
            })
            .filter(|bytes| bytes.is_power_of_two() && *bytes > base)
            .chain(transparent)
            .collect();
        huge.sort_unstable();
        huge.dedup();
        Self { base, transparent, huge }
    }

    /// Whether all pages are of one size, so that no frame has to be looked at.
    pub fn only_base(&self) -> bool {
        self.huge.is_empty()
    }

    /// The size of the page that a frame is part of; `flags` reads the word of another frame, None
    /// where there is none. None where the frame is no memory.
    ///
    /// The kernel's pages lie on frames that are a multiple of their size. So the frame in the middle
    /// of an aligned block is the tail of a page only if the whole block, or more, is that page: one
    /// word tells of a size, whatever part of the page the frame is, and whether or not the process
    /// maps it as one. Of pages that are not hugetlbfs's, sizes below a transparent hugepage's are
    /// base pages that lie together (mTHP).
    ///
    /// # Errors
    /// The file could not be read.
    pub fn of_page(
        &self,
        frame: u64,
        mut flags: impl FnMut(u64) -> io::Result<Option<u64>>,
    ) -> io::Result<Option<u64>> {
        let mut bytes = self.base;
        for (at, size) in self.huge.iter().enumerate() {
            let frames = size / self.base;
            // Memory comes in sections that are no smaller than the first size, so the middle of the
            // block is memory where the frame is.
            let word = flags(frame / frames * frames + frames / 2)?.unwrap_or(NO_PAGE);
            if at == 0 && word & NO_PAGE != 0 {
                return Ok(None);
            }
            if word & TAIL == 0 {
                break;
            }
            if word & HUGETLB != 0 || self.transparent.is_some_and(|least| *size >= least) {
                bytes = *size;
            }
        }
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const HEAD: u64 = 1 << 15;
    const THP: u64 = 1 << 22;
    const BASE: u64 = 4096;
    const MIB: u64 = 1 << 20;

    /// Memory that has pages of some sizes at some frames, and base pages else.
    struct Frames(BTreeMap<u64, (u64, u64)>);

    impl Frames {
        /// Each page as its first frame, its frames and its further flags.
        fn of(pages: &[(u64, u64, u64)]) -> Self {
            let pages = pages.iter().map(|(first, frames, flags)| {
                assert_eq!(first % frames, 0);
                (*first, (*frames, *flags))
            });
            Self(pages.collect())
        }

        fn word(&self, frame: u64) -> u64 {
            match self.0.range(..=frame).next_back() {
                Some((first, (frames, flags))) if frame < first + frames => {
                    flags | if frame == *first { HEAD } else { TAIL }
                }
                _ => 0,
            }
        }

        fn size_at(&self, sizes: &Sizes, frame: u64) -> Option<u64> {
            sizes.of_page(frame, |frame| Ok(Some(self.word(frame)))).unwrap()
        }
    }

    fn x86() -> Sizes {
        Sizes { base: BASE, transparent: Some(2 * MIB), huge: vec![2 * MIB, 1024 * MIB] }
    }

    #[test]
    fn an_entry_of_pagemap_has_a_frame_if_it_is_there_and_told() {
        assert_eq!(Entry::of(0), Entry::NotThere);
        // Swapped out: what stands in place of the frame is none.
        assert_eq!(Entry::of(1 << 62 | 0x1234), Entry::NotThere);
        assert_eq!(Entry::of(1 << 63 | 1 << 61), Entry::Hidden);
        assert_eq!(Entry::of(0xa100_0000_001c_bf15), Entry::Frame(0x1c_bf15));
    }

    #[test]
    fn every_frame_of_a_page_tells_its_size() {
        let frames = Frames::of(&[
            (512, 512, THP),
            (1024, 512, HUGETLB),
            (1536, 256, THP),
            (1792, 128, THP),
            (1 << 18, 1 << 18, HUGETLB),
        ]);
        let sizes = x86();
        for (range, bytes) in [
            (0..512, BASE),
            (512..1536, 2 * MIB),
            // Halves and quarters of a hugepage, in any order.
            (1536..2560, BASE),
            ((1 << 18) - 512..1 << 18, BASE),
            (1 << 18..(1 << 18) + 2000, 1024 * MIB),
            ((2 << 18) - 2000..2 << 18, 1024 * MIB),
            (2 << 18..(2 << 18) + 600, BASE),
        ] {
            for frame in range {
                assert_eq!(frames.size_at(&sizes, frame), Some(bytes), "{frame}");
            }
        }
    }

    #[test]
    fn two_pages_side_by_side_are_no_larger_one() {
        // The second half is a page of its own, which begins in the middle.
        let frames = Frames::of(&[(0, 1 << 17, THP), (1 << 17, 1 << 17, THP)]);
        assert_eq!(frames.size_at(&x86(), 5), Some(2 * MIB));
        assert_eq!(frames.size_at(&x86(), (1 << 17) + 5), Some(2 * MIB));
        let halves = Frames::of(&[(0, 256, THP), (256, 256, THP)]);
        assert_eq!(halves.size_at(&x86(), 300), Some(BASE));
    }

    #[test]
    fn a_size_below_a_transparent_hugepage_is_one_of_hugetlbfs_alone() {
        const KIB: u64 = 1024;
        let huge = vec![64 * KIB, 2 * MIB, 32 * MIB, 1024 * MIB];
        let arm = Sizes { base: BASE, transparent: Some(2 * MIB), huge };
        let frames =
            Frames::of(&[(16, 16, HUGETLB), (32, 16, THP), (512, 512, THP), (8192, 8192, HUGETLB)]);
        let told = [0, 17, 33, 600, 9000].map(|frame| frames.size_at(&arm, frame).unwrap());
        assert_eq!(told, [BASE, 64 * KIB, BASE, 2 * MIB, 32 * MIB]);
        // Without transparent hugepages only hugetlbfs has large ones.
        let none = Sizes { transparent: None, ..arm };
        assert_eq!(frames.size_at(&none, 600), Some(BASE));
        assert_eq!(frames.size_at(&none, 9000), Some(32 * MIB));
    }

    #[test]
    fn what_is_no_memory_has_no_size() {
        assert_eq!(x86().of_page(7, |_| Ok(None)).unwrap(), None);
        assert_eq!(x86().of_page(7, |_| Ok(Some(NO_PAGE))).unwrap(), None);
        // The end of memory within a gigabyte.
        let thp = Frames::of(&[(512, 512, THP)]);
        let cut = |frame| Ok((frame < 1024).then(|| thp.word(frame)));
        assert_eq!(x86().of_page(513, cut).unwrap(), Some(2 * MIB));
        let error = x86().of_page(7, |_| Err(io::Error::other("torn"))).unwrap_err();
        assert_eq!(error.to_string(), "torn");
    }

    #[test]
    fn sizes_are_those_of_the_host() {
        let root = std::env::temp_dir().join(format!("mrscope-sizes-{}", std::process::id()));
        let host = Host::at(&root);
        let none = Sizes::of(&host, BASE);
        assert!(none.only_base());
        assert_eq!(none, Sizes { base: BASE, transparent: None, huge: Vec::new() });
        let mm = root.join("sys/kernel/mm");
        for folder in
            ["hugepages-1048576kB", "hugepages-2048kB", "hugepages-4kB", "hugepages-3kB", "other"]
        {
            std::fs::create_dir_all(mm.join("hugepages").join(folder)).unwrap();
        }
        std::fs::create_dir_all(mm.join("transparent_hugepage")).unwrap();
        std::fs::write(mm.join("transparent_hugepage/hpage_pmd_size"), "2097152\n").unwrap();
        let told = Sizes::of(&host, BASE);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(told, x86());
    }
}
