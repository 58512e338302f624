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
mod kprobes;
mod page;
mod watch;
mod workload;

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use boot::Boot;

/// Kernels that are booted unless LAB_KERNELS names others.
const KERNELS: &str = "6.1 5.10";
/// A guest that takes longer hangs.
const GUEST_SECONDS: &str = "900";

fn main() -> ExitCode {
    use rustix::process::{Signal, set_parent_process_death_signal};
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        println!("lab: its end could not be tied to its parent's: {error}");
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--in-guest") {
        let kernel = arguments.get(1).map_or("", String::as_str);
        let Some(boot) = arguments.get(2).and_then(|word| Boot::of(word)) else {
            println!("lab: {:?} is no kind of guest", arguments.get(2));
            return ExitCode::FAILURE;
        };
        return cases::run(kernel, boot, arguments.get(3).map(String::as_str));
    }
    if arguments.iter().any(|argument| argument == "--bench-in-guest") {
        return match bench::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("bench: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if arguments.iter().any(|argument| argument == "--bench") {
        return bench_on_first_kernel();
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    boot_all(filter.map(String::as_str))
}

/// Boots each kernel, adds up what its cases said, and closes with the sum.
fn boot_all(filter: Option<&str>) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    for kernel in kernels() {
        for kind in Boot::ALL {
            match boot(&kernel, kind, filter) {
                Ok((good, bad)) => {
                    passed += good;
                    failed += bad;
                }
                Err(error) => {
                    println!("lab {kernel}: {error}");
                    failed += 1;
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Kernels to boot, in order.
fn kernels() -> Vec<String> {
    let kernels = std::env::var("LAB_KERNELS").unwrap_or_else(|_| KERNELS.to_owned());
    kernels.split_whitespace().map(str::to_owned).collect()
}

fn bench_on_first_kernel() -> ExitCode {
    let kernel = kernels().into_iter().next().unwrap_or_default();
    let run = || -> Result<bool, String> {
        build_c_programs()?;
        let status = guest(&kernel, Boot::Usual, None)?.arg("--bench-in-guest").status();
        Ok(status.map_err(|error| error.to_string())?.success())
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// guest.sh with this program as its command; arguments of the program may follow.
fn guest(kernel: &str, kind: Boot, module: Option<&str>) -> Result<Command, String> {
    let myself = std::env::current_exe().map_err(|error| error.to_string())?;
    // The guest ends with this program, and this program with cargo.
    let mut command = Command::new("setpriv");
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["--pdeathsig", "TERM", "--", "tests/lab/guest.sh"])
        .args(["--kernel", kernel, "--timeout", GUEST_SECONDS, "--append", kind.append()])
        .args((kind == Boot::Parallel).then_some("--parallel"))
        .stderr(Stdio::inherit());
    if let Some(module) = module {
        command.args(["--env", &format!("LAB_MODULE={module}")]);
    }
    command.arg("--").arg(myself);
    Ok(command)
}

fn boot(kernel: &str, kind: Boot, filter: Option<&str>) -> Result<(u32, u32), String> {
    let module = tool(&["tests/lab/module.sh", kernel])?;
    build_c_programs()?;
    if !cases::any(kernel, kind, filter) {
        return Ok((0, 0));
    }
    let mut running = guest(kernel, kind, Some(module.trim()))?
        .args(["--in-guest", kernel, kind.word()])
        .args(filter)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("guest.sh: {error}"))?;
    let mut closing = None;
    for line in running.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(|error| error.to_string())?;
        closing = closing_line(&line).or(closing);
        println!("{line}");
    }
    let status = running.wait().map_err(|error| error.to_string())?;
    match (closing, status.code()) {
        (Some((passed, failed)), Some(0 | 1)) => Ok((passed, failed)),
        (Some((passed, failed)), Some(126)) => {
            println!("lab {kernel}: the kernel logged a warning");
            Ok((passed, failed + 1))
        }
        (_, status) => Err(format!("the guest ended with status {status:?} before its cases did")),
    }
}

fn closing_line(line: &str) -> Option<(u32, u32)> {
    let mut words = line.strip_prefix("guest: ")?.split_whitespace();
    let passed = words.next()?.parse().ok()?;
    let failed = words.nth(1)?.parse().ok()?;
    Some((passed, failed))
}

fn tool(words: &[&str]) -> Result<String, String> {
    let output = Command::new(words[0])
        .args(&words[1..])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}", words[0]))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{words:?} ended with {}", output.status))
    }
}

/// The workload and the maker of queue pins: C, so that they share nothing with what they judge.
fn build_c_programs() -> Result<(), String> {
    tool(&["mkdir", "-p", "target/lab"])?;
    let flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"];
    let workload = [
        "tests/lab/workload.c",
        "tests/lab/workload_reply.c",
        "tests/lab/workload_mr.c",
        "tests/lab/workload_raw.c",
        "tests/lab/workload_churn.c",
        "tests/lab/workload_os.c",
        "tests/lab/workload_lives.c",
    ];
    let tail = ["-libverbs", "-lpthread", "-o", "target/lab/workload"];
    tool(&[&["gcc"], &flags[..], &workload[..], &tail[..]].concat())?;
    let pinner = ["tests/lab/queue_pin.c", "-o", "target/lab/queue_pin"];
    tool(&[&["gcc"], &flags[..], &pinner[..]].concat())?;
    Ok(())
}
