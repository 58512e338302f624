//! The lab: truth tests in a guest with software RDMA, on each kernel of the list.
//!
//! Run on the host, this boots one guest per kernel and runs itself in it; run there, it goes
//! through the cases. Every figure is compared with one that mrscope had no part in.
// Figures are whole numbers and compared exactly; every case needs the words of cases.rs.
#![allow(clippy::float_cmp, clippy::wildcard_imports)]

mod bench;
mod boot;
mod cases;
mod exporter;
mod guest;
mod host;
mod kprobes;
mod matrix;
mod page;
mod probe;
mod probing;
mod rdma;
mod watch;
mod watched;
mod workload;

use std::process::ExitCode;

use boot::Boot;

fn main() -> ExitCode {
    use rustix::process::{Signal, set_parent_process_death_signal};
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        println!("lab: its end could not be tied to its parent's: {error}");
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = |word: &str| arguments.iter().any(|argument| argument == word);
    if arguments.first().is_some_and(|first| first == "--in-guest") {
        let kernel = arguments.get(1).map_or("", String::as_str);
        let Some(boot) = arguments.get(2).and_then(|word| Boot::of(word)) else {
            println!("lab: {:?} is no kind of guest", arguments.get(2));
            return ExitCode::FAILURE;
        };
        return guest::run(kernel, boot, arguments.get(3).map(String::as_str));
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).map(String::as_str);
    if asked("--bench-in-guest") {
        return verdict("bench", bench::run(filter).map(|()| true));
    }
    if asked("--bench") {
        return verdict("bench", bench_on_first_kernel(filter));
    }
    host::boot_all(filter)
}

/// What costs are told of, unless LAB_KERNELS names another.
const BENCH_KERNEL: &str = "6.1";

fn bench_on_first_kernel(table: Option<&str>) -> Result<bool, String> {
    let kernel = host::kernels_asked_for(&[BENCH_KERNEL]).into_iter().next().unwrap_or_default();
    host::build_c_programs()?;
    for (name, boot, _) in bench::tables(table)? {
        let mut guest = host::guest_of(&kernel, boot, None)?;
        let status = guest.args(["--bench-in-guest", name]).status();
        if !status.map_err(|error| error.to_string())?.success() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn verdict(what: &str, outcome: Result<bool, String>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{what}: {error}");
            ExitCode::FAILURE
        }
    }
}
