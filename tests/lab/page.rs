//! A page of /metrics, fetched and taken apart without mrscope's own code.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Guard against a hang, where two guests share a machine; nothing is judged by it.
const HANG: Duration = Duration::from_mins(1);

/// Series by name, labels sorted: `name{a="b",c="d"}`.
#[derive(Debug, Clone)]
pub struct Page {
    pub text: String,
    series: BTreeMap<String, f64>,
}

/// Status, headers and body of a GET.
pub fn get(port: u16, path: &str) -> Result<(u16, String, String), String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|e| e.to_string())?;
    stream.set_read_timeout(Some(HANG)).map_err(|e| e.to_string())?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .map_err(|e| e.to_string())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(|e| e.to_string())?;
    let answer = String::from_utf8(answer).map_err(|e| e.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no end of the headers")?;
    let status = head.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    Ok((status.ok_or("no status")?, head.to_owned(), body.to_owned()))
}

impl Page {
    pub fn fetch(port: u16) -> Result<Self, String> {
        let (status, _, text) = get(port, "/metrics")?;
        if status != 200 {
            return Err(format!("/metrics answered {status}: {text}"));
        }
        let mut series = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').ok_or_else(|| format!("no value: {line}"))?;
            let value = value.parse().map_err(|_| format!("no number: {line}"))?;
            if series.insert(name.to_owned(), value).is_some() {
                return Err(format!("{name} is there twice"));
            }
        }
        Ok(Self { text, series })
    }

    /// The value of a series written as on the page; None if it is absent.
    pub fn value(&self, series: &str) -> Option<f64> {
        self.series.get(series).copied()
    }

    /// The value, or zero.
    pub fn or_zero(&self, series: &str) -> f64 {
        self.value(series).unwrap_or(0.0)
    }

    /// Series whose name starts so.
    pub fn starting(&self, prefix: &str) -> impl Iterator<Item = (&str, f64)> {
        let prefix = prefix.to_owned();
        self.series
            .iter()
            .filter(move |(name, _)| name.starts_with(&prefix))
            .map(|(name, value)| (name.as_str(), *value))
    }

    /// Everything that was lost, by series; empty when nothing was.
    pub fn lost(&self) -> Vec<(String, f64)> {
        self.starting("mrscope_lost_updates_total")
            .filter(|(_, count)| *count > 0.0)
            .map(|(name, count)| (name.to_owned(), count))
            .collect()
    }
}
