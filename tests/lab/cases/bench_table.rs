//! `mrscope bench`: that it has every row that the guest has the pages for, that its figures are
//! those of the calls that mrscope's own exporter saw, and that it leaves nothing behind.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::groups::Cgroup;
use super::write_probe::{free_pages, node_of_1g, nothing_is_held, pool_file, read};
use crate::boot::NODES;
use crate::cases::*;
use crate::exporter::{Exporter, signal, wait_for};
use crate::workload::{Workload, child_of, number, vm_pin};

const MIB: f64 = 1024.0 * 1024.0;
const SIZE: f64 = 8.0 * MIB;
/// The median of two is the half of their sum.
const ROUNDS: f64 = 2.0;
const ARGUMENTS: [&str; 5] = ["bench", "--size", "8MiB", "--rounds", "2"];

const MRSCOPE: &str = "target/release/mrscope";

/// A limit on locked memory that holds, is too low, and may be raised.
const LITTLE_MEMLOCK: [&str; 5] =
    ["prlimit", "--memlock=1048576:unlimited", "setpriv", "--bounding-set=-ipc_lock", "--"];

/// Another mrscope would write to the port by itself.
const QUIET: &[&str] = &["--no-collector.write_probe"];

/// Runs one to its end, by programs that become it; what it printed.
fn bench(starter: &[&str], arguments: &[&str]) -> Result<String, String> {
    let words = [starter, &[MRSCOPE], arguments].concat();
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", words[0]))?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    // Its progress is for terminals.
    if !output.status.success() || !said.is_empty() {
        return Err(format!("expected success and no errors: {}: {said}{out}", output.status));
    }
    Ok(out)
}

fn bench_json() -> Result<Value, String> {
    let json = bench(&[], &[&ARGUMENTS[..], &["--json"]].concat())?;
    serde_json::from_str(&json).map_err(|error| format!("{error}: {json}"))
}

fn list<'a>(outcome: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    outcome[key].as_array().ok_or_else(|| format!("no list {key} in {outcome}"))
}

/// `2M 0 true`: pages, node, touched.
fn names(outcome: &Value) -> Result<Vec<String>, String> {
    let word = |value: &Value| value.to_string().trim_matches('"').to_owned();
    let name = |row: &Value| ["pages", "numa_node", "touched"].map(|key| word(&row[key])).join(" ");
    Ok(list(outcome, "rows")?.iter().map(name).collect())
}

/// All rows that this guest has the memory for.
fn expected() -> Result<Vec<String>, String> {
    let base = format!("{}K", rustix::param::page_size() / 1024);
    let mut rows = Vec::new();
    for pages in [base.as_str(), "THP"] {
        for node in 0..NODES {
            rows.extend([true, false].map(|touched| format!("{pages} {node} {touched}")));
        }
    }
    rows.extend((0..NODES).map(|node| format!("2M {node} true")));
    rows.push(format!("1G {} true", node_of_1g()?));
    Ok(rows)
}

fn same(what: &str, seen: &[String], expected: &[String]) -> Outcome {
    if seen == expected { Ok(()) } else { Err(format!("{what}: {seen:?}, expected {expected:?}")) }
}

pub fn bench_prints_all_rows_with_figures_of_calls_that_were_made() -> Outcome {
    let free = free_pages()?;
    let expected = expected()?;
    let exporter = Exporter::start(QUIET)?;
    let before = exporter.page()?;
    let begun = Instant::now();
    let outcome = bench_json()?;
    let took = begun.elapsed().as_secs_f64();
    let after = exporter.page()?;
    nothing_is_held(&free)?;
    same("rows", &names(&outcome)?, &expected)?;

    let calls = expected.len() as f64 * ROUNDS;
    let moved = |series: &str| after.or_zero(series) - before.or_zero(series);
    equal("registrations", moved(REGISTRATIONS), calls)?;
    equal("deregistrations", moved(DEREGISTRATIONS), calls)?;
    let bytes = "mrscope_mr_registered_bytes_total{device=\"rxe0\",kind=\"host\"}";
    equal("registered bytes", moved(bytes), calls * SIZE)?;
    for (series, key) in
        [(REGISTRATION_SECONDS, "registration_ns"), (DEREGISTRATION_SECONDS, "deregistration_ns")]
    {
        let mut told = 0.0;
        for row in list(&outcome, "rows")? {
            told += number(&row[key], "median")? * ROUNDS * 1e-9;
        }
        // What the kernel took of all calls is a part of what they took, and that of all the time.
        let seen = moved(series);
        if !(seen > 0.0 && seen <= told && told <= took) {
            return Err(format!(
                "{key}: {seen} s by mrscope, {told} s by the bench, {took} in all"
            ));
        }
    }
    for row in list(&outcome, "rows")? {
        row_is_whole(row).map_err(|error| format!("{error} in {row}"))?;
    }
    exporter.stop().map(|_| ())?;
    table_is_whole(&bench(&LITTLE_MEMLOCK, &ARGUMENTS)?, &expected)?;
    nothing_is_held(&free)
}

