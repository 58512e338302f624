//! A page as text. The only file that names the prometheus crate.

use prometheus::proto::{self, MetricType};
use prometheus::{Encoder, TextEncoder};

use super::catalogue::Kind;
use super::page::{Family, Page, Sample, Value};

/// What the text is, and in which version.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The encoder refused the page.
#[derive(Debug, thiserror::Error)]
#[error("the page can't be written as text: {0}")]
pub struct EncodeError(#[from] prometheus::Error);

/// The page in the text format 0.0.4.
///
/// # Errors
/// The encoder refuses it: a defect of mrscope.
pub fn text(page: &Page) -> Result<Vec<u8>, EncodeError> {
    let mut text = Vec::with_capacity(64 << 10);
    // One by one: all at once would take several times the memory of the text.
    for written in page.families().iter().filter(|family| !family.samples.is_empty()) {
        let begun = text.len();
        TextEncoder::new().encode(&[family(written)], &mut text)?;
        if written.samples.iter().any(|sample| sample.value == Value::Number(f64::INFINITY)) {
            let lines = text.split_off(begun);
            append_as_specified(&lines, &mut text);
        }
    }
    Ok(text)
}

/// The format spells infinity `+Inf`, the encoder `inf`. A value ends its line, and no label has a
/// bare line break.
fn append_as_specified(lines: &[u8], text: &mut Vec<u8>) {
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b" inf\n") {
            Some(series) => {
                text.extend_from_slice(series);
                text.extend_from_slice(b" +Inf\n");
            }
            None => text.extend_from_slice(line),
        }
    }
}

fn family(family: &Family) -> proto::MetricFamily {
    let mut encoded = proto::MetricFamily::default();
    encoded.set_name(family.metric.name.to_owned());
    encoded.set_help(family.metric.help.to_owned());
    encoded.set_field_type(match family.metric.kind {
        Kind::Counter => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::Histogram => MetricType::HISTOGRAM,
    });
    let samples = family.samples.iter().map(|s| sample(family, s)).collect();
    encoded.set_metric(samples);
    encoded
}

fn sample(family: &Family, sample: &Sample) -> proto::Metric {
    let mut encoded = proto::Metric::default();
    encoded.set_label(labels(family, sample));
    match &sample.value {
        Value::Number(value) if family.metric.kind == Kind::Counter => {
            let mut counter = proto::Counter::default();
            counter.set_value(*value);
            encoded.set_counter(counter);
        }
        Value::Number(value) => {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(*value);
            encoded.set_gauge(gauge);
        }
        Value::Histogram { buckets, count, sum } => {
            let mut histogram = proto::Histogram::default();
            histogram.set_sample_count(*count);
            histogram.set_sample_sum(*sum);
            histogram
                .set_bucket(buckets.iter().map(|(bound, count)| bucket(*bound, *count)).collect());
            encoded.set_histogram(histogram);
        }
    }
    encoded
}

/// The encoder takes labels as they come, and they must be sorted by name.
fn labels(family: &Family, sample: &Sample) -> Vec<proto::LabelPair> {
    let mut pairs: Vec<_> = family
        .names
        .iter()
        .zip(sample.labels.iter())
        .map(|(name, value)| {
            let mut pair = proto::LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value(value.to_owned());
            pair
        })
        .collect();
    pairs.sort_by(|a, b| a.name().cmp(b.name()));
    pairs
}

fn bucket(bound: f64, count: u64) -> proto::Bucket {
    let mut bucket = proto::Bucket::default();
    bucket.set_upper_bound(bound);
    bucket.set_cumulative_count(count);
    bucket
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::{mr, process};
    use super::*;
    use crate::model::ProcessLabel;

    #[test]
    fn a_page_is_text_with_escaped_labels_and_a_last_bucket() {
        let mut page = Page::new(&[ProcessLabel::Pid, ProcessLabel::Comm]);
        let who = ["7".to_owned(), "a\"b\nc\\d".to_owned()].into();
        page.process_number(&mr::PROCESS_ACTIVE, &who, None, 3.0).unwrap();
        page.histogram(&mr::PIN_SECONDS, &["rxe0", "host"], (vec![(0.5, 1)], 2), 1.25).unwrap();
        page.process_number(&process::MEMLOCK_LIMIT_BYTES, &who, None, f64::INFINITY).unwrap();
        let text = String::from_utf8(text(&page).unwrap()).unwrap();
        assert!(text.contains("_limit_bytes{comm=\"a\\\"b\\nc\\\\d\",pid=\"7\"} +Inf\n"), "{text}");
        assert!(text.contains("mrscope_process_mr_active{comm=\"a\\\"b\\nc\\\\d\",pid=\"7\"} 3\n"));
        assert!(text.contains("# TYPE mrscope_mr_pin_duration_seconds histogram\n"));
        let bucket = "mrscope_mr_pin_duration_seconds_bucket{device=\"rxe0\",kind=\"host\",le=";
        assert!(text.contains(&format!("{bucket}\"0.5\"}} 1\n")));
        assert!(text.contains(&format!("{bucket}\"+Inf\"}} 2\n")));
        assert!(
            text.contains(
                "mrscope_mr_pin_duration_seconds_sum{device=\"rxe0\",kind=\"host\"} 1.25\n"
            )
        );
    }
}
