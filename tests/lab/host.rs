//! The side that runs on the host: boots guests, as many at once as it has CPUs for, and adds up
//! what they say.

use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread::{self, Scope};
use std::time::Instant;

use crate::boot::{Boot, NODES};
use crate::guest;
use crate::matrix::{KERNELS, USUAL, What, cannot};
use crate::watched::{self, Told, Watched};

/// A guest that takes longer hangs; two at a time, on a machine that has other work.
const GUEST_SECONDS: &str = "1800";

/// What guest.sh gives a guest unless it is told otherwise.
const GUEST_BYTES: u64 = 4 << 30;

/// Exit status of module.sh where there are no headers to build it with.
const NO_HEADERS: i32 = 3;

/// Exit status of guest.sh when all went well but for a warning of the kernel.
const WARNED: i32 = 126;

/// A kernel that was fetched, with the module that was built for it.
struct Kernel {
    series: String,
    folder: String,
    module: Option<String>,
}

/// One guest to boot.
struct Job<'a> {
    kernel: &'a Kernel,
    kind: Boot,
    filter: Option<&'a str>,
    cases: usize,
}

/// What came of one.
#[derive(Default)]
struct Report {
    kernel: String,
    kind: &'static str,
    boot_seconds: f64,
    case_seconds: f64,
    passed: u32,
    failed: u32,
    /// Lines of each that failed, for the end of all output, where they are looked for first.
    failures: Vec<String>,
    watched: Vec<Watched>,
}

/// Boots a guest of each kind on each kernel, and closes with the sum of what their cases said.
pub fn boot_all(filter: Option<&str>) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    let mut failures = Vec::new();
    let mut fail = |what: &str, error: String| {
        failures.push(told(what, &error));
        failed += 1;
    };
    let mut kernels = Vec::new();
    let ready = build_c_programs().and_then(|()| guest::every_row_has_its_case());
    let asked = if ready.is_ok() { kernels_asked_for(&USUAL) } else { Vec::new() };
    let filter = filter.or((asked.len() == KERNELS.len()).then_some(guest::EVERY));
    if let Err(error) = ready {
        fail("lab", error);
    }
    for series in asked {
        match prepare(&series, filter) {
            Ok(Some(kernel)) => kernels.push(kernel),
            Ok(None) => {}
            Err(error) => fail(&series, error),
        }
    }
    let reports = run_all(jobs(&kernels, filter));
    let mut told = Told::new();
    for report in &reports {
        passed += report.passed;
        if !report.watched.is_empty() {
            told.insert(report.kernel.clone(), report.watched.clone());
        }
    }
    if let Err(error) = watched::judge(&told) {
        fail("lab", error);
    }
    failed += reports.iter().map(|report| report.failed).sum::<u32>();
    failures.extend(reports.iter().flat_map(|report| report.failures.clone()));
    print_times(reports);
    if !failures.is_empty() {
        println!("failures:\n{}\n", failures.join("\n"));
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Says at once what went wrong outside the cases; the line, for the end.
fn told(what: &str, error: &str) -> String {
    let line = format!("{what}: FAILED: {error}");
    println!("{line}");
    line
}

/// Kernels to boot, in order.
pub fn kernels_asked_for(usual: &[&str]) -> Vec<String> {
    let asked = std::env::var("LAB_KERNELS").unwrap_or_default();
    let all: Vec<&str> = match asked.trim() {
        "" => usual.to_vec(),
        "all" => KERNELS.to_vec(),
        some => some.split_whitespace().collect(),
    };
    all.into_iter().map(str::to_owned).collect()
}

/// Fetches the kernel and builds its module; nothing where no case is wanted.
fn prepare(series: &str, filter: Option<&str>) -> Result<Option<Kernel>, String> {
    if Boot::ALL.iter().all(|kind| guest::count(series, *kind, filter) == 0) {
        return Ok(None);
    }
    let folder = tool(&["tests/lab/kernel.sh", series])?.trim().to_owned();
    let output = output(&["tests/lab/module.sh", &folder])?;
    let module = match output.status.code() {
        Some(0) => Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Some(NO_HEADERS) => None,
        _ => return Err(format!("module.sh ended with {}", output.status)),
    };
    match (&module, cannot(series, What::Module)) {
        (Some(_), Some(why)) => {
            Err(format!("its module can be built: take its row out of matrix.rs ({why})"))
        }
        (None, None) => {
            Err("its module cannot be built, and matrix.rs has no row of it".to_owned())
        }
        _ => Ok(Some(Kernel { series: series.to_owned(), folder, module })),
    }
}

/// Those that share the machine first, of them the longest; then those that have it alone.
fn jobs<'a>(kernels: &'a [Kernel], filter: Option<&'a str>) -> Vec<Job<'a>> {
    let mut jobs: Vec<_> = kernels
        .iter()
        .flat_map(|kernel| Boot::ALL.map(|kind| (kernel, kind)))
        .map(|(kernel, kind)| Job {
            kernel,
            kind,
            filter,
            cases: guest::count(&kernel.series, kind, filter),
        })
        .filter(|job| job.cases > 0)
        .collect();
    jobs.sort_by_key(|job| (job.kind.weight(), std::cmp::Reverse(job.cases)));
    jobs
}

/// Runs as many guests at once as there are CPUs and memory for, and at least one.
fn run_all(jobs: Vec<Job<'_>>) -> Vec<Report> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let guests = available_bytes() / GUEST_BYTES;
    let (mut busy, mut running) = (0, 0);
    let mut reports = Vec::new();
    let (done, ended) = mpsc::channel::<(usize, Report)>();
    let mut wait = |busy: &mut usize, running: &mut u64| {
        if let Ok((weight, report)) = ended.recv() {
            *busy -= weight;
            *running -= 1;
            reports.push(report);
        }
    };
    thread::scope(|scope| {
        for job in jobs {
            let weight = job.kind.weight();
            while running > 0 && (busy + weight > cpus || running >= guests) {
                wait(&mut busy, &mut running);
            }
            busy += weight;
            running += 1;
            let done = done.clone();
            // The guest ends with the thread that started it, which therefore waits for it.
            scope.spawn(move || {
                let report = catch_unwind(AssertUnwindSafe(|| run_job(scope, &job)));
                // It panics when nobody reads what it prints: then, too, its end is awaited.
                let report = report.unwrap_or_else(|_| Report { failed: 1, ..Report::default() });
                let _ = done.send((weight, report));
            });
        }
        while running > 0 {
            wait(&mut busy, &mut running);
        }
    });
    reports
}

/// Memory that can be had without swapping, by the kernel's own estimate.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or(0, |kilobytes| kilobytes * 1024)
}

