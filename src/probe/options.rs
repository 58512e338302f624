//! What is to be measured: the arguments of `mrscope-write-probe`, as values.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::flags::FLAGS;

const MIB: u64 = 1 << 20;

/// Data is written and checked in words.
pub const WORD_BYTES: u64 = 8;

/// What the memory is to lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pages {
    /// The smallest that the kernel has.
    #[serde(rename = "base")]
    Base,
    /// Transparent hugepages.
    #[serde(rename = "thp")]
    Transparent,
    /// Hugepages of 2 MiB, from the pool.
    #[serde(rename = "2m")]
    Huge2M,
    /// Hugepages of 1 GiB, from the pool.
    #[serde(rename = "1g")]
    Huge1G,
}

impl Pages {
    pub const ALL: [Self; 4] = [Self::Base, Self::Transparent, Self::Huge2M, Self::Huge1G];

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Transparent => "thp",
            Self::Huge2M => "2m",
            Self::Huge1G => "1g",
        }
    }

    /// Whether they are taken from a pool.
    #[must_use]
    pub fn pooled(self) -> bool {
        matches!(self, Self::Huge2M | Self::Huge1G)
    }
}

/// What is to be measured, and within which bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeOptions {
    pub device: String,
    pub port: u8,
    /// None: the best one.
    pub gid_index: Option<u8>,
    pub pages: Pages,
    /// None: wherever the kernel puts it.
    pub numa_node: Option<u32>,
    /// Base pages where the others can't be had.
    pub fallback: bool,
    /// Registered before anything has touched it.
    pub untouched: bool,
    pub mr_bytes: u64,
    pub message_bytes: u64,
    pub count: u64,
    pub depth: u32,
    pub latency_message_bytes: u64,
    pub latency_count: u32,
    /// Of all that is written.
    pub max_bytes: u64,
    /// For the writes whose bandwidth is measured.
    pub max_ms: u64,
    /// Counts TLB misses of a walk.
    pub tlb: bool,
    /// For everything.
    pub guard_ms: u64,
    /// Who started it, and without whom it ends.
    pub parent: Option<i32>,
}

/// Why there is nothing to run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// A text was asked for.
    #[error("{0}")]
    Shown(String),
    /// Wrong usage: a line.
    #[error("{0}")]
    Usage(String),
}

