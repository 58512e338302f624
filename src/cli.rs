//! The command line: flags as the exporters of this field name them.

use std::net::SocketAddr;

use clap::Parser;
use clap::error::ErrorKind;

use crate::model::{AttachMode, EbpfOptions};

/// Not registered with anybody; 9100 to 9999 are taken.
const DEFAULT_PORT: u16 = 10042;

/// Prometheus exporter for RDMA memory: registration latency and pinned bytes of every process.
#[derive(Debug, Parser)]
#[command(name = "mrscope", version, about)]
pub struct Cli {
    /// Address to serve on: HOST:PORT, [IPv6]:PORT, or :PORT for all addresses
    #[arg(
        long = "web.listen-address",
        value_name = "ADDRESS",
        default_value_t = default_address(),
        value_parser = parse_address,
    )]
    pub listen_address: ListenAddress,

    /// Least severity that is logged
    #[arg(long = "log.level", value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,

    /// How functions of kernel modules are watched; fentry is cheaper, but holds the modules
    #[arg(long = "ebpf.attach", value_name = "MODE", default_value = "auto", value_parser = parse_mode)]
    pub attach: AttachMode,

    /// Concurrent calls that a return probe can follow, 1 to 4096
    #[arg(
        long = "ebpf.maxactive",
        value_name = "N",
        default_value_t = EbpfOptions::default().maxactive,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(EbpfOptions::MAXACTIVE_LIMIT)),
    )]
    pub maxactive: u32,

    /// Processes with series of their own; all others are one series together
    #[arg(long = "process.max", value_name = "N", default_value_t = 100, value_parser = parse_count)]
    pub max_processes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// Where to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// `:PORT`: every address of the machine.
    Any(u16),
    /// A name or an address with a port.
    At(String),
}

impl std::fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any(port) => write!(f, ":{port}"),
            Self::At(address) => f.write_str(address),
        }
    }
}

fn default_address() -> ListenAddress {
    ListenAddress::Any(DEFAULT_PORT)
}

fn parse_address(text: &str) -> Result<ListenAddress, String> {
    const EXPECTED: &str = "expected HOST:PORT, [IPv6]:PORT or :PORT, with a port from 0 to 65535";
    let (host, port) = text.rsplit_once(':').ok_or(EXPECTED)?;
    let port: u16 = port.parse().map_err(|_| EXPECTED)?;
    if host.is_empty() {
        return Ok(ListenAddress::Any(port));
    }
    if host.contains(':') && text.parse::<SocketAddr>().is_err() {
        return Err(EXPECTED.to_owned());
    }
    Ok(ListenAddress::At(text.to_owned()))
}

fn parse_mode(word: &str) -> Result<AttachMode, String> {
    let mode = AttachMode::ALL.into_iter().find(|mode| mode.word() == word);
    mode.ok_or_else(|| "expected auto or fentry".to_owned())
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number from 0".to_owned())
}

/// Why the command line was not taken.
#[derive(Debug)]
pub enum CliError {
    /// Help or the version was asked for: its text.
    Shown(String),
    /// One line that names the value and what was expected.
    Usage(String),
}

/// Parses the command line; the first argument is the program.
///
/// # Errors
/// See [`CliError`].
pub fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Cli, CliError> {
    Cli::try_parse_from(arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            CliError::Shown(error.render().to_string())
        }
        _ => CliError::Usage(one_line(&error.render().to_string())),
    })
}

/// clap's first line, with its list of values or its tip, as one line.
fn one_line(rendered: &str) -> String {
    let mut lines = rendered.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let more = lines.find_map(|line| {
        let values = line.strip_prefix("[possible values: ").and_then(|l| l.strip_suffix(']'));
        values
            .map(|values| format!("expected one of {values}"))
            .or_else(|| line.starts_with("tip:").then(|| line.to_owned()))
    });
    let line = [Some(first), more].into_iter().flatten().collect::<Vec<_>>().join("; ");
    // A value's own parser has said it; of all else the help does.
    if line.contains(" expected ") {
        line
    } else {
        format!("{line}; expected what 'mrscope --help' lists")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(arguments: &[&str]) -> String {
        let all = std::iter::once("mrscope").chain(arguments.iter().copied());
        match parse(all.map(Into::into)) {
            Err(CliError::Usage(line)) => line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_bad_value_is_named_on_one_line_with_what_was_expected() {
        for (arguments, named, expected) in [
            (vec!["--nonsense"], "'--nonsense'", "mrscope --help"),
            (vec!["stray"], "'stray'", "mrscope --help"),
            (vec!["--log.level", "loud"], "'loud'", "expected one of error, warn, info, debug"),
            (vec!["--ebpf.maxactive", "4097"], "4097", "1..=4096"),
            (vec!["--web.listen-address", "here"], "'here'", "HOST:PORT"),
            (vec!["--web.listen-address", "::1:80:x"], "'::1:80:x'", "HOST:PORT"),
            (vec!["--web.listen-address", "a:70000"], "'a:70000'", "0 to 65535"),
            (vec!["--process.max", "many"], "'many'", "expected a whole number"),
        ] {
            let line = usage(&arguments);
            assert!(!line.contains('\n') && line.contains(named), "{line}");
            assert!(line.contains(expected), "{line}");
        }
    }

    #[test]
    fn an_address_without_a_host_is_every_address() {
        assert_eq!(parse_address(":10042"), Ok(ListenAddress::Any(10042)));
        assert_eq!(parse_address("[::1]:0"), Ok(ListenAddress::At("[::1]:0".into())));
        assert_eq!(parse_address("localhost:1"), Ok(ListenAddress::At("localhost:1".into())));
    }
}
