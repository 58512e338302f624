//! The arguments: one table, by which they are read, written and explained.

use std::ops::RangeInclusive;

use super::options::{Pages, ProbeOptions, WORD_BYTES};

/// Longer than any device's name.
const NAME_BYTES: usize = 63;

const PORTS: RangeInclusive<u64> = 1..=254;
const INDEXES: RangeInclusive<u64> = 0..=255;
/// As many as a kernel can be built for.
const NODES: RangeInclusive<u64> = 0..=1023;
const MR_BYTES: RangeInclusive<u64> = 16..=1 << 40;
const MESSAGE_BYTES: RangeInclusive<u64> = 8..=1 << 30;
const COUNTS: RangeInclusive<u64> = 1..=1_000_000_000;
const DEPTHS: RangeInclusive<u64> = 1..=4096;
const LATENCY_COUNTS: RangeInclusive<u64> = 1..=100_000;
const TOTAL_BYTES: RangeInclusive<u64> = 8..=1 << 40;
const WRITE_MS: RangeInclusive<u64> = 1..=60_000;
const GUARD_MS: RangeInclusive<u64> = 1..=600_000;
const PIDS: RangeInclusive<u64> = 1..=i32::MAX as u64;

/// An argument that is named.
pub(super) struct Flag {
    pub name: &'static str,
    /// None: it stands alone.
    pub value: Option<&'static str>,
    pub about: &'static str,
    /// Takes a value, or says what should have been there.
    pub set: fn(&mut ProbeOptions, &str) -> Result<(), String>,
    /// The value as it is written; None: it is not said.
    pub say: fn(&ProbeOptions) -> Option<String>,
}

pub(super) const FLAGS: [Flag; 18] = [
    Flag {
        name: "--device",
        value: Some("NAME"),
        about: "the RDMA device, as in mlx5_0",
        set: |options, text| {
            let sane = !text.is_empty() && !text.contains('/') && !text.starts_with('.');
            if !sane || text.len() > NAME_BYTES {
                return Err("the name of a device".to_owned());
            }
            text.clone_into(&mut options.device);
            Ok(())
        },
        say: |options| Some(options.device.clone()),
    },
    Flag {
        name: "--port",
        value: Some("N"),
        about: "its port",
        set: |options, text| within(text, PORTS).map(|port| options.port = port as u8),
        say: |options| Some(options.port.to_string()),
    },
    Flag {
        name: "--gid-index",
        value: Some("N"),
        about: "the GID to write to; if not given, by LID on InfiniBand, else by the best GID",
        set: |options, text| {
            within(text, INDEXES).map(|index| options.gid_index = Some(index as u8))
        },
        say: |options| options.gid_index.map(|index| index.to_string()),
    },
    Flag {
        name: "--pages",
        value: Some("base|thp|2m|1g"),
        about: "what the memory lies on",
        set: |options, text| {
            let pages = Pages::ALL.into_iter().find(|pages| pages.word() == text);
            options.pages = pages.ok_or("base, thp, 2m or 1g")?;
            Ok(())
        },
        say: |options| Some(options.pages.word().to_owned()),
    },
    Flag {
        name: "--numa-node",
        value: Some("N"),
        about: "where it lies",
        set: |options, text| within(text, NODES).map(|node| options.numa_node = Some(node as u32)),
        say: |options| options.numa_node.map(|node| node.to_string()),
    },
    Flag {
        name: "--fallback",
        value: Some("base|none"),
        about: "what to take where such pages can't be had",
        set: |options, text| {
            options.fallback = match text {
                "base" => true,
                "none" => false,
                _ => return Err("base or none".to_owned()),
            };
            Ok(())
        },
        say: |options| Some(if options.fallback { "base" } else { "none" }.to_owned()),
    },
    Flag {
        name: "--untouched",
        value: None,
        about: "register before anything touched the memory (base and thp)",
        set: |options, _| {
            options.untouched = true;
            Ok(())
        },
        say: |options| options.untouched.then(String::new),
    },
    Flag {
        name: "--mr-bytes",
        value: Some("BYTES"),
        about: "the memory region: one half is written to the other",
        set: |options, text| {
            words(text, MR_BYTES, 2 * WORD_BYTES).map(|bytes| options.mr_bytes = bytes)
        },
        say: |options| Some(options.mr_bytes.to_string()),
    },
    Flag {
        name: "--message",
        value: Some("BYTES"),
        about: "of one write",
        set: |options, text| {
            words(text, MESSAGE_BYTES, WORD_BYTES).map(|bytes| options.message_bytes = bytes)
        },
        say: |options| Some(options.message_bytes.to_string()),
    },
    Flag {
        name: "--count",
        value: Some("N"),
        about: "of writes, to measure bandwidth",
        set: |options, text| within(text, COUNTS).map(|count| options.count = count),
        say: |options| Some(options.count.to_string()),
    },
    Flag {
        name: "--depth",
        value: Some("N"),
        about: "how many of them are outstanding",
        set: |options, text| within(text, DEPTHS).map(|depth| options.depth = depth as u32),
        say: |options| Some(options.depth.to_string()),
    },
    Flag {
        name: "--latency-message",
        value: Some("BYTES"),
        about: "of one write whose latency is measured",
        set: |options, text| {
            let bytes = words(text, MESSAGE_BYTES, WORD_BYTES);
            bytes.map(|bytes| options.latency_message_bytes = bytes)
        },
        say: |options| Some(options.latency_message_bytes.to_string()),
    },
    Flag {
        name: "--latency-count",
        value: Some("N"),
        about: "of those, one after the other",
        set: |options, text| {
            within(text, LATENCY_COUNTS).map(|count| options.latency_count = count as u32)
        },
        say: |options| Some(options.latency_count.to_string()),
    },
    Flag {
        name: "--max-bytes",
        value: Some("BYTES"),
        about: "of all writes together",
        set: |options, text| within(text, TOTAL_BYTES).map(|bytes| options.max_bytes = bytes),
        say: |options| Some(options.max_bytes.to_string()),
    },
    Flag {
        name: "--max-ms",
        value: Some("MS"),
        about: "after which no more writes are begun, nor latencies measured",
        set: |options, text| within(text, WRITE_MS).map(|ms| options.max_ms = ms),
        say: |options| Some(options.max_ms.to_string()),
    },
    Flag {
        name: "--tlb",
        value: None,
        about: "count the CPU's TLB misses in a random walk over the memory afterwards",
        set: |options, _| {
            options.tlb = true;
            Ok(())
        },
        say: |options| options.tlb.then(String::new),
    },
    Flag {
        name: "--guard-ms",
        value: Some("MS"),
        about: "after which it ends whatever it does",
        set: |options, text| within(text, GUARD_MS).map(|ms| options.guard_ms = ms),
        say: |options| Some(options.guard_ms.to_string()),
    },
    Flag {
        name: "--parent",
        value: Some("PID"),
        about: "who started it, and with whom it ends",
        set: |options, text| within(text, PIDS).map(|pid| options.parent = Some(pid as i32)),
        say: |options| options.parent.map(|pid| pid.to_string()),
    },
];

fn within(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
}

fn words(text: &str, range: RangeInclusive<u64>, of: u64) -> Result<u64, String> {
    let (start, end) = (*range.start(), *range.end());
    let bytes = within(text, range).ok().filter(|bytes| bytes.is_multiple_of(of));
    bytes.ok_or_else(|| format!("a multiple of {of} from {start} to {end}"))
}
