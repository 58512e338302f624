//! mrscope with its write probe on: what it is told, whom it has started, and what its page says.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::cases::Outcome;
use crate::exporter::{Exporter, wait_for};
use crate::page::Page;
use crate::probe::{MR_BYTES, PROGRAM};
use crate::workload::{stat_field, vm_pin};

const FILE: &str = "/run/mrscope-probing.yaml";

/// Its first round is the only one.
pub const ONCE: &str = "interval: 1d";
pub const EVERY_SECOND: &str = "interval: 1s";

/// Starts mrscope with these keys of the write probe's.
pub fn start(keys: &[&str]) -> Result<Exporter, String> {
    start_by(&[], keys, &[])
}

/// The same, by a program that starts it, with more arguments.
pub fn start_by(starter: &[&str], keys: &[&str], more: &[&str]) -> Result<Exporter, String> {
    Exporter::start_by(starter, &[&arguments(keys)?[..], more].concat())
}

/// What mrscope is started with so that it has these keys.
pub fn arguments(keys: &[&str]) -> Result<[&'static str; 3], String> {
    let text = keys.iter().fold("write_probe:\n".to_owned(), |all, key| all + "  " + key + "\n");
    write(FILE, &text)?;
    Ok(["--config.file", FILE, "--collector.write_probe"])
}

fn write(path: &str, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("{path}: {error}"))
}

/// A shell script in place of the probe: the key that names it.
pub fn script(name: &str, text: &str) -> Result<String, String> {
    let path = format!("/run/{name}");
    write(&path, &format!("#!/bin/sh\n{text}\n"))?;
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&path, all).map_err(|error| format!("{path}: {error}"))?;
    Ok(format!("program: {path}"))
}

/// The probe itself, with these arguments in place of those that mrscope gives it.
pub fn probe_with(arguments: &str) -> Result<String, String> {
    let program = fs::canonicalize(PROGRAM).map_err(|error| format!("{PROGRAM}: {error}"))?;
    let replaced: Vec<_> = arguments.split(' ').filter(|word| word.starts_with("--")).collect();
    let text = format!(
        "left_out=\n\
         for word; do\n\
         shift\n\
         case $left_out$word in\n\
         {}) left_out== ;;\n\
         =*) left_out= ;;\n\
         *) set -- \"$@\" \"$word\" ;;\n\
         esac\n\
         done\n\
         exec {} \"$@\" {arguments}",
        replaced.join(" | "),
        program.display(),
    );
    script("lab-probe", &text)
}

/// Children of all threads of a process.
pub fn children(pid: u32) -> Result<Vec<u32>, String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for task in tasks.flatten() {
        // A thread may have ended.
        let of_thread = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(of_thread.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    Ok(all)
}

/// Waits until a probe of that mrscope has its MR.
pub fn child_with_mr(exporter: &Exporter) -> Result<u32, String> {
    let mut found = 0;
    wait_for("a probe with its MR", || {
        // One that ends meanwhile has no VmPin.
        let with_mr = |child: &u32| vm_pin(*child) == Ok(MR_BYTES);
        let child = children(exporter.pid())?.into_iter().find(with_mr);
        found = child.unwrap_or_default();
        Ok(child.is_some())
    })?;
    Ok(found)
}

/// The same, and stops it while it has it: until it is told to go on, nothing else is measured.
pub fn stopped_with_mr(exporter: &Exporter) -> Result<u32, String> {
    let mut stopped = 0;
    wait_for("a probe that is stopped with its MR", || {
        stopped = child_with_mr(exporter)?;
        send(stopped, Signal::STOP)?;
        wait_for("its stop, or its end", || {
            Ok(!matches!(stat_field(stopped, 3).as_deref(), Ok("R" | "S" | "D")))
        })?;
        // It may have given it back in the meantime.
        let holds = vm_pin(stopped) == Ok(MR_BYTES);
        if !holds {
            send(stopped, Signal::CONT)?;
        }
        Ok(holds)
    })?;
    Ok(stopped)
}

pub fn no_child(exporter: &Exporter) -> Outcome {
    let children = children(exporter.pid())?;
    if children.is_empty() { Ok(()) } else { Err(format!("its children {children:?} are there")) }
}

/// Neither alive nor waiting for its parent to take note.
pub fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

pub fn send(pid: u32, signal: Signal) -> Outcome {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no pid")?;
    kill_process(pid, signal).map_err(|error| format!("{signal:?}: {error}"))
}

/// Runs of all ports of a device that came to this.
pub fn runs(page: &Page, device: &str, result: &str) -> f64 {
    results(page, device).into_iter().filter(|(word, _)| word == result).map(|(_, it)| it).sum()
}

/// All that came of a device's runs, what never did left out.
pub fn results(page: &Page, device: &str) -> Vec<(String, f64)> {
    let prefix = format!("mrscope_write_probe_runs_total{{device=\"{device}\",");
    let word = |series: &str| {
        let (_, rest) = series.split_once("result=\"")?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let all = page.starting(&prefix).filter(|(_, count)| *count > 0.0);
    all.filter_map(|(series, count)| Some((word(series)?, count))).collect()
}

/// Waits for that many runs of a device that came to this.
pub fn wait_for_runs(exporter: &Exporter, device: &str, result: &str, count: f64) -> Outcome {
    wait_for(&format!("{count} runs of {device} that are {result}"), || {
        let page = exporter.page()?;
        let seen = runs(&page, device, result);
        if seen >= count { Ok(true) } else { Err(format!("{:?}", results(&page, device))) }
    })
}

/// Series of a device's port that are not told by page size.
pub fn of_port(metric: &str, device: &str) -> String {
    format!("mrscope_write_probe_{metric}{{device=\"{device}\",port=\"1\"}}")
}

/// What was measured on pages of that size: none, or one figure whatever its node.
pub fn measured(page: &Page, metric: &str, device: &str, page_bytes: f64) -> Option<f64> {
    let prefix = format!("mrscope_write_probe_{metric}{{device=\"{device}\",");
    let size = format!("page_size=\"{page_bytes}\"");
    page.starting(&prefix).find(|(series, _)| series.contains(&size)).map(|(_, value)| value)
}

/// The collector said that once, and not again at each round.
pub fn says_once(exporter: &Exporter, words: &[&str]) -> Outcome {
    let words = [&["collector write_probe: "], words].concat();
    exporter.says(&words)?;
    let log = exporter.log();
    let lines = log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    if lines == 1 { Ok(()) } else { Err(format!("{lines} lines of the log have {words:?}")) }
}
