//! The command line: flags as the exporters of this field name them. A flag that is not given says
//! nothing: then the file holds, and without one the default.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::notation::{self, Expected};
use crate::config::{
    Config, ConfigError, ListenAddress, LogFormat, LogLevel, MAXACTIVE, PROCESSES, listen_address,
    telemetry_path,
};
use crate::model::{AttachMode, BenchOptions, COLLECTORS, ProcessLabel};

/// What was asked for.
#[derive(Debug)]
pub struct Cli {
    /// None is to serve.
    pub command: Option<Command>,
    flags: Flags,
    /// Collectors that were named, with what was said last of each.
    switches: Vec<(&'static str, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Metrics,
    Bench(BenchOptions),
    /// With `strict`, what is not there is a failure.
    Check {
        strict: bool,
    },
}

#[derive(Debug, Subcommand)]
enum SpokenCommand {
    /// Print every metric with its labels and meaning, as Markdown
    Metrics,
    /// Load and attach all that is asked for, say how each part stands and what helps, and end
    Check {
        /// End with status 1 if anything that is asked for is not there
        #[arg(long)]
        strict: bool,
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Measure registration and writes on each kind of page and NUMA node, print a table, and end
    Bench(BenchFlags),
}

#[derive(Debug, Args)]
struct BenchFlags {
    /// Bytes of each MR, as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = notation::memory_size)]
    size: u64,

    /// How often each row is measured; the table has medians
    #[arg(long, value_name = "N", default_value = "5", value_parser = rounds)]
    rounds: u32,

    /// RDMA device [default: the first that has an active port]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Its port [default: the first that is active]
    #[arg(long, value_name = "N", value_parser = port)]
    port: Option<u8>,

    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

impl From<BenchFlags> for BenchOptions {
    fn from(flags: BenchFlags) -> Self {
        let BenchFlags { size, rounds, device, port, json } = flags;
        Self { mr_bytes: size, rounds, device, port, json }
    }
}

fn rounds(text: &str) -> Result<u32, Expected> {
    notation::whole(text, &(1..=BenchOptions::ROUNDS_LIMIT.into())).map(|rounds| rounds as u32)
}

fn port(text: &str) -> Result<u8, Expected> {
    notation::whole(text, &(1..=254)).map(|port| port as u8)
}

/// Prometheus exporter for RDMA memory: registration latency and pinned bytes of every process.
#[derive(Debug, Parser)]
#[command(
    name = "mrscope",
    version,
    about,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
struct Spoken {
    #[command(subcommand)]
    command: Option<SpokenCommand>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Args)]
struct Flags {
    /// Configuration, which flags overrule; config/example.yaml has every key
    #[arg(long = "config.file", value_name = "FILE")]
    config_file: Option<PathBuf>,

    /// Address to serve on: HOST:PORT, [IPv6]:PORT, or :PORT for all addresses; may be repeated
    #[arg(long = "web.listen-address", value_name = "ADDRESS", value_parser = listen_address)]
    listen_addresses: Vec<ListenAddress>,

    /// Path of the page
    #[arg(long = "web.telemetry-path", value_name = "PATH", value_parser = telemetry_path)]
    telemetry_path: Option<String>,

    /// Where procfs of the host is mounted
    #[arg(long = "path.procfs", value_name = "PATH", value_parser = notation::absolute_path)]
    procfs: Option<PathBuf>,

    /// Where sysfs of the host is mounted
    #[arg(long = "path.sysfs", value_name = "PATH", value_parser = notation::absolute_path)]
    sysfs: Option<PathBuf>,

    /// Least severity that is logged: error, warn, info or debug
    #[arg(long = "log.level", value_name = "LEVEL", value_parser = notation::log_level)]
    log_level: Option<LogLevel>,

    /// Form of the log's lines: logfmt or json
    #[arg(long = "log.format", value_name = "FORMAT", value_parser = notation::log_format)]
    log_format: Option<LogFormat>,

    /// How functions of kernel modules are watched: auto, or fentry, which is cheaper but holds those modules
    #[arg(long = "ebpf.attach", value_name = "MODE", value_parser = notation::attach)]
    attach: Option<AttachMode>,

    /// Concurrent calls that a return probe can follow, 1 to 4096
    #[arg(long = "ebpf.maxactive", value_name = "N", value_parser = maxactive)]
    maxactive: Option<u32>,

