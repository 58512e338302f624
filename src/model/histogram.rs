//! Histograms as the kernel side keeps them: counts per slot, not cumulated.

/// Counts per slot; slot i holds values of at most the i-th bound, the last all above.
pub type Slots = Vec<u64>;

/// Upper bounds of a process's registration times.
pub const PROCESS_BOUNDS_SECONDS: [f64; 6] = [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

/// Cumulated counts for the bounds 2^first, 2^(first+2), … 2^last, in `unit`s.
///
/// `slots[0]` counts values up to 2^first, `slots[i]` up to 2^(first+i), the last slot all above.
/// Only every second bound is shown. Returns (bound × unit, cumulated count) and the total.
#[must_use]
pub fn power_of_four_bounds(slots: &[u64], first_log2: u32, unit: f64) -> (Vec<(f64, u64)>, u64) {
    let mut total = 0;
    let mut shown = Vec::with_capacity(slots.len() / 2 + 1);
    for (index, count) in slots.iter().enumerate() {
        total += count;
        if index % 2 == 0 && index + 1 < slots.len() {
            let exponent = first_log2 as i32 + index as i32;
            shown.push((2f64.powi(exponent) * unit, total));
        }
    }
    (shown, total)
}

/// Cumulated counts at `bounds`, and the total; `slots` has one more entry than `bounds`.
#[must_use]
pub fn cumulate(slots: &[u64], bounds: &[f64]) -> (Vec<(f64, u64)>, u64) {
    let mut total = 0;
    let mut shown = Vec::with_capacity(bounds.len());
    for (index, count) in slots.iter().enumerate() {
        total += count;
        if let Some(bound) = bounds.get(index) {
            shown.push((*bound, total));
        }
    }
    (shown, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_bound_is_shown_and_none_is_lost() {
        let mut slots = vec![0; 28];
        slots[0] = 1; // up to 4.096 us
        slots[1] = 2; // up to 8.192 us: first shown at 16.384 us
        slots[26] = 4; // up to 2^38 ns
        slots[27] = 8; // above
        let (shown, total) = power_of_four_bounds(&slots, 12, 1e-9);
        assert_eq!(total, 15);
        assert_eq!(shown.len(), 14);
        assert_eq!(shown[0], (4096.0 * 1e-9, 1));
        assert_eq!(shown[1], (16384.0 * 1e-9, 3));
        assert_eq!(shown[13].1, 7);
        assert!((shown[13].0 - 274.877_906_944).abs() < 1e-9);
    }

    #[test]
    fn the_last_slot_has_no_bound() {
        let (shown, total) = cumulate(&[1, 0, 0, 0, 0, 2, 3], &PROCESS_BOUNDS_SECONDS);
        assert_eq!(total, 6);
        assert_eq!(shown[5], (10.0, 3));
        assert_eq!(shown.len(), 6);
    }
}
