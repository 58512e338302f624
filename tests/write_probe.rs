//! The write probe as it is started, on whatever machine this is: what it does without its device.
#![cfg(feature = "write-probe")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::{Command, Output};

use mrscope::probe::{Answer, Failure, ProbeOptions, Reason};

const NOWHERE: &str = "no-device-has-this-name";

fn probe(arguments: &[String]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mrscope-write-probe")).args(arguments).output().unwrap()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn failure(output: &Output) -> Failure {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    match Answer::parse(&output.stdout).unwrap() {
        Answer::Error(failure) => failure,
        Answer::Ok(report) => panic!("{report:?}"),
    }
}

#[test]
fn a_device_that_is_not_there_is_a_failure_that_the_library_reads() {
    let failure = failure(&probe(&ProbeOptions::new(NOWHERE).arguments()));
    assert_eq!(failure.reason, Reason::NoDevice);
    assert_eq!((failure.device.as_str(), failure.port), (NOWHERE, 1));
    assert_eq!(failure.verb, "ibv_get_device_list");
}

#[test]
fn it_runs_for_its_parent_alone() {
    let mine = i32::try_from(std::process::id()).unwrap();
    let options = |parent| ProbeOptions { parent: Some(parent), ..ProbeOptions::new(NOWHERE) };
    assert_eq!(failure(&probe(&options(mine).arguments())).reason, Reason::NoDevice);
    let refused = probe(&options(i32::MAX).arguments());
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stdout.is_empty());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("--parent 2147483647: it is not the parent"), "{said}");
}

#[test]
fn wrong_usage_is_a_line_and_status_2() {
    for line in ["", "--device", "--device a --depth 0", "--device a --untouched --pages 2m"] {
        let output = probe(&words(line));
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(output.stdout.is_empty(), "{line}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
        assert!(said.starts_with("mrscope-write-probe: "), "{line}: {said}");
    }
}

#[test]
fn help_is_a_text_and_status_0() {
    let output = probe(&words("--help"));
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).unwrap().contains("--device NAME"));
}