fn run_job<'scope>(scope: &'scope Scope<'scope, '_>, job: &Job<'_>) -> Report {
    let name = format!("{} {}", job.kernel.series, job.kind.word());
    let mut report =
        Report { kernel: job.kernel.series.clone(), kind: job.kind.word(), ..Report::default() };
    let mut outcome = listen(scope, job, &name, &mut report);
    // QEMU's CPUs that run at the same time may stumble over the breakpoint by which a kernel changes
    // its code as it boots. Nothing of ours has run then.
    if let (Err(error), Boot::Parallel, 0.0) = (&outcome, job.kind, report.boot_seconds) {
        println!("{name}: it never came up, and is booted once more: {error}");
        outcome = listen(scope, job, &name, &mut report);
    }
    if let Err(error) = outcome {
        report.failures.push(told(&name, &error));
        report.failed += 1;
    }
    report
}

/// Boots the guest and takes in all that it says, each line under the guest's name.
fn listen<'scope>(
    scope: &'scope Scope<'scope, '_>,
    job: &Job<'_>,
    name: &str,
    report: &mut Report,
) -> Result<(), String> {
    let begun = Instant::now();
    let mut running = guest_of(&job.kernel.folder, job.kind, job.kernel.module.as_deref())?
        .args(["--in-guest", &job.kernel.series, job.kind.word()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .args(job.filter)
        .spawn()
        .map_err(|error| format!("guest.sh: {error}"))?;
    if let Some(errors) = running.stderr.take() {
        let name = name.to_owned();
        scope.spawn(move || {
            for line in lines(errors) {
                eprintln!("{name}: {line}");
            }
        });
    }
    let closing = hear(&mut running, name, begun, report);
    let status = running.wait().map_err(|error| error.to_string())?;
    match (closing, status.code()) {
        (Some((passed, failed)), Some(code @ (0 | 1 | WARNED))) => {
            (report.passed, report.failed) = (passed, failed);
            if passed + failed != job.cases as u32 {
                let ran = passed + failed;
                return Err(format!("{ran} cases were run, {} were to be", job.cases));
            }
            if code == WARNED { Err("the kernel logged a warning".to_owned()) } else { Ok(()) }
        }
        (_, status) => Err(format!("the guest ended with status {status:?} before its cases did")),
    }
}

/// What it says on its standard output, to the end; passed and failed of its closing line.
fn hear(
    running: &mut Child,
    name: &str,
    begun: Instant,
    report: &mut Report,
) -> Option<(u32, u32)> {
    let mut closing = None;
    let (mut up, mut why) = (begun, false);
    for line in running.stdout.take().into_iter().flat_map(lines) {
        if line == guest::UP {
            up = Instant::now();
            report.boot_seconds = (up - begun).as_secs_f64();
            continue;
        }
        if let Some(watched) = Watched::of(&line) {
            report.watched.push(watched);
            continue;
        }
        closing = closing_line(&line).or(closing);
        report.case_seconds = up.elapsed().as_secs_f64();
        println!("{name}: {line}");
        // What follows the verdict, up to what the next case says, tells why.
        let ends = ["test ", "  mrscope: ", guest::CLOSING].iter().any(|it| line.starts_with(it));
        why = if ends { line.contains(guest::FAILED) } else { why };
        if why {
            report.failures.push(format!("{name}: {line}"));
        }
    }
    closing
}

/// Lines of a guest, whatever its bytes: one that is not UTF-8 must not end the run.
fn lines(from: impl Read) -> impl Iterator<Item = String> {
    BufReader::new(from)
        .split(b'\n')
        .map_while(Result::ok)
        .map(|line| String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned())
}

fn closing_line(line: &str) -> Option<(u32, u32)> {
    let mut words = line.strip_prefix(guest::CLOSING)?.split_whitespace();
    let passed = words.next()?.parse().ok()?;
    let failed = words.nth(1)?.parse().ok()?;
    Some((passed, failed))
}

fn print_times(mut reports: Vec<Report>) {
    let place = |report: &Report| KERNELS.iter().position(|kernel| *kernel == report.kernel);
    reports.sort_by_key(place);
    println!(
        "\n{:<8}{:<16}{:>8}{:>10}{:>8}{:>8}",
        "kernel", "guest", "boot, s", "cases, s", "cases", "failed"
    );
    for report in reports {
        println!(
            "{:<8}{:<16}{:>8.1}{:>10.1}{:>8}{:>8}",
            report.kernel,
            report.kind,
            report.boot_seconds,
            report.case_seconds,
            report.passed + report.failed,
            report.failed
        );
    }
    println!();
}

/// guest.sh with this program as its command; arguments of the program may follow.
pub fn guest_of(kernel: &str, kind: Boot, module: Option<&str>) -> Result<Command, String> {
    let myself = std::env::current_exe().map_err(|error| error.to_string())?;
    // The guest ends with this program, and this program with cargo.
    let mut command = Command::new("setpriv");
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["--pdeathsig", "TERM", "--", "tests/lab/guest.sh"])
        .args(["--kernel", kernel, "--timeout", GUEST_SECONDS, "--append", &kind.append()])
        .args(["--nodes", &NODES.to_string()])
        .args((kind == Boot::Parallel).then_some("--parallel"));
    if let Some(module) = module {
        command.args(["--env", &format!("LAB_MODULE={module}")]);
    }
    if let Ok(seed) = std::env::var("MRSCOPE_SEED") {
        command.args(["--env", &format!("MRSCOPE_SEED={seed}")]);
    }
    command.arg("--").arg(myself);
    Ok(command)
}

fn output(words: &[&str]) -> Result<std::process::Output, String> {
    Command::new(words[0])
        .args(&words[1..])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}", words[0]))
}