    /// Processes with series of their own; all others are one series together
    #[arg(long = "process.max", value_name = "N", value_parser = process_max)]
    process_max: Option<usize>,

    /// How long the counters of a process outlive it, as 60s or 1m30s
    #[arg(long = "process.linger", value_name = "DURATION", value_parser = notation::duration)]
    linger: Option<Duration>,

    /// What tells one process series from another, with commas between
    #[arg(long = "process.labels", value_name = "LABELS", value_parser = labels)]
    labels: Option<Labels>,

    /// Collect nothing but what --collector.* names
    #[arg(long = "collector.disable-defaults", help_heading = COLLECTORS_HEADING)]
    disable_defaults: bool,
}

const COLLECTORS_HEADING: &str = "Collectors";

/// One value, though several words.
#[derive(Debug, Clone)]
struct Labels(Vec<ProcessLabel>);

fn labels(text: &str) -> Result<Labels, Expected> {
    notation::labels(text).map(Labels)
}

fn maxactive(text: &str) -> Result<u32, Expected> {
    notation::whole(text, &MAXACTIVE).map(|calls| calls as u32)
}

fn process_max(text: &str) -> Result<usize, Expected> {
    notation::whole(text, &PROCESSES).map(|max| max as usize)
}

/// Why the command line was not taken.
#[derive(Debug)]
pub enum CliError {
    /// Help or the version was asked for: its text.
    Shown(String),
    /// One line that names the value and what was expected.
    Usage(String),
}

impl From<clap::Error> for CliError {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Self::Shown(text),
            _ => Self::Usage(one_line(&text)),
        }
    }
}

/// Parses the command line; the first argument is the program.
///
/// # Errors
/// See [`CliError`].
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, CliError> {
    let matches = whole_command().try_get_matches_from(arguments)?;
    let Spoken { command, flags } = Spoken::from_arg_matches(&matches)?;
    let (command, flags, matches) = match (command, matches.subcommand()) {
        (Some(SpokenCommand::Check { strict, flags }), Some((_, own))) => {
            (Some(Command::Check { strict }), *flags, own)
        }
        (Some(SpokenCommand::Bench(asked)), _) => {
            (Some(Command::Bench(asked.into())), flags, &matches)
        }
        (Some(_), _) => (Some(Command::Metrics), flags, &matches),
        (None, _) => (None, flags, &matches),
    };
    Ok(Cli { command, flags, switches: switches(matches) })
}

fn whole_command() -> clap::Command {
    with_all_flags(Spoken::command()).mut_subcommand("check", with_all_flags)
}

/// The flags above, with their defaults in the help and two for each collector.
fn with_all_flags(mut command: clap::Command) -> clap::Command {
    for (flag, default) in defaults() {
        command = command.mut_arg(flag, |arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            arg.help(format!("{help} [default: {default}]"))
        });
    }
    for collector in COLLECTORS {
        let (on, off) = switch_names(collector);
        let switch = |name: &str, other: &str, help: String| {
            Arg::new(name.to_owned())
                .long(name.to_owned())
                .action(ArgAction::SetTrue)
                // The last one holds.
                .overrides_with_all([name.to_owned(), other.to_owned()])
                .help_heading(COLLECTORS_HEADING)
                .help(help)
        };
        command = command
            .arg(switch(&on, &off, format!("Collect {collector} [default: on]")))
            .arg(switch(&off, &on, format!("Don't collect {collector}")));
    }
    command
}

/// Default values as they would be written, by the flag's id.
fn defaults() -> Vec<(&'static str, String)> {
    let Config { web, log, path, ebpf, process, .. } = Config::default();
    let join = |words: Vec<String>| words.join(",");
    vec![
        ("listen_addresses", join(web.listen_addresses.iter().map(ToString::to_string).collect())),
        ("telemetry_path", web.telemetry_path),
        ("procfs", path.procfs.display().to_string()),
        ("sysfs", path.sysfs.display().to_string()),
        ("log_level", log.level.word().to_owned()),
        ("log_format", log.format.word().to_owned()),
        ("attach", ebpf.attach.word().to_owned()),
        ("maxactive", ebpf.maxactive.to_string()),
        ("process_max", process.max.to_string()),
        ("linger", format!("{:?}", process.linger)),
        ("labels", join(process.labels.iter().map(|label| label.word().to_owned()).collect())),
    ]
}