/// Figures that fit each other, by this case's own arithmetic.
fn row_is_whole(row: &Value) -> Outcome {
    equal("rounds", number(row, "rounds")?, ROUNDS)?;
    for key in [
        "registration_ns",
        "deregistration_ns",
        "bandwidth_bytes_per_second",
        "latency_p50_ns",
        "latency_p99_ns",
    ] {
        let [least, median, most] = ["least", "median", "most"].map(|of| number(&row[key], of));
        let (least, median, most) = (least?, median?, most?);
        let middle = f64::midpoint(least, most);
        if least <= 0.0 || (median - middle).abs() > 1e-6 * middle {
            return Err(format!("{key}: {median} of {least} and {most}"));
        }
    }
    let registration = number(&row["registration_ns"], "median")?;
    let per_gib = registration / 1e6 / (SIZE / 1024.0 / MIB);
    let rate = read("/sys/class/infiniband/rxe0/ports/1/rate")?;
    let rate = rate.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    let rate = rate.ok_or("no rate of the port")? * 125e6;
    let share = number(&row["bandwidth_bytes_per_second"], "median")? / rate;
    for (key, expected) in [("registration_ms_per_gib", per_gib), ("bandwidth_share", share)] {
        let seen = number(row, key)?;
        if (seen / expected - 1.0).abs() > 1e-9 {
            return Err(format!("{key}: {seen}, expected {expected}"));
        }
    }
    // No guest of this machine's kind counts them.
    if row["tlb_misses_per_access"].is_null() { Ok(()) } else { Err("TLB misses".to_owned()) }
}

/// The table for people: the same rows, with figures wherever the JSON has some.
fn table_is_whole(text: &str, expected: &[String]) -> Outcome {
    let rows = text.lines().skip_while(|line| !line.starts_with("pages")).skip(2);
    let mut names = Vec::new();
    for line in rows.take_while(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [pages, node, place, memory, figures @ ..] = &words[..] else {
            return Err(format!("a row of {} words: {line}", words.len()));
        };
        names.push(format!("{pages} {node} {}", *memory == "touched"));
        let numbers: Vec<Option<f64>> = figures.iter().map(|word| word.parse().ok()).collect();
        let there: Vec<bool> = numbers.iter().map(Option::is_some).collect();
        // Soft RoCE tells no node; nobody counts TLB misses.
        if *place != "-" || there != [true, true, true, false, true, true, true, true] {
            return Err(format!("figures that are missing: {line}"));
        }
    }
    same("rows of the table", &names, expected)?;
    for words in [
        "rxe0 port 1 of ",
        "\nLeft out:\n  2M untouched: ",
        "\n  rxe0 does not tell its node",
        "\n  TLB misses were not counted: this CPU has no such event",
        "\nWhat the rows suggest:\n  Nothing: ",
    ] {
        if !text.contains(words) {
            return Err(format!("no {words:?} in {text}"));
        }
    }
    Ok(())
}

/// Node 1 has a page less of 2 MiB than are needed, until this is dropped.
struct OneShort(String, String);

impl OneShort {
    fn make() -> Result<Self, String> {
        let path = pool_file(1, "hugepages-2048kB", "nr_hugepages");
        let was = read(&path)?;
        fs::write(&path, "3").map_err(|error| format!("{path}: {error}"))?;
        Ok(Self(path, was.trim().to_owned()))
    }
}

impl Drop for OneShort {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, &self.1);
    }
}

