//! mrscope-write-probe: writes from one half of an MR to the other, by an RC pair on one port, and
//! tells in one JSON object how fast that was, and how long the MR took.
//!
//! A program of its own, so that mrscope starts where libibverbs is missing, and that a provider
//! which crashes or hangs costs nothing else. It ends with who started it, and by itself in time.

mod failure;
mod gid;
mod guard;
mod life;
mod limits;
mod memory;
mod pattern;
mod placement;
mod run;
mod sysfs;
mod tlb;
#[cfg(test)]
mod tree;
mod verbs;
mod walk;
mod writes;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use failure::Surroundings;
use guard::Voice;
use limits::Limits;
use mrscope::probe::{Answer, OptionsError, ProbeOptions};
use sysfs::Sysfs;

fn main() -> ExitCode {
    let options = match read_arguments() {
        Ok(options) => options,
        Err(OptionsError::Shown(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(OptionsError::Usage(line)) => {
            eprintln!("mrscope-write-probe: {line}");
            return ExitCode::from(2);
        }
    };
    if let Err(error) = life::tie(options.parent) {
        eprintln!("mrscope-write-probe: {error}");
        return ExitCode::FAILURE;
    }
    let root = Path::new("/");
    let sysfs = Sysfs::at(root, &options.device, options.port);
    let voice = Voice::default();
    if let Err(error) = guard::begin(Duration::from_millis(options.guard_ms), &options, &voice) {
        eprintln!("mrscope-write-probe: no thread: {error}");
        return ExitCode::FAILURE;
    }
    let mut gid = None;
    let answer = match run::run(&options, &sysfs, &mut gid) {
        Ok(report) => Answer::Ok(report),
        Err(error) => {
            let limits = Limits::at(root);
            let around = Surroundings { sysfs: &sysfs, limits: &limits, gid: gid.as_ref() };
            Answer::Error(failure::diagnose(&error, &options, &around))
        }
    };
    voice.say(&answer)
}

fn read_arguments() -> Result<ProbeOptions, OptionsError> {
    let mut arguments = Vec::new();
    for argument in std::env::args_os().skip(1) {
        let text = argument.into_string().map_err(|bytes| {
            OptionsError::Usage(format!("argument {}: expected UTF-8", bytes.display()))
        })?;
        arguments.push(text);
    }
    ProbeOptions::parse(arguments)
}
