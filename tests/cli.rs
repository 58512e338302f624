//! The command line and the configuration file, as the binary takes them. Nothing here needs RDMA.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Served, get, mrscope, run};
use mrscope::model::COLLECTORS;

/// A configuration file that goes with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.yaml"));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The one line of a configuration that was not taken.
fn refused(file: &str) -> String {
    let (code, out, said) = run(&["--config.file", file, "--web.listen-address", "127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!((out.as_str(), said.lines().count()), ("", 1), "{said}");
    said.trim_end().to_owned()
}

#[test]
fn help_lists_every_flag_and_command() {
    let (code, help, said) = run(&["--help"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let flags = [
        "--config.file <FILE>",
        "--web.listen-address <ADDRESS>",
        "--web.telemetry-path <PATH>",
        "--path.procfs <PATH>",
        "--path.sysfs <PATH>",
        "--log.level <LEVEL>",
        "--log.format <FORMAT>",
        "--ebpf.attach <MODE>",
        "--ebpf.maxactive <N>",
        "--process.max <N>",
        "--process.linger <DURATION>",
        "--process.labels <LABELS>",
        "--collector.disable-defaults",
        "--help",
        "--version",
    ];
    let switches = COLLECTORS
        .iter()
        .flat_map(|word| [format!("--collector.{word}"), format!("--no-collector.{word}")]);
    for flag in flags.iter().map(ToString::to_string).chain(switches) {
        let listed = help.lines().any(|line| {
            let line = line.trim_start().trim_start_matches("-h, ").trim_start_matches("-V, ");
            line.strip_prefix(&flag).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        assert!(listed, "{flag} is not in\n{help}");
    }
    for command in ["metrics ", "check ", "bench "] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(command)), "{help}");
    }
    for default in ["[default: :10042]", "[default: 60s]", "[default: pid,comm]"] {
        assert!(help.contains(default), "{help}");
    }
}

#[test]
fn the_version_is_the_package_s() {
    let (code, version, said) = run(&["--version"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(version, format!("mrscope {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bad_usage_is_one_line_and_exit_2() {
    for (arguments, named) in [
        (&["--nonsense"][..], "--nonsense"),
        (&["--log.level", "loud"], "loud"),
        (&["--web.listen-address", "x"], "'x'"),
        (&["--process.linger", "60"], "'60'"),
        (&["--web.telemetry-path", "/-/ready"], "/-/ready"),
        (&["--colector.mr"], "'--collector.mr'"),
        (&["metrics", "--process.max", "1"], "--process.max"),
        (&["--process.max", "1", "metrics"], "--process.max"),
        (&["--strict"], "--strict"),
        (&["check", "--nonsense"], "--nonsense"),
        (&["--process.max", "1", "check"], "--process.max"),
        (&["bench", "--size", "5KiB"], "'5KiB'"),
        (&["bench", "--size", "64MB"], "'64MB'"),
        (&["bench", "--rounds", "0"], "'0'"),
        (&["bench", "--port", "255"], "'255'"),
        (&["bench", "--path.sysfs", "/sys"], "--path.sysfs"),
        (&["bench", "rxe0"], "'rxe0'"),
        (&["--size", "64MiB"], "--size"),
    ] {
        let (code, out, said) = run(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(named) && said.contains("expected"), "{said}");
    }
}

#[test]
fn a_file_that_is_not_taken_is_one_line_and_exit_1() {
    let unknown = File::new("unknown", "log:\n  level: info\nprocess:\n  lingr: 60s\n");
    assert_eq!(
        refused(unknown.path()),
        format!(
            "mrscope: {}:4: unknown key \"process.lingr\", expected one of enabled, max, linger, \
             labels; did you mean \"linger\"?",
            unknown.path()
        )
    );
    let wrong = File::new("wrong", "\nebpf:\n  maxactive: 0\n");
    let line = refused(wrong.path());
    let start = format!("mrscope: {}:3: ebpf.maxactive: ", wrong.path());
    assert!(line.starts_with(&start), "{line}");
    assert!(line.ends_with("integer `0`, expected a whole number from 1 to 4096"), "{line}");

    let torn = File::new("torn", "web: {listen_addresses: [':1'\n");
    let line = refused(torn.path());
    assert!(line.starts_with(&format!("mrscope: {}:2:1: not YAML: ", torn.path())), "{line}");

    let line = refused("/nowhere/m.yaml");
    assert!(line.starts_with("mrscope: /nowhere/m.yaml: No such file"), "{line}");
    assert!(line.ends_with(", expected a readable YAML file"), "{line}");
}

#[test]
fn flags_overrule_the_file_and_leave_the_rest_of_it() {
    let file = File::new(
        "overruled",
        // Nobody may listen there: 192.0.2.0/24 is for documents.
        "web:\n  listen_addresses: ['192.0.2.1:1']\n  telemetry_path: /from-file\n\
         log: {format: json}\nprocess: {max: 0}\n",
    );
    let served = Served::start(&["--config.file", file.path(), "--log.format", "logfmt"]);
    assert!(served.said.iter().all(|line| line.starts_with("ts=")), "{:?}", served.said);
    assert_eq!(served.pages, [format!("{}/from-file", served.address())]);
    assert!(served.get("/from-file").0.starts_with("http/1.1 200"));

    let line = refused_address(file.path());
    assert!(line.contains("can't listen on 192.0.2.1:1"), "{line}");
}

/// What the file's own address gives.
fn refused_address(file: &str) -> String {
    let (code, _, said) = run(&["--config.file", file]);
    assert_eq!(code, Some(1), "{said}");
    said
}

#[test]
fn every_address_answers_and_one_signal_ends_all() {
    let mut command = mrscope();
    command.args(["--web.listen-address", "127.0.0.1:0", "--web.listen-address", "127.0.0.2:0"]);
    let mut served = Served::spawn(command, 2);
    let mut hosts: Vec<_> = served.pages.iter().map(|page| page.split(':').next()).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, [Some("127.0.0.1"), Some("127.0.0.2")]);
    for page in &served.pages {
        let (address, path) = page.split_once('/').unwrap();
        let (head, page) = get(address, &format!("/{path}"));
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(page.contains("mrscope_build_info{version="), "{page}");
    }
    served.signal("-TERM");
    assert!(served.wait().success());
}

#[test]
fn a_second_address_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, said) =
        run(&["--web.listen-address", "127.0.0.1:0", "--web.listen-address", &address]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&format!("can't listen on {address}")), "{said}");
}

#[test]
fn the_page_is_where_it_was_asked_to_be_and_nowhere_else() {
    let served = Served::start(&["--web.telemetry-path", "/rdma/figures"]);
    let (head, page) = served.get("/rdma/figures");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(page.contains("mrscope_build_info{version="), "{page}");
    assert!(served.get("/metrics").0.starts_with("http/1.1 404"));
    let (_, landing) = served.get("/");
    assert!(landing.contains("<a href=\"/rdma/figures\">"), "{landing}");
}

#[test]
fn logfmt_lines_have_time_level_and_message() {
    let mut served = Served::start(&["--log.level", "debug"]);
    served.signal("-TERM");
    let rest = served.rest_of_log();
    assert!(rest.contains(" level=info msg=stopping\n"), "{rest}");
    for line in served.said.iter().map(String::as_str).chain(rest.lines()) {
        let time = line.strip_prefix("ts=").and_then(|line| line.split(' ').next()).unwrap();
        assert!(time.ends_with('Z') && time.contains('T'), "{line}");
        let (_, after) = line.split_once(" level=").unwrap();
        let (level, after) = after.split_once(' ').unwrap();
        assert!(["error", "warn", "info", "debug"].contains(&level), "{line}");
        assert!(after.starts_with("msg="), "{line}");
        assert!(!line.contains('\u{1b}'), "{line}");
    }
}

#[test]
fn json_lines_have_time_level_and_message() {
    let mut served = Served::start(&["--log.format", "json", "--log.level", "debug"]);
    served.signal("-TERM");
    let rest = served.rest_of_log();
    let mut messages = Vec::new();
    for line in served.said.iter().map(String::as_str).chain(rest.lines()) {
        let event: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(event["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
        let level = event["level"].as_str().unwrap();
        assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&level), "{line}");
        messages.push(event["message"].as_str().unwrap().to_owned());
    }
    let serving = format!("serving http://{}", served.pages[0]);
    for message in ["ready", "stopping", &serving] {
        assert!(messages.iter().any(|said| said == message), "{message}: {messages:?}");
    }
}

#[test]
fn what_is_less_severe_than_asked_for_is_not_logged() {
    // An address of its own: what it is served on it does not say.
    let pid = std::process::id();
    let address = format!("127.{}.{}.{}:10042", 1 + (pid >> 16) % 254, pid >> 8 & 255, pid & 255);
    let mut command = mrscope();
    command.args(["--web.listen-address", &address, "--log.level", "error"]);
    let mut served = Served::spawn_silent(command, &address);
    served.signal("-TERM");
    let said = served.rest_of_log();
    assert!(served.wait().success());
    assert!(!said.contains("level=info") && !said.contains("level=warn"), "{said}");
}

#[test]
fn metrics_prints_the_committed_list() {
    let (code, printed, said) = run(&["metrics"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    let hint = "the catalogue changed; BLESS=1 cargo test --release --test cli writes it anew";
    for (line, wanted) in printed.lines().zip(committed.lines()) {
        assert_eq!(line, wanted, "{hint}");
    }
    assert_eq!(printed, committed, "{hint}");
}

#[test]
fn check_says_how_each_part_stands_and_strict_fails_for_what_is_not_there() {
    // No machine lacks what shows itself, and none has its device files there.
    let itself = ["check", "--collector.disable-defaults", "--collector.exporter"];
    let with = |more: &[&str]| run(&[&itself[..], more].concat());
    let (code, said, log) = with(&["--strict"]);
    assert_eq!((code, log.as_str()), (Some(0), ""), "{said}");
    assert!(said.ends_with("\nAll that is asked for is there.\n"), "{said}");

    let empty = std::env::temp_dir().join(format!("mrscope-check-{}", std::process::id()));
    std::fs::create_dir_all(&empty).unwrap();
    let devices = ["--collector.devices", "--path.sysfs", empty.to_str().unwrap()];
    let (code, said, _) = with(&devices);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.lines().any(|line| line.starts_with("devices ")), "{said}");
    assert!(said.contains("\n(1) this host has no RDMA device\n"), "{said}");
    assert!(said.contains("Not there: collector devices (no_data)"), "{said}");
    let (code, again, _) = with(&[&devices[..], &["--strict"]].concat());
    assert_eq!((code, again), (Some(1), said));
    std::fs::remove_dir_all(&empty).unwrap();
}

/// With nothing in its /sys, whatever this machine has.
#[test]
fn a_bench_without_a_device_is_one_line_and_exit_1() {
    let script = "mount -t tmpfs none /sys && exec \"$@\"";
    let empty = ["--map-root-user", "--mount", "sh", "-ec", script, "sh"];
    for arguments in [&["bench"][..], &["bench", "--json"], &["bench", "--device", "mlx5_0"]] {
        let mut command = Command::new("unshare");
        command.args(empty).arg(env!("CARGO_BIN_EXE_mrscope")).args(arguments);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let said = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(said, ["", "mrscope: this host has no RDMA device\n"]);
        assert_eq!(status.code(), Some(1));
    }
}

#[test]
fn a_switch_of_a_collector_is_taken() {
    let served = Served::start(&["--no-collector.mr", "--collector.mr"]);
    assert!(served.get("/metrics").0.starts_with("http/1.1 200"));
    let served = Served::start(&["--no-collector.mr"]);
    assert!(served.get("/metrics").0.starts_with("http/1.1 200"));
}

#[test]
fn procfs_is_read_where_it_is_said_to_be() {
    let empty = std::env::temp_dir().join(format!("mrscope-cli-{}", std::process::id()));
    std::fs::create_dir_all(&empty).unwrap();
    let served = Served::start(&["--path.procfs", empty.to_str().unwrap()]);
    let kallsyms = format!("{}/kallsyms: No such", empty.display());
    assert!(served.said.iter().any(|line| line.contains(&kallsyms)), "{:?}", served.said);
    std::fs::remove_dir_all(&empty).unwrap();
}

#[test]
fn a_place_that_is_none_is_named_on_one_line() {
    for (flag, key) in [("--path.procfs", "path.procfs"), ("--path.sysfs", "path.sysfs")] {
        let (status, _, said) = run(&["--web.listen-address", "127.0.0.1:0", flag, "/nowhere"]);
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains(&format!("mrscope: {key}: /nowhere is no folder")), "{said}");
    }
}