fn switch_names(collector: &str) -> (String, String) {
    (format!("collector.{collector}"), format!("no-collector.{collector}"))
}

fn switches(matches: &ArgMatches) -> Vec<(&'static str, bool)> {
    let mut switches = Vec::new();
    for collector in COLLECTORS {
        let (on, off) = switch_names(collector);
        // Each overrides the other: at most one is left.
        if matches.get_flag(&on) {
            switches.push((collector, true));
        } else if matches.get_flag(&off) {
            switches.push((collector, false));
        }
    }
    switches
}

impl Cli {
    /// The file, if one was named, with the flags laid over it.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn config(&self) -> Result<Config, ConfigError> {
        let flags = &self.flags;
        let mut config = match &flags.config_file {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        if !flags.listen_addresses.is_empty() {
            config.web.listen_addresses.clone_from(&flags.listen_addresses);
        }
        lay(flags.telemetry_path.as_ref(), &mut config.web.telemetry_path);
        lay(flags.procfs.as_ref(), &mut config.path.procfs);
        lay(flags.sysfs.as_ref(), &mut config.path.sysfs);
        lay(flags.log_level.as_ref(), &mut config.log.level);
        lay(flags.log_format.as_ref(), &mut config.log.format);
        lay(flags.attach.as_ref(), &mut config.ebpf.attach);
        lay(flags.maxactive.as_ref(), &mut config.ebpf.maxactive);
        lay(flags.process_max.as_ref(), &mut config.process.max);
        lay(flags.linger.as_ref(), &mut config.process.linger);
        lay(flags.labels.as_ref().map(|labels| &labels.0), &mut config.process.labels);
        if flags.disable_defaults {
            // What the file switches on is a default here too: flags overrule it.
            for collector in COLLECTORS {
                config.set_enabled(collector, false);
            }
        }
        for (collector, on) in &self.switches {
            config.set_enabled(collector, *on);
        }
        Ok(config)
    }
}

fn lay<T: Clone>(flag: Option<&T>, over: &mut T) {
    if let Some(value) = flag {
        over.clone_from(value);
    }
}