fn tool(words: &[&str]) -> Result<String, String> {
    let output = output(words)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{words:?} ended with {}", output.status))
    }
}

/// The workload, the maker of queue pins and random operations: C, so that they share nothing with what they judge.
pub fn build_c_programs() -> Result<(), String> {
    tool(&["mkdir", "-p", "target/lab"])?;
    let flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"];
    let workload = [
        "tests/lab/workload.c",
        "tests/lab/workload_reply.c",
        "tests/lab/workload_mr.c",
        "tests/lab/workload_raw.c",
        "tests/lab/workload_churn.c",
        "tests/lab/workload_cycle.c",
        "tests/lab/workload_devices.c",
        "tests/lab/workload_os.c",
        "tests/lab/workload_lives.c",
        "tests/lab/workload_lock.c",
        "tests/lab/workload_map.c",
        "tests/lab/workload_time.c",
        "tests/lab/workload_stall.c",
    ];
    let tail = ["-libverbs", "-lpthread", "-o", "target/lab/workload"];
    tool(&[&["gcc"], &flags[..], &workload[..], &tail[..]].concat())?;
    let pinner = ["tests/lab/queue_pin.c", "-o", "target/lab/queue_pin"];
    tool(&[&["gcc"], &flags[..], &pinner[..]].concat())?;
    let random = [
        "tests/lab/random.c",
        "tests/lab/random_account.c",
        "tests/lab/random_solo.c",
        "tests/lab/random_process.c",
        "tests/lab/random_verbs.c",
        "-o",
        "target/lab/random",
    ];
    tool(&[&["gcc"], &flags[..], &random[..]].concat())?;
    Ok(())
}
