//! Which pages of a range are looked at, and how many each stands for.

use std::ops::Range;

/// Pages that are looked at in a range: so many, whatever its size.
pub const MOST_SAMPLES: u64 = 64;

/// Pages that are looked at, each with how many it stands for: together all of them. The first and
/// the last stand for themselves alone, as hugepages seldom begin where a buffer does; the others for
/// equal parts of what lies between, at places that vary from part to part, as pages that take turns
/// on the nodes would else be all of one. The same range has the same samples each time.
pub(super) fn spread(pages: u64) -> impl Iterator<Item = (u64, u64)> {
    let samples = pages.min(MOST_SAMPLES);
    let bound = move |sample: u64| match sample {
        _ if pages <= MOST_SAMPLES => sample,
        0 => 0,
        _ if sample == samples => pages,
        _ => 1 + part_of(pages - 2, sample - 1, samples - 2),
    };
    (0..samples).map(move |sample| {
        let (first, after) = (bound(sample), bound(sample + 1));
        (first + within(sample, after - first), after - first)
    })
}

/// One of so many pages, by the bits of the sample's number, mixed.
fn within(sample: u64, pages: u64) -> u64 {
    let bits = sample.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ bits >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    ((u128::from(bits ^ bits >> 32) * u128::from(pages)) >> 64) as u64
}

fn part_of(pages: u64, part: u64, parts: u64) -> u64 {
    (u128::from(pages) * u128::from(part) / u128::from(parts)) as u64
}

/// The whole pages that a range of memory lies on. What reaches beyond the address space is cut, with
/// its last page: their bytes are a number of 64 bits.
pub(super) fn whole_pages(address: u64, length: u64, page: u64) -> Range<u64> {
    if length == 0 {
        return 0..0;
    }
    let last = address.saturating_add(length - 1);
    address / page..(last / page + 1).min(u64::MAX / page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u64; 14] = [
        1,
        2,
        3,
        63,
        64,
        65,
        100,
        127,
        128,
        4097,
        1 << 18,
        63 * 128 + 1,
        (1 << 18) + 64,
        u64::MAX >> 12,
    ];

    #[test]
    fn shares_add_up_to_all_pages_and_each_sample_is_in_its_own() {
        for pages in SIZES {
            let samples: Vec<_> = spread(pages).collect();
            assert_eq!(samples.len() as u64, pages.min(64), "{pages}");
            let mut begin = 0;
            for (page, share) in &samples {
                assert!((begin..begin + share).contains(page), "{page} of {pages}");
                begin += share;
            }
            assert_eq!(begin, pages);
            assert_eq!((samples[0], samples[samples.len() - 1]), ((0, 1), (pages - 1, 1)));
            if let [_, inner @ .., _] = &samples[..] {
                let (all, parts) = (pages - 2, inner.len().max(1) as u64);
                let even = all / parts..=all.div_ceil(parts);
                assert!(inner.iter().all(|(_, share)| even.contains(share)), "{pages}");
            }
        }
        assert_eq!(spread(0).count(), 0);
    }

    #[test]
    fn up_to_64_pages_are_all_looked_at() {
        for pages in 1..=64 {
            assert!(spread(pages).eq((0..pages).map(|page| (page, 1))), "{pages}");
        }
    }

    /// Every second page, or every third, is seen in about its share: 14 of 64 off at most.
    #[test]
    fn pages_that_take_turns_are_not_all_of_one_turn() {
        for pages in SIZES.into_iter().filter(|pages| *pages > 256) {
            for nodes in 2..=8 {
                let of = |node| spread(pages).filter(|(page, _)| page % nodes == node).count();
                let counts: Vec<usize> = (0..nodes).map(of).collect();
                let far = counts.iter().any(|count| count.abs_diff(64 / nodes as usize) > 14);
                assert!(!far, "{pages} pages on {nodes} nodes: {counts:?}");
            }
        }
    }

    #[test]
    fn a_range_lies_on_whole_pages() {
        assert_eq!(whole_pages(4096, 4096, 4096), 1..2);
        assert_eq!(whole_pages(4095, 2, 4096), 0..2);
        assert_eq!(whole_pages(4097, 4096, 4096), 1..3);
        assert_eq!(whole_pages(65536, 1, 65536), 1..2);
        assert!(whole_pages(4096, 0, 4096).is_empty());
        let all = whole_pages(0, u64::MAX, 4096);
        assert_eq!(all, 0..(1 << 52) - 1);
        assert!(all.end.checked_mul(4096).is_some());
        assert!(whole_pages(u64::MAX, 7, 4096).is_empty());
    }
}
