//! How values are written, in the file and on the command line alike: each notation is one function
//! from text to value. It never says where the text came from.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::{AttachMode, BenchOptions, PageBytes, ProcessLabel, TlbEvent};

use super::{LogFormat, LogLevel};

/// What should have been written instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct Expected(pub String);

/// From text to value. No notation takes the empty text.
pub type Notation<T> = fn(&str) -> Result<T, Expected>;

/// Units of Prometheus's durations in milliseconds, in the order in which they are written.
const UNITS_MS: [(&str, u64); 7] = [
    ("y", 365 * 86_400_000),
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// # Errors
/// None of the words of [`AttachMode`].
pub fn attach(text: &str) -> Result<AttachMode, Expected> {
    one_of(&AttachMode::ALL, AttachMode::word, text)
}

/// # Errors
/// None of the words of [`LogLevel`].
pub fn log_level(text: &str) -> Result<LogLevel, Expected> {
    one_of(&LogLevel::ALL, LogLevel::word, text)
}

/// # Errors
/// None of the words of [`LogFormat`].
pub fn log_format(text: &str) -> Result<LogFormat, Expected> {
    one_of(&LogFormat::ALL, LogFormat::word, text)
}

/// # Errors
/// None of the words of [`ProcessLabel`].
pub fn label(text: &str) -> Result<ProcessLabel, Expected> {
    one_of(&ProcessLabel::ALL, ProcessLabel::word, text)
}

/// # Errors
/// None of the words of [`TlbEvent`].
pub fn tlb_event(text: &str) -> Result<TlbEvent, Expected> {
    one_of(&TlbEvent::ALL, TlbEvent::word, text)
}

/// # Errors
/// None of the words of [`PageBytes`].
pub fn page_size(text: &str) -> Result<PageBytes, Expected> {
    one_of(&PageBytes::ALL, PageBytes::word, text)
}

/// A name of a device, in which * stands for any letters; "none" fits no device.
///
/// # Errors
/// It could be the name of none.
pub fn pattern(text: &str) -> Result<String, Expected> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.*".contains(c);
    if text.is_empty() || !text.chars().all(fits) {
        return Err(Expected(
            "a name of a device such as mlx5_0, in which * stands for any letters".to_owned(),
        ));
    }
    Ok(text.to_owned())
}

/// The path of a program, or "beside" for the one beside mrscope.
///
/// # Errors
/// A path that depends on where mrscope was started.
pub fn program(text: &str) -> Result<Option<PathBuf>, Expected> {
    if text == "beside" {
        return Ok(None);
    }
    let expected =
        |_| Expected("an absolute path, or beside (the program beside mrscope)".to_owned());
    absolute_path(text).map(Some).map_err(expected)
}

/// A duration that can be waited for.
///
/// # Errors
/// No duration, or one under a second or over a day.
pub fn interval(text: &str) -> Result<Duration, Expected> {
    let fits = |it: &Duration| (1..=86_400).contains(&it.as_secs());
    let expected = || Expected("a duration from 1s to 1d, such as 60s or 1m30s".to_owned());
    duration(text).ok().filter(fits).ok_or_else(expected)
}

