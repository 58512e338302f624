//! The house rules that a compiler does not check: who may name whom, and how long a file may be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

const MAX_LINES: usize = 500;

/// Which rooms of src/ each room may import. main.rs joins them all.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("check", &["collector", "model"]),
    ("bench", &["model", "host", "probe"]),
    ("cli", &["config", "model"]),
    ("config", &["model"]),
    ("log", &["config"]),
    ("metrics", &["model"]),
    ("ledger", &["model"]),
    ("probe", &[]),
    ("host", &["model"]),
    ("ebpf", &["model", "host"]),
    ("nldev", &["model", "host"]),
    ("collector", &["model", "host", "ebpf", "ledger", "metrics", "nldev", "probe"]),
    ("serve", &["collector", "config", "metrics"]),
];

/// Which rooms of the library each other program may name.
const PROGRAMS: &[(&str, &[&str])] = &[("mrscope-write-probe", &["host", "model", "probe"])];

const WRITE_PROBE: &str = "src/bin/mrscope-write-probe/";

/// Crates that one place alone may name, or a few.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("libbpf_rs", &["src/ebpf/"]),
    ("libbpf_sys", &["src/ebpf/"]),
    ("prometheus::", &["src/metrics/encode.rs"]),
    ("axum", &["src/serve/"]),
    ("hyper", &["src/serve/"]),
    ("perf_event_open_sys", &["src/host/perf.rs"]),
    ("procfs::", &["src/host/"]),
    ("anyhow", &["src/main.rs"]),
    ("clap", &["src/cli.rs"]),
    ("serde::", &["src/bench/", "src/config/", "src/probe/"]),
    ("serde_json", &["src/bench/", "src/log.rs", "src/probe/"]),
    ("serde_yaml_ng", &["src/config/"]),
    ("strsim", &["src/config/"]),
    ("tracing_subscriber", &["src/log.rs"]),
    ("rdma_sys", &[WRITE_PROBE]),
    ("libc::", &[WRITE_PROBE]),
];

/// Where unsafe code may be allowed.
const UNSAFE_IN: &[&str] =
    &["src/ebpf/", "src/host/move_pages.rs", "src/host/perf.rs", WRITE_PROBE];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Files that git tracks or would track, with their text.
fn files(of: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for place in of {
        walk(&root().join(place), &mut found);
    }
    assert!(!found.is_empty(), "no files below {of:?}");
    found
        .into_iter()
        .filter_map(|path| {
            let text = fs::read_to_string(&path).ok()?;
            let name = path.strip_prefix(root()).ok()?.to_string_lossy().into_owned();
            Some((name, text))
        })
        .collect()
}

fn walk(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        found.push(path.to_owned());
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        walk(&entry.path(), found);
    }
}

fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn no_source_file_is_too_long() {
    for (name, text) in files(&["src", "bpf", "tests", "scripts", "dashboards", "build.rs"]) {
        // What a page says is no source.
        if name.starts_with("tests/golden/") {
            continue;
        }
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{name} has {lines} lines, at most {MAX_LINES} are allowed");
    }
}

#[test]
fn the_readme_is_short() {
    let lines = fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= 200, "README.md has {lines} lines");
}

#[test]
fn rooms_import_only_what_they_may() {
    for (name, text) in files(&["src"]) {
        let inner = name.trim_start_matches("src/");
        let room = inner.split('/').next().unwrap().trim_end_matches(".rs");
        if matches!(room, "main" | "lib" | "bin") {
            continue;
        }
        let (_, allowed) = MAY_IMPORT
            .iter()
            .find(|(known, _)| *known == room)
            .unwrap_or_else(|| panic!("{name}: the room {room} has no rule here"));
        for (target, line) in named_after("crate::", &text) {
            assert!(
                target == room || allowed.contains(&target.as_str()),
                "{name}: {room} may not import {target}: {line}"
            );
        }
    }
}

#[test]
fn a_program_of_its_own_names_only_what_it_may_of_the_library() {
    for (name, text) in files(&["src/bin"]) {
        let program = name.trim_start_matches("src/bin/").split('/').next().unwrap();
        let (_, allowed) = PROGRAMS
            .iter()
            .find(|(known, _)| *known == program)
            .unwrap_or_else(|| panic!("{name}: the program {program} has no rule here"));
        for (target, line) in named_after("mrscope::", &text) {
            let allowed = allowed.contains(&target.as_str());
            assert!(allowed, "{name}: {program} may not import {target}: {line}");
        }
    }
}

