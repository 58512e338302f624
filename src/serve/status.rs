//! The page for people at `/`: what the newest reading found, in plain HTML. Every text of it is
//! somebody else's until it is escaped.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use axum::response::{Html, IntoResponse, Response};

use crate::collector::{CollectorStatus, FailedRegistration, Status};

/// Rows of failures.
const MOST_FAILURES: usize = 50;

const FAILURE_COLUMNS: [&str; 14] = [
    "time",
    "age",
    "pid",
    "process",
    "device",
    "errno",
    "cause",
    "kind",
    "length",
    "address",
    "memlock limit",
    "pinned",
    "CAP_IPC_LOCK",
    "what it means, and what helps",
];

/// Neither kept nor able to load or run anything.
pub fn page(telemetry_path: &str, status: Option<&Status>) -> Response {
    let headers = [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'"),
    ];
    (headers, Html(html(telemetry_path, status))).into_response()
}

/// The path is one of plain characters.
fn html(telemetry_path: &str, status: Option<&Status>) -> String {
    format!(
        "<!DOCTYPE html>\n\
         <html lang=\"en\"><head><meta charset=\"utf-8\"><title>mrscope</title>\n\
         <style>body {{ font-family: sans-serif }} table {{ border-collapse: collapse }}\n\
         th, td {{ border: 1px solid #999; padding: 2px 6px; text-align: left; vertical-align: top }}\n\
         </style></head><body>\n\
         <h1>mrscope {version}</h1>\n\
         <p>{about}.</p>\n\
         <ul>\n\
         <li><a href=\"{telemetry_path}\">{telemetry_path}</a>: the figures, for Prometheus</li>\n\
         <li><a href=\"/-/healthy\">/-/healthy</a>: whether it runs</li>\n\
         <li><a href=\"/-/ready\">/-/ready</a>: whether everything is attached that can be</li>\n\
         </ul>\n\
         {reading}</body></html>\n",
        version = env!("CARGO_PKG_VERSION"),
        about = env!("CARGO_PKG_DESCRIPTION"),
        reading = status.map_or_else(|| "<p>Nothing is read yet.</p>\n".to_owned(), reading),
    )
}

fn reading(status: &Status) -> String {
    let collectors = status.collectors.iter().map(collector_cells);
    format!(
        "<p>As read at {at} (UTC).</p>\n\
         <h2>Collectors</h2>\n{collectors}\
         <h2>Last failed registrations</h2>\n{failures}",
        at = rfc3339(status.at),
        collectors = table(&["collector", "state", "why"], collectors),
        failures = failures(&status.failures),
    )
}

fn failures(known: &Result<Vec<FailedRegistration>, String>) -> String {
    let failures = match known {
        Err(why) => return format!("<p>They are not known: {}.</p>\n", escaped(why)),
        Ok(none) if none.is_empty() => return "<p>None was seen.</p>\n".to_owned(),
        Ok(failures) => failures,
    };
    let shown = table(&FAILURE_COLUMNS, failures.iter().take(MOST_FAILURES).map(failure_cells));
    format!(
        "<p>The newest of each process, device and cause. What is registered counts against the limit \
         together with what is pinned, unless the process had CAP_IPC_LOCK on the host.</p>\n{shown}{}",
        match failures.len().checked_sub(MOST_FAILURES) {
            None | Some(0) => String::new(),
            Some(more) => format!("<p>{more} older ones are not shown.</p>\n"),
        }
    )
}

fn table<const N: usize>(head: &[&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = "<table>\n<tr>".to_owned();
    for column in head {
        let _ = write!(table, "<th>{column}</th>");
    }
    for row in rows {
        table.push_str("</tr>\n<tr>");
        for cell in row {
            let _ = write!(table, "<td>{}</td>", escaped(&cell));
        }
    }
    table + "</tr>\n</table>\n"
}

fn collector_cells(status: &CollectorStatus) -> [String; 3] {
    [status.collector.to_owned(), status.state.to_owned(), status.reason.clone()]
}

fn failure_cells(failure: &FailedRegistration) -> [String; FAILURE_COLUMNS.len()] {
    let (address, length) = failure.range.unzip();
    let unknown = || "not known".to_owned();
    [
        rfc3339(failure.at),
        age(failure.age),
        failure.pid.to_string(),
        failure.comm.clone(),
        failure.device.clone(),
        failure.errno.clone(),
        failure.cause.to_owned(),
        failure.kind.to_owned(),
        length.map_or_else(unknown, bytes),
        address.map_or_else(unknown, |address| format!("{address:#x}")),
        failure.memlock_bytes.map_or_else(|| "none".to_owned(), bytes),
        bytes(failure.pinned_bytes),
        if failure.memlock_exempt { "yes" } else { "no" }.to_owned(),
        format!("{}. {}", sentence(failure.meaning), failure.remedy),
    ]
}

/// With a capital letter.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect::<String>().replace('`', "")
    })
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// Exact, in the largest unit of which it is a multiple.
fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.into_iter().find(|(_, of)| bytes > 0 && bytes.is_multiple_of(*of)) {
        Some((unit, of)) => format!("{} {unit}", bytes / of),
        None => format!("{bytes} B"),
    }
}

/// In the two largest units.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// In UTC, to a millisecond.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let (second, ms) = (second % 60, since.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// The date so many days after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