impl ProbeOptions {
    #[must_use]
    pub fn new(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            port: 1,
            gid_index: None,
            pages: Pages::Base,
            numa_node: None,
            fallback: false,
            untouched: false,
            mr_bytes: 4 * MIB,
            message_bytes: 64 << 10,
            count: 256,
            depth: 16,
            latency_message_bytes: 8,
            latency_count: 100,
            max_bytes: 32 * MIB,
            max_ms: 100,
            tlb: false,
            guard_ms: 10_000,
            parent: None,
        }
    }

    /// Reads arguments, without the program's own name.
    ///
    /// # Errors
    /// They ask for a text, are wrong, or contradict each other.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, OptionsError> {
        let usage = |line: String| OptionsError::Usage(line);
        let mut options = Self::new("");
        let mut given = Vec::new();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--help" | "-h" => return Err(OptionsError::Shown(Self::help())),
                "--version" => {
                    let version = env!("CARGO_PKG_VERSION");
                    return Err(OptionsError::Shown(format!("mrscope-write-probe {version}\n")));
                }
                _ => {}
            }
            let flag = FLAGS.iter().find(|flag| flag.name == argument).ok_or_else(|| {
                usage(format!("argument {argument:?}: expected one that --help shows"))
            })?;
            if given.contains(&flag.name) {
                return Err(usage(format!("{}: expected at most once", flag.name)));
            }
            given.push(flag.name);
            let value = match flag.value {
                None => String::new(),
                Some(what) => arguments
                    .next()
                    .ok_or_else(|| usage(format!("{}: expected {what} after it", flag.name)))?,
            };
            (flag.set)(&mut options, &value)
                .map_err(|wanted| usage(format!("{} {value:?}: expected {wanted}", flag.name)))?;
        }
        if !given.contains(&"--device") {
            return Err(usage("expected --device NAME".to_owned()));
        }
        options.check().map_err(usage)?;
        Ok(options)
    }

    /// What it is started with so that it reads these options.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        for flag in &FLAGS {
            if let Some(value) = (flag.say)(self) {
                arguments.push(flag.name.to_owned());
                arguments.extend(flag.value.map(|_| value));
            }
        }
        arguments
    }

    /// Bytes of all writes: those that warm up, those of the bandwidth and of the latency.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        let messages = self.warm_up().saturating_add(self.count);
        let latency = u64::from(self.latency_count).saturating_mul(self.latency_message_bytes);
        messages.saturating_mul(self.message_bytes).saturating_add(latency)
    }

    /// Writes before any is measured.
    #[must_use]
    pub fn warm_up(&self) -> u64 {
        self.count.min(u64::from(self.depth))
    }

    fn check(&self) -> Result<(), String> {
        let largest = self.message_bytes.max(self.latency_message_bytes);
        if largest > self.mr_bytes / 2 {
            return Err(format!(
                "--mr-bytes {}: expected room for two messages of {largest} bytes",
                self.mr_bytes
            ));
        }
        if self.written_bytes() > self.max_bytes {
            return Err(format!(
                "--max-bytes {}: expected at least the {} bytes of all writes",
                self.max_bytes,
                self.written_bytes()
            ));
        }
        if self.untouched && self.pages.pooled() {
            return Err("--untouched: expected --pages base or thp with it".to_owned());
        }
        if self.fallback && self.pages == Pages::Base {
            return Err("--fallback base: expected other --pages with it".to_owned());
        }
        Ok(())
    }

    fn help() -> String {
        let mut text = "Measures RDMA writes of one port to itself, in memory of chosen pages, and \
                        prints one JSON object.\n\nmrscope-write-probe --device NAME [OPTION]...\n\n"
            .to_owned();
        let defaults = Self::new("");
        for flag in &FLAGS {
            let named = [flag.name, flag.value.unwrap_or_default()].join(" ");
            let default = (flag.say)(&defaults).filter(|value| !value.is_empty());
            let default = default.map(|value| format!(" ({value})")).unwrap_or_default();
            // Writing into a String does not fail.
            let _ = writeln!(text, "  {named:<24} {}{default}", flag.about);
        }
        text.push_str("\nExit status: 0 with a report, 1 with a failure, 2 for wrong usage.\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(line: &str) -> Result<ProbeOptions, String> {
        let words = line.split_whitespace().map(str::to_owned);
        ProbeOptions::parse(words).map_err(|error| error.to_string())
    }

    #[test]
    fn a_device_is_enough() {
        assert_eq!(parse("--device rxe0"), Ok(ProbeOptions::new("rxe0")));
    }

    #[test]
    fn every_argument_is_read() {
        let line = "--device mlx5_0 --port 2 --gid-index 3 --pages thp --numa-node 1 \
                    --fallback base --untouched --mr-bytes 8192 --message 4096 --count 10 \
                    --depth 4 --latency-message 16 --latency-count 7 --max-bytes 100000 \
                    --max-ms 50 --tlb --guard-ms 2000 --parent 77";
        let expected = ProbeOptions {
            device: "mlx5_0".to_owned(),
            port: 2,
            gid_index: Some(3),
            pages: Pages::Transparent,
            numa_node: Some(1),
            fallback: true,
            untouched: true,
            mr_bytes: 8192,
            message_bytes: 4096,
            count: 10,
            depth: 4,
            latency_message_bytes: 16,
            latency_count: 7,
            max_bytes: 100_000,
            max_ms: 50,
            tlb: true,
            guard_ms: 2000,
            parent: Some(77),
        };
        assert_eq!(parse(line), Ok(expected.clone()));
        assert_eq!(
            expected.arguments().join(" "),
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        );
    }

    #[test]
    fn what_is_wrong_is_said_in_a_line() {
        for (line, says) in [
            ("", "expected --device"),
            ("--device", "expected NAME after it"),
            ("--device ../x", "the name of a device"),
            ("--device .", "the name of a device"),
            ("--device a --device b", "at most once"),
            ("rxe0", "expected one that --help shows"),
            ("--device a --port 0", "from 1 to 254"),
            ("--device a --port x", "from 1 to 254"),
            ("--device a --gid-index 256", "from 0 to 255"),
            ("--device a --pages 4k", "base, thp, 2m or 1g"),
            ("--device a --depth 0", "from 1 to 4096"),
            ("--device a --message 12", "a multiple of 8"),
            ("--device a --mr-bytes 24", "a multiple of 16"),
            ("--device a --mr-bytes 131056", "room for two messages of 65536 bytes"),
            ("--device a --count 497", "at least the 33620768 bytes of all writes"),
            ("--device a --untouched --pages 2m", "base or thp"),
            ("--device a --fallback base", "other --pages"),
            ("--device a --fallback thp --pages 2m", "base or none"),
            ("--device a --parent 0", "from 1 to"),
            ("--device a --max-ms -1", "from 1 to 60000"),
            ("--device a --count 18446744073709551616", "from 1 to 1000000000"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
            assert!(!error.contains('\n'), "{line}: {error}");
        }
    }

    #[test]
    fn the_bytes_that_are_bounded_are_those_of_all_writes() {
        let options =
            parse("--device a --count 10 --depth 4 --message 64 --latency-count 3").unwrap();
        assert_eq!(options.warm_up(), 4);
        assert_eq!(options.written_bytes(), 14 * 64 + 3 * 8);
        let one = parse("--device a --count 1 --depth 4").unwrap();
        assert_eq!(one.warm_up(), 1);
    }

    #[test]
    fn help_and_version_are_texts() {
        let shown = |word: &str| match ProbeOptions::parse([word.to_owned()]) {
            Err(OptionsError::Shown(text)) => text,
            other => panic!("{word}: {other:?}"),
        };
        let help = shown("--help");
        assert!(FLAGS.iter().all(|flag| help.contains(flag.name)), "{help}");
        assert!(help.contains("--depth N                how many of them are outstanding (16)"));
        assert!(shown("--version").ends_with(concat!(env!("CARGO_PKG_VERSION"), "\n")));
    }

    proptest! {
        #[test]
        fn options_are_read_as_they_were_written(
            device in "[a-z][a-z0-9_]{0,20}",
            port in 1_u8..=254,
            gid_index in proptest::option::of(0_u8..=255),
            pages in 0_usize..4,
            numa_node in proptest::option::of(0_u32..=1023),
            (fallback, untouched, tlb) in any::<(bool, bool, bool)>(),
            words in 1_u64..10_000,
            count in 1_u64..100_000,
            depth in 1_u32..=4096,
            latency_count in 1_u32..=100_000,
            parent in proptest::option::of(1_i32..=i32::MAX),
        ) {
            let pages = Pages::ALL[pages];
            let options = ProbeOptions {
                port,
                gid_index,
                pages,
                numa_node,
                fallback: fallback && pages != Pages::Base,
                untouched: untouched && !pages.pooled(),
                mr_bytes: words * 16,
                message_bytes: words * 8,
                count,
                depth,
                latency_count,
                max_bytes: 1 << 40,
                tlb,
                parent,
                ..ProbeOptions::new(&device)
            };
            prop_assert_eq!(ProbeOptions::parse(options.arguments()), Ok(options));
        }
    }
}