/// What stands behind each such path, with its line.
fn named_after<'a>(path: &'a str, text: &'a str) -> impl Iterator<Item = (String, &'a str)> {
    code(text).flat_map(move |line| {
        line.match_indices(path).map(move |(at, _)| {
            let rest = &line[at + path.len()..];
            (rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect(), line)
        })
    })
}

#[test]
fn a_crate_is_named_only_where_it_belongs() {
    for (name, text) in files(&["src"]) {
        for (krate, places) in ONLY_IN {
            let named = code(&text).any(|line| line.contains(krate) && !line.contains("crate::"));
            let allowed = places.iter().any(|place| name.starts_with(place));
            assert!(!named || allowed, "{name} names {krate}, which is {places:?}'s");
        }
    }
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    for (name, text) in files(&["src"]) {
        if code(&text).any(|line| line.contains("allow(unsafe_code")) {
            assert!(UNSAFE_IN.iter().any(|place| name.starts_with(place)), "{name} is unsafe");
        }
    }
}

/// `umem` is bpf/umem.h, bpf/umem.bpf.c and src/ebpf/umem.rs.
#[test]
fn a_stem_goes_through_all_rooms() {
    let mut stems = 0;
    for (name, _) in files(&["bpf"]) {
        if let Some(stem) = name.strip_prefix("bpf/").and_then(|n| n.strip_suffix(".bpf.c")) {
            stems += 1;
            for twin in [format!("bpf/{stem}.h"), format!("src/ebpf/{stem}.rs")] {
                assert!(root().join(&twin).exists(), "{name} has no {twin}");
            }
        }
    }
    assert!(stems > 0);
}

#[test]
fn nothing_in_the_kernel_names_a_metric() {
    for (name, text) in files(&["bpf"]) {
        assert!(!text.contains("mrscope_"), "{name} names a metric");
    }
}

#[test]
fn a_collector_is_named_like_its_file() {
    for (name, text) in files(&["src/collector"]) {
        let Some(stem) = name.strip_prefix("src/collector/").and_then(|n| n.strip_suffix(".rs"))
        else {
            continue;
        };
        if text.contains("impl Collector for") {
            let literal = format!("\"{stem}\"");
            assert!(text.contains(&literal), "{name}: its collector is not called {stem}");
        }
    }
}

#[test]
fn names_say_what_things_are() {
    for (name, text) in files(&["src", "bpf"]) {
        for vague in ["Manager", "Helper", "Util"] {
            let named = code(&text).any(|line| line.contains(vague));
            assert!(!named, "{name} has a {vague}");
        }
    }
}

#[test]
fn every_test_is_in_a_tier() {
    let tiers = fs::read_to_string(root().join("scripts/test.sh")).unwrap();
    let tests = fs::read_dir(root().join("tests")).unwrap().map(|entry| entry.unwrap().path());
    let is_test = |path: &PathBuf| {
        path.extension().is_some_and(|it| it == "rs") || path.join("main.rs").exists()
    };
    let mut count = 0;
    for path in tests.filter(is_test) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let asked = format!("--test {name}");
        let named =
            |line: &str| line.split(" --").any(|word| format!("--{}", word.trim()) == asked);
        assert!(tiers.lines().any(named), "no tier of scripts/test.sh has {asked}");
        count += 1;
    }
    assert!(count > 10, "only {count} tests were found");
}

#[test]
fn the_image_is_built_with_what_a_build_needs() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (script, dockerfile) = (read("scripts/need.sh"), read("Dockerfile"));
    let list = script.split("readonly build=(").nth(1).unwrap().split(')').next().unwrap();
    let needed: Vec<&str> = list.split_whitespace().collect();
    assert!(needed.len() > 1, "scripts/need.sh has no list of packages");
    let install = dockerfile.split("--no-install-recommends").nth(1).unwrap();
    let installed: Vec<&str> = install
        .split("&&")
        .next()
        .unwrap()
        .split_whitespace()
        .filter(|word| *word != "\\")
        .collect();
    assert_eq!(installed, needed, "Dockerfile and scripts/need.sh");
    let version = read("Cargo.toml");
    let version = version.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    assert!(dockerfile.contains(&format!("FROM rust:{version}-bookworm ")), "Rust {version}");
}
