//! Figures as people read them.

const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Bytes of a GiB.
pub const GIB: f64 = (1_u64 << 30) as f64;

/// `64 MiB`, `1.5 GiB`: to a tenth, in the largest unit of which there is one.
pub fn bytes(bytes: u64) -> String {
    let Some((unit, of)) = UNITS.into_iter().find(|(_, of)| bytes >= *of) else {
        return format!("{bytes} bytes");
    };
    let count = bytes as f64 / of as f64;
    if bytes.is_multiple_of(of) { format!("{count} {unit}") } else { format!("{count:.1} {unit}") }
}

/// Nanoseconds as milliseconds.
pub fn ms(ns: f64) -> f64 {
    ns / 1e6
}

/// Nanoseconds as microseconds.
pub fn us(ns: f64) -> f64 {
    ns / 1e3
}

/// Bytes in a second as gigabits in a second, by which ports are named.
pub fn gigabits(bytes_per_second: f64) -> f64 {
    bytes_per_second * 8.0 / 1e9
}

/// Three digits that count, and never fewer than those before the point.
pub fn short(figure: f64) -> String {
    let digits = match figure.abs() {
        below if below < 10.0 => 2,
        below if below < 100.0 => 1,
        _ => 0,
    };
    format!("{figure:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        for (size, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (4096, "4 KiB"),
            (64 << 20, "64 MiB"),
            ((1 << 30) + (1 << 29), "1.5 GiB"),
            (1 << 40, "1024 GiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn figures_are_short_and_whole() {
        for (figure, text) in
            [(0.0, "0.00"), (1.234, "1.23"), (9.999, "10.00"), (23.45, "23.4"), (1234.5, "1234")]
        {
            assert_eq!(short(figure), text);
        }
    }

    #[test]
    fn a_port_of_2_5_gigabits_moves_312_500_000_bytes() {
        assert!((gigabits(312_500_000.0) - 2.5).abs() < 1e-12);
        assert!((ms(1.5e6) - 1.5).abs() < 1e-12 && (us(1500.0) - 1.5).abs() < 1e-12);
    }
}
