//! The answer: one JSON object, with every key. What is missing, unknown or absurd makes it no
//! answer, as it is about to become a metric.

use serde::{Deserialize, Deserializer, Serialize};

use super::Pages;

/// No answer is longer.
pub const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Above this a whole number is no longer exact as a double, which a sample is.
const MAX_WHOLE: u64 = 1 << 53;

/// How far the bandwidth that is told may be from that of its bytes and time.
const ROUNDING: f64 = 1e-9;

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Answer {
    Ok(Report),
    Error(Failure),
}

/// What a run measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub device: String,
    pub port: u8,
    /// None where the port is addressed by its LID.
    #[serde(deserialize_with = "required")]
    pub gid_index: Option<u8>,
    #[serde(deserialize_with = "required")]
    pub gid: Option<String>,
    /// The kernel's words, as in `RoCE v2`.
    #[serde(deserialize_with = "required")]
    pub gid_type: Option<String>,
    /// Of the path: what a packet carries at most.
    #[serde(deserialize_with = "whole")]
    pub mtu_bytes: u64,
    /// 0 where the device does not tell.
    #[serde(deserialize_with = "whole")]
    pub port_rate_bytes_per_second: u64,
    /// MRs, and bytes of one, that the device says it can have; None where it does not tell.
    #[serde(deserialize_with = "required")]
    pub max_mr: Option<u64>,
    #[serde(deserialize_with = "required")]
    pub max_mr_size: Option<u64>,
    pub pages: Pages,
    /// What the kernel says that the memory lies on.
    #[serde(deserialize_with = "whole")]
    pub page_size_bytes: u64,
    /// Why the pages are base pages although others were asked for.
    #[serde(deserialize_with = "required")]
    pub fallback: Option<String>,
    /// None where pages lie on several nodes, or the kernel does not tell.
    #[serde(deserialize_with = "required")]
    pub numa_node: Option<u32>,
    #[serde(deserialize_with = "whole")]
    pub mr_bytes: u64,
    /// Whether the memory had its pages before it was registered.
    pub touched: bool,
    #[serde(deserialize_with = "whole")]
    pub registration_ns: u64,
    #[serde(deserialize_with = "whole")]
    pub deregistration_ns: u64,
    #[serde(deserialize_with = "whole")]
    pub message_bytes: u64,
    pub depth: u32,
    #[serde(deserialize_with = "whole")]
    pub writes: u64,
    #[serde(deserialize_with = "whole")]
    pub bytes: u64,
    /// From before the first of them was posted until the last was seen to be complete.
    #[serde(deserialize_with = "whole")]
    pub elapsed_ns: u64,
    pub bandwidth_bytes_per_second: f64,
    #[serde(deserialize_with = "whole")]
    pub latency_message_bytes: u64,
    #[serde(deserialize_with = "whole")]
    pub latency_p50_ns: u64,
    #[serde(deserialize_with = "whole")]
    pub latency_p99_ns: u64,
    #[serde(deserialize_with = "whole")]
    pub latency_samples: u64,
    /// Of the CPU, not of the NIC; None where they were not counted.
    #[serde(deserialize_with = "whole_if_any")]
    pub tlb_accesses: Option<u64>,
    #[serde(deserialize_with = "whole_if_any")]
    pub tlb_misses: Option<u64>,
    /// Why they were not counted although that was asked for.
    #[serde(deserialize_with = "required")]
    pub tlb_unavailable: Option<String>,
}

/// Why there is nothing to report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    pub device: String,
    pub port: u8,
    /// The call that failed.
    pub verb: String,
    #[serde(deserialize_with = "required")]
    pub errno: Option<i32>,
    #[serde(deserialize_with = "required")]
    pub errno_name: Option<String>,
    pub reason: Reason,
    /// What exactly was met.
    pub detail: String,
    /// What to do about it: a sentence.
    pub remedy: String,
}