/// A size of memory as `64MiB`, or in bytes: whole pages of 4 KiB.
///
/// # Errors
/// An unknown unit, a part of a page, or nothing, or more than the write probe takes.
pub fn memory_size(text: &str) -> Result<u64, Expected> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let units = [("", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let shift = units.iter().find(|(word, _)| *word == unit).map(|(_, shift)| *shift);
    let bytes = number.parse::<u64>().ok().zip(shift);
    let bytes = bytes.and_then(|(number, shift)| number.checked_mul(1 << shift));
    let sizes = BenchOptions::SIZE_STEP..=BenchOptions::SIZE_LIMIT;
    bytes.filter(|it| sizes.contains(it) && it.is_multiple_of(BenchOptions::SIZE_STEP)).ok_or_else(
        || Expected("a multiple of 4KiB from 4KiB to 1024GiB, such as 64MiB, or bytes".to_owned()),
    )
}

/// Labels with commas between them.
///
/// # Errors
/// An unknown one, or one that is there twice.
pub fn labels(text: &str) -> Result<Vec<ProcessLabel>, Expected> {
    let mut labels = Vec::new();
    for word in text.split(',') {
        let label = label(word).map_err(|_| {
            let all = ProcessLabel::ALL.map(ProcessLabel::word).join(", ");
            Expected(format!("labels with commas between them, each one of {all}"))
        })?;
        if labels.contains(&label) {
            return Err(Expected("each label once".to_owned()));
        }
        labels.push(label);
    }
    Ok(labels)
}

/// # Errors
/// A path that depends on where mrscope was started.
pub fn absolute_path(text: &str) -> Result<PathBuf, Expected> {
    if text.starts_with('/') {
        Ok(PathBuf::from(text))
    } else {
        Err(Expected("an absolute path".to_owned()))
    }
}

/// A duration as Prometheus writes it: `60s`, `1m30s`, `500ms`.
///
/// # Errors
/// A number without its unit, units out of order, or more than fits.
pub fn duration(text: &str) -> Result<Duration, Expected> {
    duration_ms(text).map(Duration::from_millis).ok_or_else(|| {
        Expected("a duration such as 60s, 1m30s or 500ms, with units y, w, d, h, m, s, ms".into())
    })
}

fn duration_ms(text: &str) -> Option<u64> {
    let mut total = 0_u64;
    let mut rest = text;
    let mut units = UNITS_MS.iter();
    while !rest.is_empty() || text.is_empty() {
        let (number, more) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let end = more.find(|c: char| c.is_ascii_digit()).unwrap_or(more.len());
        let (unit, more) = more.split_at(end);
        // What was passed over can't come any more: units go down, each once.
        let (_, ms) = units.find(|(word, _)| *word == unit)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*ms)?)?;
        rest = more;
    }
    Some(total)
}

/// # Errors
/// Not a whole number, or outside of the range.
pub fn whole(text: &str, range: &RangeInclusive<u64>) -> Result<u64, Expected> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| Expected(range_words(range)))
}

/// The range in words.
#[must_use]
pub fn range_words(range: &RangeInclusive<u64>) -> String {
    if *range.end() == u64::MAX {
        format!("a whole number from {}", range.start())
    } else {
        format!("a whole number from {} to {}", range.start(), range.end())
    }
}

fn one_of<T: Copy>(all: &[T], word: fn(T) -> &'static str, text: &str) -> Result<T, Expected> {
    all.iter().copied().find(|value| word(*value) == text).ok_or_else(|| {
        let words: Vec<_> = all.iter().copied().map(word).collect();
        Expected(format!("one of {}", words.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_as_prometheus_writes_it() {
        for (text, ms) in [
            ("60s", 60_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("0s", 0),
            ("1h1ms", 3_600_001),
            ("1y2w3d", (365 + 14 + 3) * 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in
            ["", "60", "s", "1.5s", "-1s", "30s1m", "1s1s", "1 s", "1µs", "600000000y", "1m30"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_of_memory_is_whole_pages() {
        for (text, bytes) in [
            ("4KiB", 4096),
            ("64MiB", 64 << 20),
            ("2GiB", 2 << 30),
            ("8192", 8192),
            ("1024GiB", 1 << 40),
        ] {
            assert_eq!(memory_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "MiB",
            "0",
            "1KiB",
            "4095",
            "5KiB",
            "64M",
            "64MB",
            "64 MiB",
            "1.5GiB",
            "-4KiB",
            "1025GiB",
            "18446744073709551615GiB",
        ] {
            assert!(memory_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn labels_are_known_and_each_is_there_once() {
        assert_eq!(labels("comm,slurm_job"), Ok(vec![ProcessLabel::Comm, ProcessLabel::SlurmJob]));
        // It changes with exec, and may be unknown of all.
        assert!(labels("pid,exe").is_err());
        for text in ["", ",", "pid,", "pid, comm", "pid,pid", "Pid"] {
            assert!(labels(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_whole_number_has_its_limits() {
        assert_eq!(whole("4096", &(1..=4096)), Ok(4096));
        assert_eq!(whole("4097", &(1..=4096)).unwrap_err().0, "a whole number from 1 to 4096");
        assert_eq!(whole("-1", &(0..=u64::MAX)).unwrap_err().0, "a whole number from 0");
    }
}
