use super::*;
use crate::model::{AttachMode, PageBytes, TlbEvent};

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("m.yaml"), text)
}

fn refusal(text: &str) -> String {
    let line = parse(text).unwrap_err().to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

const EXAMPLE: &str = include_str!("../../config/example.yaml");

#[test]
fn the_example_is_the_default_with_every_key_in_it() {
    assert_eq!(parse(EXAMPLE).unwrap(), Config::default());
    let yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(EXAMPLE).unwrap();
    let keys = file::dotted_keys();
    assert!(keys.len() > COLLECTORS.len());
    for key in keys {
        let (section, name) = key.split_once('.').unwrap();
        assert!(!yaml[section][name].is_null(), "{key} is not in config/example.yaml");
    }
}

#[test]
fn what_is_left_out_keeps_its_default() {
    for text in ["", "# nothing\n", "---\n", "web:\n", "web: {}\nprocess:\nmr:\n", "~"] {
        assert_eq!(parse(text).unwrap(), Config::default(), "{text:?}");
    }
}

#[test]
fn every_key_reaches_its_value() {
    let config = parse(
        "web: {listen_addresses: ['localhost:1', ':2'], telemetry_path: /rdma}\n\
         log: {level: debug, format: json}\n\
         path: {procfs: /host/proc, sysfs: /host/sys}\n\
         ebpf: {attach: fentry, maxactive: 1, max_pins: 16777216, max_processes: 3}\n\
         capabilities: {permanent_drop: true}\n\
         process: {enabled: false, max: 0, linger: 1m30s, labels: [slurm_job]}\n\
         mlock: {per_process: false, tracepoints: true}\n\
         tlb: {events: [itlb_load, page_walk], per_process: true, max_processes: 7}\n\
         write_probe: {interval: 5m, timeout: 1s, page_sizes: [1073741824, base], \
           max_bytes: 2097152, exclude: [mlx5_bond_*, rxe0], max_port_share: 100, \
           program: /opt/probe}\n\
         devices: {exclude: [rxe*]}\n\
         resources: {interval: 1d}\n\
         placement: {interval: 7s, pages: false}\n\
         mr: {enabled: false, history: 8}\n",
    )
    .unwrap();
    let web = Web {
        listen_addresses: vec![ListenAddress::At("localhost:1".into()), ListenAddress::Any(2)],
        telemetry_path: "/rdma".into(),
    };
    let ebpf = EbpfOptions {
        attach: AttachMode::Fentry,
        maxactive: 1,
        max_pins: EbpfOptions::ROWS_LIMIT,
        max_processes: 3,
        history: 8,
        permanent_drop: true,
        ..EbpfOptions::default()
    };
    let process = ProcessOptions {
        max: 0,
        linger: Duration::from_secs(90),
        labels: vec![ProcessLabel::SlurmJob],
    };
    assert_eq!(config.web, web);
    assert_eq!(config.log, Log { level: LogLevel::Debug, format: LogFormat::Json });
    assert_eq!(config.path.procfs, Path::new("/host/proc"));
    assert_eq!(config.path.sysfs, Path::new("/host/sys"));
    assert_eq!(config.ebpf, ebpf);
    assert_eq!(config.process, process);
    assert_eq!(config.mlock, MlockOptions { per_process: false, tracepoints: true });
    let events = vec![TlbEvent::InstructionLoad, TlbEvent::PageWalk];
    assert_eq!(config.tlb, TlbOptions { events, per_process: true, max_processes: 7 });
    let on: Vec<_> = COLLECTORS.into_iter().filter(|word| config.enabled(word)).collect();
    assert_eq!(
        on,
        [
            "mlock",
            "hugepages",
            "tlb",
            "write_probe",
            "devices",
            "resources",
            "placement",
            "exporter"
        ]
    );
    let write_probe = WriteProbeOptions {
        interval: Duration::from_mins(5),
        timeout: Duration::from_secs(1),
        page_sizes: vec![PageBytes::Huge1G, PageBytes::Base],
        max_bytes: 2 << 20,
        exclude: Excluded(vec!["mlx5_bond_*".into(), "rxe0".into()]),
        max_port_share: 100,
        program: Some("/opt/probe".into()),
    };
    assert_eq!(config.write_probe, write_probe);
    assert_eq!(config.devices.exclude, Excluded(vec!["rxe*".into()]));
    assert_eq!(config.resources.interval, Duration::from_hours(24));
    let interval = Duration::from_secs(7);
    assert_eq!(config.placement, PlacementOptions { interval, pages: false });
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest() {
    for (text, line) in [
        (
            "log:\n  level: info\nprocess:\n  max: 1\n  lingr: 60s\n",
            "m.yaml:5: unknown key \"process.lingr\", expected one of enabled, max, linger, labels; \
             did you mean \"linger\"?",
        ),
        (
            "\n\nproces:\n  max: 1\n",
            "m.yaml:3: unknown key \"proces\", expected one of web, log, path, ebpf, capabilities, \
             mr, process, mlock, hugepages, tlb, write_probe, \
             devices, resources, placement, exporter; did you mean \"process\"?",
        ),
        (
            "web: {listen_address: []}",
            "m.yaml:1: unknown key \"web.listen_address\", expected one of listen_addresses, \
             telemetry_path; did you mean \"listen_addresses\"?",
        ),
        (
            "hugepages:\n  max: 1\n",
            "m.yaml:2: unknown key \"hugepages.max\", expected one of enabled",
        ),
        (
            "1: 2",
            "m.yaml:1: unknown key \"1\", expected one of web, log, path, ebpf, capabilities, mr, \
             process, mlock, hugepages, tlb, write_probe, devices, resources, placement, exporter",
        ),
    ] {
        assert_eq!(refusal(text), line);
    }
}

#[test]
fn a_doubled_key_is_named_with_the_line_of_the_second() {
    for (text, line) in [
        (
            "log:\n  level: info\n  format: json\n  level: warn\n",
            "m.yaml:4: doubled key \"log.level\", expected each key once",
        ),
        ("mr:\nlog:\nmr:\n", "m.yaml:3: doubled key \"mr\", expected each key once"),
    ] {
        assert_eq!(refusal(text), line);
    }
}

#[test]
fn a_wrong_value_is_named_with_its_key_its_line_and_what_was_expected() {
    let whole = "a whole number from 0";
    let rows = "a whole number from 1 to 16777216";
    let calls = "a whole number from 1 to 4096";
    for (section, key, value, problem, expected) in [
        ("process", "max", "abc", "type: string \"abc\"", whole),
        ("process", "max", "'7'", "type: string \"7\"", whole),
        ("process", "max", "-1", "type: integer `-1`", whole),
        ("process", "max", "1.5", "type: floating point `1.5`", whole),
        ("process", "max", "", "type: nothing", whole),
        ("process", "linger", "60", "value: string \"60\"", "a duration such as 60s"),
        ("process", "labels", "[]", "length 0", "a list of at least one: one of pid"),
        ("process", "labels", "pid", "type: string \"pid\"", "a list of at least one"),
        ("process", "enabled", "maybe", "type: string \"maybe\"", "true or false"),
        ("devices", "enabled", "1", "type: integer `1`", "true or false"),
        ("ebpf", "maxactive", "0", "value: integer `0`", calls),
        ("ebpf", "maxactive", "4097", "value: integer `4097`", calls),
        ("ebpf", "max_pins", "16777217", "value: integer `16777217`", rows),
        ("ebpf", "max_processes", "0", "value: integer `0`", rows),
        ("mr", "history", "0", "value: integer `0`", rows),
        ("ebpf", "attach", "kprobe", "value: string \"kprobe\"", "one of auto, fentry"),
        ("web", "telemetry_path", "/", "value: string \"/\"", "a path such as /metrics"),
        ("web", "telemetry_path", "[/a]", "type: sequence", "a path such as /metrics"),
        ("path", "procfs", "proc", "value: string \"proc\"", "an absolute path"),
        ("path", "sysfs", "", "value: string \"\"", "an absolute path"),
        ("log", "level", "loud", "value: string \"loud\"", "one of error, warn, info, debug"),
        ("log", "format", "text", "value: string \"text\"", "one of logfmt, json"),
        ("write_probe", "interval", "0s", "value: string \"0s\"", "a duration from 1s to 1d"),
        ("write_probe", "timeout", "25h", "value: string \"25h\"", "a duration from 1s to 1d"),
        ("write_probe", "page_sizes", "[]", "length 0", "a list of at least one"),
        ("write_probe", "max_bytes", "1", "value: integer `1`", "a whole number from 2097152"),
        ("write_probe", "max_port_share", "101", "value: integer `101`", "a whole number from 1"),
        (
            "write_probe",
            "program",
            "probe",
            "value: string \"probe\"",
            "an absolute path, or beside",
        ),
    ] {
        let line = refusal(&format!("# a comment\n{section}:\n  {key}: {value}\n"));
        let wanted = format!("m.yaml:3: {section}.{key}: invalid {problem}, expected {expected}");
        assert!(line.starts_with(&wanted), "{line}, but wanted\n{wanted}");
    }
}

#[test]
fn a_wrong_part_of_a_list_is_named_with_its_place_and_line() {
    for (text, start) in [
        (
            "process:\n  labels:\n    - pid\n    - pod\n",
            "m.yaml:4: process.labels[1]: invalid value: string \"pod\", expected one of pid, comm",
        ),
        (
            "process:\n  labels:\n    - pid\n    - comm\n    - pid\n",
            "m.yaml:5: process.labels[2]: invalid value: string \"pid\", expected each label once",
        ),
        (
            "web:\n  listen_addresses:\n    - ':1'\n    - here\n",
            "m.yaml:4: web.listen_addresses[1]: invalid value: string \"here\", expected HOST:PORT",
        ),
        (
            "web:\n  listen_addresses: [{a: b}]\n",
            "m.yaml:2: web.listen_addresses[0]: invalid type: map, expected HOST:PORT",
        ),
        (
            "write_probe:\n  page_sizes: [base, 4096]\n",
            "m.yaml:2: write_probe.page_sizes[1]: invalid value: string \"4096\", expected one of base, \
             2097152, 1073741824",
        ),
        (
            "write_probe:\n  exclude: [mlx5_*, 'a b']\n",
            "m.yaml:2: write_probe.exclude[1]: invalid value: string \"a b\", expected a name of a device",
        ),
    ] {
        let line = refusal(text);
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn no_notation_takes_the_empty_text() {
    fn refuses<T>(notation: notation::Notation<T>) -> bool {
        notation("").is_err_and(|expected| !expected.0.is_empty())
    }
    assert!(refuses(notation::attach) && refuses(notation::log_level));
    assert!(refuses(notation::log_format) && refuses(notation::label));
    assert!(refuses(notation::absolute_path) && refuses(notation::duration));
    assert!(refuses(listen_address) && refuses(telemetry_path));
}

#[test]
fn what_is_no_section_is_told_what_one_holds() {
    for (text, line) in [
        (
            "\nlog: 3\n",
            "m.yaml:2: log: invalid type: integer `3`, expected a section of the keys level, format",
        ),
        (
            "- log\n",
            "m.yaml:1: invalid type: sequence, expected a section of the keys web, log, path, ebpf, capabilities, \
             mr, process, mlock, hugepages, tlb, write_probe, devices, resources, placement, exporter",
        ),
    ] {
        assert_eq!(refusal(text), line);
    }
}

#[test]
fn what_is_no_yaml_is_named_with_line_and_column() {
    for (text, place) in [
        ("log:\n  level: [info\nmr:\n", "m.yaml:3:3: not YAML: "),
        ("log:\n\tlevel: info\n", "m.yaml:2:1: not YAML: "),
        ("mr: *nobody\n", "m.yaml:1:5: not YAML: unknown anchor"),
        ("mr:\n---\nmr:\n", "m.yaml: not YAML: "),
    ] {
        let line = refusal(text);
        assert!(line.starts_with(place), "{line}");
    }
}

#[test]
fn a_file_that_can_t_be_read_is_named() {
    let line = Config::read(Path::new("/nowhere/m.yaml")).unwrap_err().to_string();
    assert!(line.starts_with("/nowhere/m.yaml: No such file"), "{line}");
    let line = Config::read(Path::new("/proc")).unwrap_err().to_string();
    assert!(line.starts_with("/proc: Is a directory"), "{line}");
}

#[test]
fn a_word_that_is_no_collector_is_off_and_switches_nothing() {
    let mut config = Config::default();
    config.set_enabled("nonsense", true);
    assert_eq!(config, Config::default());
    assert!(!config.enabled("nonsense") && config.enabled("mr"));
    config.set_enabled("mr", false);
    assert!(!config.enabled("mr") && config.enabled("process"));
}
