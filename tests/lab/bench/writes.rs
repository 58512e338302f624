//! What the write probe measures, beside perftest on the same port: the same messages, as many of
//! them, as many outstanding, each one signalled.

use std::fs;
use std::process::{Child, Command, Stdio};

use super::ROUNDS;
use super::rounds::Rounds;
use crate::exporter::wait_for;
use crate::probe::{PROGRAM, Probe};
use crate::workload::number;

const MESSAGE_BYTES: u64 = 65536;
const WRITES: u64 = 1000;
const DEPTH: u64 = 16;
const SMALL_BYTES: u64 = 8;
/// Where perftest's two sides meet.
const PORT: u16 = 18515;
/// CPUs of the two sides, of which each polls without a pause; the probe is where the client is.
const SERVER_CPU: &str = "1";
const CLIENT_CPU: &str = "0";
/// Of RoCE v2, by IPv4.
const GID_INDEX: u64 = 1;

enum Contender {
    Perftest,
    Probe { mr_bytes: u64 },
}

const CONTENDERS: [(&str, Contender); 3] = [
    ("ib_write_bw, ib_write_lat", Contender::Perftest),
    ("write probe, MR of two messages", Contender::Probe { mr_bytes: 2 * MESSAGE_BYTES }),
    ("write probe, MR of 4 MiB", Contender::Probe { mr_bytes: 4 << 20 }),
];

const FIGURES: [&str; 2] = ["bandwidth, MB/s", "one small write, us, median"];

pub fn run() -> Result<(), String> {
    Rounds::run(ROUNDS, &CONTENDERS, &FIGURES, measure)?.print();
    println!(
        "ib_write_lat's is half of a write and its answer by another write; the probe's is a write \
         until its completion"
    );
    Ok(())
}

fn measure(contender: &Contender) -> Result<Vec<f64>, String> {
    match *contender {
        Contender::Perftest => {
            let gigabits = perftest(&format!(
                "ib_write_bw -s {MESSAGE_BYTES} -n {WRITES} -t {DEPTH} -Q 1 --report_gbits"
            ))?;
            let latency = perftest(&format!("ib_write_lat -s {SMALL_BYTES} -n {WRITES}"))?;
            // Columns behind bytes and iterations: peak, average; least, most, typical.
            Ok(vec![column(&gigabits, 3)? * 125.0, column(&latency, 4)?])
        }
        Contender::Probe { mr_bytes } => {
            let pinned = ["taskset", "-c", CLIENT_CPU];
            let line = format!(
                "--device rxe0 --gid-index {GID_INDEX} --mr-bytes {mr_bytes} \
                 --message {MESSAGE_BYTES} --count {WRITES} --depth {DEPTH} \
                 --latency-message {SMALL_BYTES} --latency-count {WRITES} \
                 --max-bytes 1073741824 --max-ms 60000 --guard-ms 60000"
            );
            let report = Probe::begin_by(&pinned, PROGRAM, &line)?.wait()?.report()?;
            if number(&report, "writes")? != WRITES as f64 {
                return Err(format!("not all writes: {report}"));
            }
            let bandwidth = number(&report, "bandwidth_bytes_per_second")? / 1e6;
            Ok(vec![bandwidth, number(&report, "latency_p50_ns")? / 1e3])
        }
    }
}

/// Runs both sides; returns the words of the client's one line of figures.
fn perftest(line: &str) -> Result<Vec<String>, String> {
    let mut server =
        Side(command(SERVER_CPU, line).stdout(Stdio::null()).spawn().map_err(|e| e.to_string())?);
    wait_for("the server", || Ok(listens(PORT)))?;
    let output =
        command(CLIENT_CPU, line).arg("127.0.0.1").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let figures = text
        .lines()
        .map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .find(|words| words.get(1).is_some_and(|word| *word == WRITES.to_string()));
    let ended = server.0.wait().map_err(|error| error.to_string())?;
    match figures {
        Some(figures) if ended.success() && output.status.success() => Ok(figures),
        _ => Err(format!("{line}: {text}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn command(cpu: &str, line: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", cpu]).args(line.split(' ')).args([
        "-F",
        "-d",
        "rxe0",
        "-x",
        &GID_INDEX.to_string(),
    ]);
    command.args(["-p", &PORT.to_string()]);
    command
}

/// A server, ended with its measurement.
struct Side(Child);

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// By the kernel's tables of sockets, where 0A is one that listens.
fn listens(port: u16) -> bool {
    let of = |table: &str| {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let end = format!(":{port:04X}");
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A")
        })
    };
    of("tcp") || of("tcp6")
}

fn column(words: &[String], at: usize) -> Result<f64, String> {
    let word = words.get(at).ok_or_else(|| format!("{words:?} without column {at}"))?;
    word.parse().map_err(|_| format!("{word}: expected a number"))
}