/// What a failure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    NoDevice,
    Permission,
    PortDown,
    NoGid,
    NoHugepages,
    CgroupLimit,
    Memlock,
    NoMemory,
    /// A call or a write failed for a reason of the device's own.
    Device,
    DataMismatch,
    Timeout,
    /// The device went away.
    Gone,
    Invalid,
}

impl Reason {
    pub const ALL: [Self; 13] = [
        Self::NoDevice,
        Self::Permission,
        Self::PortDown,
        Self::NoGid,
        Self::NoHugepages,
        Self::CgroupLimit,
        Self::Memlock,
        Self::NoMemory,
        Self::Device,
        Self::DataMismatch,
        Self::Timeout,
        Self::Gone,
        Self::Invalid,
    ];

    /// The word for it, as in the JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::NoDevice => "no_device",
            Self::Permission => "permission",
            Self::PortDown => "port_down",
            Self::NoGid => "no_gid",
            Self::NoHugepages => "no_hugepages",
            Self::CgroupLimit => "cgroup_limit",
            Self::Memlock => "memlock",
            Self::NoMemory => "no_memory",
            Self::Device => "device",
            Self::DataMismatch => "data_mismatch",
            Self::Timeout => "timeout",
            Self::Gone => "gone",
            Self::Invalid => "invalid",
        }
    }
}

/// A text that is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("more than {MAX_ANSWER_BYTES} bytes")]
    TooLong,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Absurd(&'static str),
}

impl Answer {
    /// Reads what the probe has written.
    ///
    /// # Errors
    /// It is not exactly one answer, or one whose figures contradict each other.
    pub fn parse(text: &[u8]) -> Result<Self, AnswerError> {
        if text.len() > MAX_ANSWER_BYTES {
            return Err(AnswerError::TooLong);
        }
        let answer = serde_json::from_slice(text)?;
        match &answer {
            Self::Ok(report) => report.agrees()?,
            Self::Error(failure) => failure.agrees()?,
        }
        Ok(answer)
    }

    /// One line, without its end.
    ///
    /// # Errors
    /// A figure is none that JSON has.
    pub fn to_json(&self) -> Result<String, AnswerError> {
        Ok(serde_json::to_string(self)?)
    }
}

impl Report {
    /// Bytes in a second.
    #[must_use]
    pub fn bandwidth(bytes: u64, elapsed_ns: u64) -> f64 {
        bytes as f64 * 1e9 / elapsed_ns as f64
    }

    fn agrees(&self) -> Result<(), AnswerError> {
        let expected = Self::bandwidth(self.bytes, self.elapsed_ns);
        let off = (self.bandwidth_bytes_per_second - expected).abs();
        let faults = [
            (self.device.is_empty(), "it names no device"),
            (self.port == 0, "ports are counted from 1"),
            (self.gid_index.is_some() != self.gid.is_some(), "a GID has an index"),
            (self.gid_type.is_some() && self.gid.is_none(), "a type of no GID"),
            (self.mtu_bytes == 0, "an MTU of 0"),
            (self.max_mr.is_some() != self.max_mr_size.is_some(), "one limit without the other"),
            (!self.page_size_bytes.is_power_of_two(), "the size of a page is no power of 2"),
            (self.mr_bytes / 2 < self.message_bytes, "half of the MR holds no message"),
            (self.depth == 0, "nothing was outstanding"),
            (self.writes == 0 || self.message_bytes == 0, "nothing was written"),
            (
                self.writes.checked_mul(self.message_bytes) != Some(self.bytes),
                "the bytes are not those of the writes",
            ),
            (self.elapsed_ns == 0, "it took no time"),
            // Written so that NaN is refused.
            (
                !(expected.is_finite() && off <= expected * ROUNDING),
                "the bandwidth is not that of its bytes and time",
            ),
            (self.latency_samples == 0, "no latency was measured"),
            (self.latency_p50_ns > self.latency_p99_ns, "the median is above the 99th percentile"),
            (
                self.tlb_accesses.is_some() != self.tlb_misses.is_some(),
                "TLB accesses and misses are counted together",
            ),
            (
                self.tlb_misses.is_some() && self.tlb_unavailable.is_some(),
                "TLB misses were counted, and could not be",
            ),
        ];
        match faults.iter().find(|(fault, _)| *fault) {
            Some((_, what)) => Err(AnswerError::Absurd(what)),
            None => Ok(()),
        }
    }
}

