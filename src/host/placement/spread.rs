//! Which pages of a range are looked at, and how many each stands for.

use std::ops::Range;

/// Pages that are looked at in a range: so many, whatever its size.
pub const MOST_SAMPLES: u64 = 64;

/// One page out of each of [`MOST_SAMPLES`] equal parts, with the pages of its part: all of them
/// together are all pages. The first and the last page are among them; in between the place in the
/// part varies, as pages that take turns on the nodes would else be all of one. The same range has
/// the same samples each time.
pub(super) fn spread(pages: u64) -> impl Iterator<Item = (u64, u64)> {
    let parts = pages.min(MOST_SAMPLES);
    let bound = move |part: u64| share_of(pages, part, parts);
    (0..parts).map(move |part| {
        let (first, after) = (bound(part), bound(part + 1));
        let page = match part {
            0 => 0,
            _ if after == pages => pages - 1,
            _ => first + within(part, after - first),
        };
        (page, after - first)
    })
}

/// The golden ratio's multiples, whose fractions fall evenly and without a period.
fn within(part: u64, pages: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    ((u128::from(part.wrapping_mul(GOLDEN)) * u128::from(pages)) >> 64) as u64
}

fn share_of(pages: u64, part: u64, parts: u64) -> u64 {
    (u128::from(pages) * u128::from(part) / u128::from(parts)) as u64
}

/// The whole pages that a range of memory lies on. What reaches beyond the address space is cut.
pub(super) fn whole_pages(address: u64, length: u64, page: u64) -> Range<u64> {
    if length == 0 {
        return 0..0;
    }
    let last = address.saturating_add(length - 1);
    address / page..last / page + 1
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
            assert_eq!((samples[0].0, samples[samples.len() - 1].0), (0, pages - 1));
            let (least, most) = (pages / samples.len() as u64, pages.div_ceil(64));
            assert!(samples.iter().all(|(_, share)| (least..=most).contains(share)), "{pages}");
        }
        assert_eq!(spread(0).count(), 0);
    }

    #[test]
    fn up_to_64_pages_are_all_looked_at() {
        for pages in 1..=64 {
            assert!(spread(pages).eq((0..pages).map(|page| (page, 1))), "{pages}");
        }
    }

    /// Every second page, or every third, is seen in about its share.
    #[test]
    fn pages_that_take_turns_are_not_all_of_one_turn() {
        for pages in SIZES.into_iter().filter(|pages| *pages > 256) {
            for nodes in 2..=8 {
                let of = |node| spread(pages).filter(|(page, _)| page % nodes == node).count();
                let counts: Vec<usize> = (0..nodes).map(of).collect();
                let even = 64 / nodes as usize;
                let far = counts.iter().any(|count| count.abs_diff(even) > even / 2 + 3);
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
        assert_eq!(whole_pages(8192, u64::MAX, 4096), 2..1 << 52);
    }
}
