//! The form of the log: one line an event, on stderr, never in colour. What is logged is not its
//! concern. There are no spans in mrscope, so none are written.

use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Log, LogFormat, LogLevel};

/// Begins to log. Once for each process.
pub fn to_stderr(log: Log) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(match log.level {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warn => Level::WARN,
            LogLevel::Info => Level::INFO,
            LogLevel::Debug => Level::DEBUG,
        })
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    match log.format {
        LogFormat::Logfmt => lines.event_format(Logfmt).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

/// `ts=2026-01-02T03:04:05.678901Z level=info msg="..."`, as exporters write it.
struct Logfmt;

impl<S, N> FormatEvent<S, N> for Logfmt
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        line.write_str("ts=")?;
        SystemTime.format_time(&mut line)?;
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        write!(line, " level={level}")?;
        let mut pairs = Pairs { line, written: Ok(()) };
        event.record(&mut pairs);
        pairs.written?;
        pairs.line.write_char('\n')
    }
}

/// An event's fields, one after another.
struct Pairs<'a> {
    line: Writer<'a>,
    written: fmt::Result,
}

impl Pairs<'_> {
    fn pair(&mut self, field: &Field, value: &str) {
        let key = if field.name() == "message" { "msg" } else { field.name() };
        self.written = self
            .written
            .and_then(|()| write!(self.line, " {key}="))
            .and_then(|()| write_value(&mut self.line, value));
    }
}

impl Visit for Pairs<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.pair(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.pair(field, &format!("{value:?}"));
    }
}

/// Bare where that is clear, else as a string of JSON, which readers of logfmt understand.
fn write_value(line: &mut impl Write, value: &str) -> fmt::Result {
    let bare = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '=' | '"' | '\\');
    if !value.is_empty() && value.chars().all(bare) {
        return line.write_str(value);
    }
    line.write_char('"')?;
    for c in value.chars() {
        match c {
            '"' | '\\' => write!(line, "\\{c}")?,
            '\n' => line.write_str("\\n")?,
            '\r' => line.write_str("\\r")?,
            '\t' => line.write_str("\\t")?,
            // Controls end at U+009F: four digits hold them.
            c if c.is_control() => write!(line, "\\u{:04x}", u32::from(c))?,
            c => line.write_char(c)?,
        }
    }
    line.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: &str) -> String {
        let mut line = String::new();
        write_value(&mut line, value).unwrap();
        line
    }

    #[test]
    fn a_value_is_bare_or_a_string_of_json() {
        for (value, text) in [
            ("ready", "ready"),
            ("http://[::1]:1/metrics", "http://[::1]:1/metrics"),
            ("can't", "can't"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("a=b", "\"a=b\""),
        ] {
            assert_eq!(written(value), text);
        }
        for value in ["a \"b\" \\", "a\nb\r\tc", "\u{0}\u{1b}[31m\u{7f}\u{9f}", "dé jà 🦀 can't"]
        {
            let line = written(value);
            assert_eq!(serde_json::from_str::<String>(&line).unwrap(), value, "{line}");
            assert!(!line.contains(|c: char| c.is_control()), "{line}");
        }
    }
}