/// clap's first paragraph, with its tip, as one line.
fn one_line(rendered: &str) -> String {
    let mut lines = rendered.lines().map(str::trim);
    let first: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let first = first.join(" ").trim_start_matches("error: ").to_owned();
    let tip = lines.find(|line| line.starts_with("tip:")).map(str::to_owned);
    let line = [Some(first), tip].into_iter().flatten().collect::<Vec<_>>().join("; ");
    // A value's own notation has said it; of all else the help does.
    if line.contains(" expected ") {
        line
    } else {
        format!(
            "{line}; expected what 'mrscope --help' or 'mrscope COMMAND --help' lists, and flags \
                 after the command"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Cli, CliError> {
        let all = std::iter::once("mrscope").chain(arguments.iter().copied());
        parse(all.map(Into::into))
    }

    fn usage(arguments: &[&str]) -> String {
        match parsed(arguments) {
            Err(CliError::Usage(line)) => line,
            other => panic!("{other:?}"),
        }
    }

    fn config(arguments: &[&str]) -> Config {
        parsed(arguments).unwrap().config().unwrap()
    }

    fn enabled(arguments: &[&str]) -> Vec<&'static str> {
        let config = config(arguments);
        COLLECTORS.into_iter().filter(|word| config.enabled(word)).collect()
    }

    #[test]
    fn clap_finds_nothing_wrong_with_the_flags() {
        whole_command().debug_assert();
    }

    #[test]
    fn a_bad_value_is_named_on_one_line_with_what_was_expected() {
        for (arguments, named, expected) in [
            (vec!["--nonsense"], "'--nonsense'", "mrscope --help"),
            (vec!["--collector.mrs"], "'--collector.mrs'", "'--collector.mr'"),
            (vec!["--proces.max", "1"], "'--proces.max'", "'--process.max'"),
            (vec!["stray"], "'stray'", "mrscope --help"),
            (vec!["--process.max"], "'--process.max <N>'", "mrscope --help"),
            (vec!["--log.level", "loud"], "'loud'", "expected one of error, warn, info, debug"),
            (vec!["--log.format", "xml"], "'xml'", "expected one of logfmt, json"),
            (vec!["--ebpf.attach", "x"], "'x'", "expected one of auto, fentry"),
            (vec!["--ebpf.maxactive", "4097"], "'4097'", "expected a whole number from 1 to 4096"),
            (vec!["--web.listen-address", "here"], "'here'", "HOST:PORT"),
            (vec!["--web.listen-address", "a:70000"], "'a:70000'", "0 to 65535"),
            (vec!["--web.telemetry-path", "/"], "'/'", "a path such as /metrics"),
            (vec!["--path.procfs", "proc"], "'proc'", "an absolute path"),
            (vec!["--process.max", "many"], "'many'", "expected a whole number"),
            (vec!["--process.linger", "60"], "'60'", "expected a duration such as 60s"),
            (vec!["--process.labels", "pid,pod"], "'pid,pod'", "each one of pid, comm"),
            (vec!["--log.level", "info", "metrics"], "'metrics'", "'--log.level <LEVEL>'"),
            (
                vec!["--log.level=info", "--process.max=1", "metrics"],
                "'metrics'",
                "--log.level <LEVEL> --process.max <N>",
            ),
            (vec!["--log.level", "a\nb"], "'a b'", "expected one of error"),
            (vec!["metrics", "--log.level", "info"], "'--log.level'", "mrscope --help"),
        ] {
            let line = usage(&arguments);
            assert!(!line.contains('\n') && line.contains(named), "{line}");
            assert!(line.contains(expected), "{line}");
        }
    }

    #[test]
    fn a_flag_that_is_not_given_says_nothing() {
        assert_eq!(config(&[]), Config::default());
    }

    #[test]
    fn every_flag_reaches_its_value() {
        let given = config(&[
            "--web.listen-address",
            ":1",
            "--web.listen-address=[::1]:2",
            "--web.telemetry-path=/x",
            "--path.procfs=/p",
            "--path.sysfs=/s",
            "--log.level=debug",
            "--log.format=json",
            "--ebpf.attach=fentry",
            "--ebpf.maxactive=7",
            "--process.max=8",
            "--process.linger=9s",
            "--process.labels=comm",
        ]);
        let mut wanted = Config::default();
        wanted.web.listen_addresses =
            vec![ListenAddress::Any(1), ListenAddress::At("[::1]:2".into())];
        wanted.web.telemetry_path = "/x".into();
        wanted.path.procfs = "/p".into();
        wanted.path.sysfs = "/s".into();
        wanted.log.level = LogLevel::Debug;
        wanted.log.format = LogFormat::Json;
        wanted.ebpf.attach = AttachMode::Fentry;
        wanted.ebpf.maxactive = 7;
        wanted.process.max = 8;
        wanted.process.linger = Duration::from_secs(9);
        wanted.process.labels = vec![ProcessLabel::Comm];
        assert_eq!(given, wanted);
    }

    #[test]
    fn the_last_word_on_a_collector_holds() {
        assert_eq!(enabled(&["--no-collector.mr", "--collector.mr"]), COLLECTORS);
        assert_eq!(
            enabled(&["--collector.mr", "--no-collector.mr", "--no-collector.mr"]),
            COLLECTORS[1..]
        );
    }

    #[test]
    fn without_defaults_only_what_is_named_is_on() {
        assert_eq!(enabled(&["--collector.disable-defaults"]), [""; 0]);
        let named = ["--collector.mr", "--collector.disable-defaults", "--collector.exporter"];
        assert_eq!(enabled(&named), ["mr", "exporter"]);
    }

    #[test]
    fn bench_has_flags_of_its_own() {
        let bench = |arguments: &[&str]| parsed(&[&["bench"], arguments].concat()).unwrap().command;
        assert_eq!(bench(&[]), Some(Command::Bench(BenchOptions::default())));
        let wanted = BenchOptions {
            mr_bytes: 1 << 30,
            rounds: 3,
            device: Some("mlx5_0".into()),
            port: Some(2),
            json: true,
        };
        let all = ["--size=1GiB", "--rounds=3", "--device=mlx5_0", "--port=2", "--json"];
        assert_eq!(bench(&all), Some(Command::Bench(wanted)));
    }

    #[test]
    fn metrics_is_a_command_of_its_own() {
        assert_eq!(parsed(&["metrics"]).unwrap().command, Some(Command::Metrics));
        assert_eq!(parsed(&[]).unwrap().command, None);
    }
}