pub fn a_bench_leaves_out_rows_whose_pages_others_have() -> Outcome {
    let free = free_pages()?;
    let node_1g = node_of_1g()?;
    let mut expected = expected()?;
    expected.retain(|row| row != "2M 1 true" && !row.starts_with("1G"));
    let outcome = {
        let _short = OneShort::make()?;
        let mut workload = Workload::start()?;
        workload.ask(&format!("map size=1G pages=1g node={node_1g}"))?;
        let outcome = bench_json()?;
        workload.end()?;
        outcome
    };
    same("rows", &names(&outcome)?, &expected)?;
    let left_out = list(&outcome, "left_out")?;
    for (what, why) in [
        ("2M on node 1".to_owned(), "3 of 4 such pages are free there; "),
        (format!("1G on node {node_1g}"), "0 of 1 such pages are free there; "),
    ] {
        let told = |it: &&Value| it["what"] == what.as_str();
        let told = left_out.iter().find(told).and_then(|it| it["why"].as_str());
        if !told.is_some_and(|told| told.starts_with(why)) {
            return Err(format!("{what}: {told:?}, expected {why:?}"));
        }
    }
    nothing_is_held(&free)
}

/// A bench that runs, ended with its case.
struct Running(Child);

impl Running {
    /// Its child has an MR, and is frozen: by itself it ends no more. (One that is stopped would be
    /// ended by the kernel, as nobody is left who could continue it.)
    fn begin(frozen: &Cgroup) -> Result<Self, String> {
        let mut command = Command::new(MRSCOPE);
        command.args(["bench", "--size", "16MiB", "--rounds", "1000", "--json"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = Self(child.map_err(|error| format!("mrscope: {error}"))?);
        let pid = child.0.id();
        let file = |name: &str| format!("/sys/fs/cgroup/{}/cgroup.{name}", frozen.0);
        let set = |name: &str, text: &str| {
            fs::write(file(name), text).map_err(|error| format!("{}: {error}", file(name)))
        };
        let holds = |probe| vm_pin(probe).is_ok_and(|bytes| bytes == 2.0 * SIZE);
        wait_for("its child's MR", || {
            // Between two children it has none, and one may be over before it is frozen.
            set("freeze", "0")?;
            let probe = child_of(pid)?;
            if !holds(probe) {
                return Ok(false);
            }
            set("procs", &probe.to_string())?;
            set("freeze", "1")?;
            wait_for("ice", || Ok(!holds(probe) || read(&file("events"))?.contains("frozen 1")))?;
            Ok(holds(probe))
        })?;
        Ok(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn a_bench_that_is_stopped_or_killed_gives_all_back() -> Outcome {
    let free = free_pages()?;
    let frozen = Cgroup::make("lab_bench")?;
    for name in ["TERM", "INT", "KILL"] {
        let mut running = Running::begin(&frozen)?;
        signal(running.0.id(), name)?;
        let status = running.0.wait().map_err(|error| error.to_string())?;
        let code = if name == "KILL" { None } else { Some(1) };
        if status.code() != code {
            return Err(format!("{name}: it ended with {status}"));
        }
        // Its child's end is told to nobody where it was killed itself.
        wait_for("all to be given back", || nothing_is_held(&free).map(|()| true))
            .map_err(|error| format!("{name}: {error}"))?;
        if name == "KILL" {
            continue;
        }
        let mut json = String::new();
        let out = running.0.stdout.as_mut().ok_or("no output")?;
        out.read_to_string(&mut json).map_err(|error| error.to_string())?;
        let outcome: Value = serde_json::from_str(&json).map_err(|e| format!("{e}: {json}"))?;
        let notes = outcome["notes"].to_string();
        if outcome["complete"] != false || !notes.contains("stopped in round ") {
            return Err(format!("{name}: {outcome}"));
        }
    }
    Ok(())
}

pub fn a_bench_of_what_is_not_there_says_what_there_is() -> Outcome {
    for (arguments, said) in [
        (&["--device", "rxe9"][..], "no RDMA device is called \"rxe9\", expected one of rxe0"),
        (&["--device", "rxe0", "--port", "2"], "rxe0 has no port 2, expected one of 1"),
    ] {
        let output = Command::new(MRSCOPE).arg("bench").args(arguments).output();
        let output = output.map_err(|error| format!("mrscope: {error}"))?;
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = format!("mrscope: {said}\n");
        if output.status.code() != Some(1) || !output.stdout.is_empty() || line != expected {
            return Err(format!("{output:?}, expected {expected:?}"));
        }
    }
    Ok(())
}