impl Failure {
    fn agrees(&self) -> Result<(), AnswerError> {
        if self.verb.is_empty() || self.remedy.is_empty() {
            return Err(AnswerError::Absurd("a failure has a verb and a remedy"));
        }
        if self.errno.is_some() != self.errno_name.is_some() {
            return Err(AnswerError::Absurd("an errno has a name"));
        }
        if self.errno.is_some_and(|errno| errno <= 0) {
            return Err(AnswerError::Absurd("an errno is above 0"));
        }
        Ok(())
    }
}

/// A key that may be null, and must be there: serde lets an Option be missing only by itself.
fn required<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(from)
}

fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    exact(u64::deserialize(from)?)
}

fn whole_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Option::deserialize(from)?.map(exact).transpose()
}

fn exact<E: serde::de::Error>(value: u64) -> Result<u64, E> {
    if value > MAX_WHOLE {
        return Err(E::custom(format_args!("{value} is above 2^53")));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn report() -> Value {
        json!({
            "result": "ok", "device": "rxe0", "port": 1, "gid_index": 1,
            "gid": "0000:0000:0000:0000:0000:ffff:0a09:0001", "gid_type": "RoCE v2",
            "mtu_bytes": 4096, "port_rate_bytes_per_second": 312_500_000,
            "max_mr": 524_287, "max_mr_size": u64::MAX,
            "pages": "2m", "page_size_bytes": 2_097_152, "fallback": null, "numa_node": 0,
            "mr_bytes": 4_194_304, "touched": true,
            "registration_ns": 90_000, "deregistration_ns": 20_000,
            "message_bytes": 65536, "depth": 16, "writes": 3, "bytes": 196_608,
            "elapsed_ns": 1000, "bandwidth_bytes_per_second": 196_608_000_000.0,
            "latency_message_bytes": 8, "latency_p50_ns": 10, "latency_p99_ns": 20,
            "latency_samples": 100, "tlb_accesses": null, "tlb_misses": null,
            "tlb_unavailable": null,
        })
    }

    fn failure() -> Value {
        json!({
            "result": "error", "device": "rxe0", "port": 1, "verb": "ibv_reg_mr",
            "errno": 12, "errno_name": "ENOMEM", "reason": "memlock",
            "detail": "4194304 bytes", "remedy": "Raise it.",
        })
    }

    fn parse(value: &Value) -> Result<Answer, String> {
        Answer::parse(value.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    fn with(base: &Value, key: &str, value: Value) -> Value {
        let mut changed = base.clone();
        changed[key] = value;
        changed
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        for value in [report(), failure()] {
            let answer = parse(&value).unwrap();
            let again: Value = serde_json::from_str(&answer.to_json().unwrap()).unwrap();
            assert_eq!(again, value);
        }
        let by_lid = with(&with(&report(), "gid", Value::Null), "gid_index", Value::Null);
        assert!(parse(&with(&by_lid, "gid_type", Value::Null)).is_ok());
        let silent = with(&with(&report(), "max_mr", Value::Null), "max_mr_size", Value::Null);
        assert!(parse(&silent).is_ok());
        let counted = with(&with(&report(), "tlb_accesses", json!(5)), "tlb_misses", json!(0));
        assert!(parse(&counted).is_ok());
        let why = json!("no such event");
        assert!(parse(&with(&report(), "tlb_unavailable", why.clone())).is_ok());
        assert!(parse(&with(&counted, "tlb_unavailable", why)).is_err());
        let unnamed = with(&with(&failure(), "errno", Value::Null), "errno_name", Value::Null);
        assert!(parse(&unnamed).is_ok());
    }

    #[test]
    fn a_key_that_is_missing_unknown_or_there_twice_is_refused() {
        for value in [report(), failure()] {
            for key in value.as_object().unwrap().keys() {
                let mut less = value.clone();
                less.as_object_mut().unwrap().remove(key);
                assert!(parse(&less).is_err(), "without {key}");
            }
            assert!(parse(&with(&value, "surplus", json!(1))).is_err());
            let text = value.to_string();
            for again in ["\"port\":1", "\"result\":\"ok\""] {
                let twice = format!("{{{again},{}", &text[1..]);
                assert!(Answer::parse(twice.as_bytes()).is_err(), "{twice}");
            }
        }
    }

    #[test]
    fn figures_that_can_t_be_are_refused() {
        let base = report();
        for key in [
            "mtu_bytes",
            "port_rate_bytes_per_second",
            "page_size_bytes",
            "mr_bytes",
            "registration_ns",
            "deregistration_ns",
            "elapsed_ns",
            "bytes",
            "writes",
            "latency_p99_ns",
            "latency_samples",
            "tlb_misses",
        ] {
            for wrong in [json!(-1), json!(1.5), json!((1_u64 << 53) + 1), json!("1"), json!(true)]
            {
                let changed = with(&base, key, wrong.clone());
                assert!(parse(&changed).is_err(), "{key} {wrong}");
            }
        }
        for (key, wrong) in [
            ("port", json!(0)),
            ("port", json!(256)),
            ("depth", json!(0)),
            ("writes", json!(0)),
            ("writes", json!(4)),
            ("bytes", json!(196_609)),
            ("elapsed_ns", json!(0)),
            ("elapsed_ns", json!(1001)),
            ("bandwidth_bytes_per_second", json!(-1.0)),
            ("bandwidth_bytes_per_second", json!(196_608_000_400.0)),
            ("bandwidth_bytes_per_second", Value::Null),
            ("mtu_bytes", json!(0)),
            ("max_mr", Value::Null),
            ("max_mr", json!(-1)),
            ("max_mr_size", json!(1.5)),
            ("page_size_bytes", json!(3000)),
            ("mr_bytes", json!(131_071)),
            ("latency_p50_ns", json!(21)),
            ("latency_samples", json!(0)),
            ("gid", Value::Null),
            ("gid_index", Value::Null),
            ("tlb_accesses", json!(1)),
            ("tlb_unavailable", json!(1)),
            ("pages", json!("4m")),
            ("device", json!("")),
            ("result", json!("fine")),
        ] {
            let changed = with(&base, key, wrong.clone());
            assert!(parse(&changed).is_err(), "{key} {wrong}");
        }
        for (key, wrong) in [
            ("errno", Value::Null),
            ("errno", json!(0)),
            ("reason", json!("bad luck")),
            ("verb", json!("")),
            ("remedy", json!("")),
        ] {
            assert!(parse(&with(&failure(), key, wrong.clone())).is_err(), "{key} {wrong}");
        }
    }

    #[test]
    fn what_is_not_one_object_is_refused() {
        let text = report().to_string();
        for wrong in ["", "null", "[]", &text[..text.len() - 1], &format!("{text}{text}")] {
            assert!(Answer::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        for number in ["NaN", "Infinity", "1e999"] {
            let wrong = text.replace("196608000000.0", number);
            assert_ne!(wrong, text);
            assert!(Answer::parse(wrong.as_bytes()).is_err(), "{number}");
        }
        assert!(Answer::parse(format!("{text}\n").as_bytes()).is_ok());
    }

    #[test]
    fn a_text_that_is_too_long_is_refused_unread() {
        let mut text = report().to_string();
        text.push_str(&" ".repeat(MAX_ANSWER_BYTES - text.len()));
        assert!(Answer::parse(text.as_bytes()).is_ok());
        text.push(' ');
        assert!(matches!(Answer::parse(text.as_bytes()), Err(AnswerError::TooLong)));
    }

    #[test]
    fn a_reason_is_the_word_of_the_json() {
        for reason in Reason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), json!(reason.word()));
        }
    }
}
