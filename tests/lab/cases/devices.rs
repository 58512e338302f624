//! Devices and modules that come and go while mrscope runs and programs register.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::lifecycle::WithoutRdma;
use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::kprobes::{self, Hits};
use crate::page::Page;
use crate::watch::Watch;
use crate::workload::{Workload, number, vm_pin};

pub(super) fn run(line: &str) -> Outcome {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output().map_err(|e| format!("{line}: {e}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// A program that registers and deregisters on rxe0 until it is ended.
struct Churn {
    over: Arc<AtomicBool>,
    caller: JoinHandle<Result<f64, String>>,
}

impl Churn {
    fn begin() -> Result<Self, String> {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let mut workload = Workload::start()?;
        let caller = std::thread::spawn(move || {
            let mut registered = 0.0;
            while !told.load(Ordering::Relaxed) {
                let reply = workload.ask("churn threads=2 rounds=100 size=8192")?;
                registered += number(&reply, "registered")?;
            }
            workload.end()?;
            Ok(registered)
        });
        Ok(Self { over, caller })
    }

    /// How often it has registered, by its own count.
    fn end(self) -> Result<f64, String> {
        self.over.store(true, Ordering::Relaxed);
        self.caller.join().map_err(|_| "the churn panicked")?
    }
}

/// Where the kernel has the file of an RDMA device's verbs, and the device's name in it.
fn verbs_of(device: &str) -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir("/sys/class/infiniband_verbs").ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| {
        std::fs::read_to_string(path.join("ibdev")).is_ok_and(|name| name.trim() == device)
    })
}

pub(super) fn add_device(name: &str, interface: &str) -> Outcome {
    run(&format!("ip link add {interface} type dummy"))?;
    run(&format!("ip link set {interface} up"))?;
    run(&format!("rdma link add {name} type rxe netdev {interface}"))?;
    wait_for("the device's file", || {
        let node = verbs_of(name).and_then(|at| Some(at.file_name()?.to_owned()));
        Ok(node.is_some_and(|node| Path::new("/dev/infiniband").join(node).exists()))
    })
}

/// Kernels whose soft RoCE can't take a device from its users wait in this for the last of them.
fn delete_device_under(mut holder: Workload, name: &str) -> Outcome {
    let verbs = verbs_of(name).ok_or_else(|| format!("{name} has no verbs"))?;
    let mut deletion = Command::new("rdma")
        .args(["link", "delete", name])
        .spawn()
        .map_err(|error| format!("rdma: {error}"))?;
    wait_for("the deletion to have begun", || Ok(!verbs.exists()))?;
    holder.ask("dereg count=all")?;
    holder.end()?;
    let status = deletion.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("rdma link delete {name}: {status}")) }
}

fn workload_on(device: &str) -> Result<Workload, String> {
    Workload::spawn(&["target/lab/workload", "--device", device]).map(|(started, _)| started)
}

fn of_device(metric: &str, device: &str) -> String {
    format!("mrscope_{metric}{{device=\"{device}\",kind=\"host\"}}")
}

fn registered(page: &Page, device: &str) -> f64 {
    page.or_zero(&of_device("mr_registration_duration_seconds_count", device))
}

fn deregistered(page: &Page, device: &str) -> f64 {
    page.or_zero(&of_device("mr_deregistration_duration_seconds_count", device))
}

/// What a device holds: MRs, their bytes, and what they pin. None where it has no gauges.
fn held(page: &Page, device: &str) -> Option<[f64; 3]> {
    let pinned = format!("mrscope_umem_pinned_bytes{{device=\"{device}\",use=\"mr\"}}");
    Some([
        page.value(&of_device("mr_active", device))?,
        page.value(&of_device("mr_active_bytes", device))?,
        page.value(&pinned)?,
    ])
}

fn holds(page: &Page, device: &str, count: f64) -> Outcome {
    let expected = [count, count * 10_000.0, count * 3.0 * 4096.0];
    match held(page, device) {
        Some(held) if held == expected => Ok(()),
        other => Err(format!("{device} holds {other:?}, expected {expected:?}")),
    }
}

fn sum(page: &Page, prefix: &str) -> f64 {
    page.starting(prefix).map(|(_, value)| value).sum()
}

const ALL_REGISTRATIONS: &str = "mrscope_mr_registration_duration_seconds_count{";
const ALL_DEREGISTRATIONS: &str = "mrscope_mr_deregistration_duration_seconds_count{";

/// An MR stays with the name that its device had when it was made; its deregistration is told of
/// the name that the device has then.
pub fn a_device_that_comes_is_renamed_and_goes_is_counted_under_each_name() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let churn = Churn::begin()?;
    let watch = Watch::begin(exporter.port);
    add_device("rxe1", "dummy1")?;
    let mut first = workload_on("rxe1")?;
    first.ask("reg count=3 size=10000")?;
    let page = exporter.page()?;
    equal("of the new device", registered(&page, "rxe1"), 3.0)?;
    holds(&page, "rxe1", 3.0)?;

    run("rdma dev set rxe1 name other1")?;
    first.ask("reg count=2 size=10000")?;
    let page = exporter.page()?;
    equal("before the rename", registered(&page, "rxe1"), 3.0)?;
    equal("after the rename", registered(&page, "other1"), 2.0)?;
    holds(&page, "rxe1", 3.0)?;
    holds(&page, "other1", 2.0)?;
    equal("of the process", page.or_zero(&of_process("active", first.pid)), 5.0)?;
    let pinned = 5.0 * 3.0 * 4096.0;
    equal("VmPin", vm_pin(first.pid)?, pinned)?;

    // The newest go first: two of the new name, then one of the old.
    first.ask("dereg count=3")?;
    let page = exporter.page()?;
    holds(&page, "other1", 0.0)?;
    holds(&page, "rxe1", 2.0)?;
    equal("told of the new name", deregistered(&page, "other1"), 3.0)?;
    equal("and none of the old", deregistered(&page, "rxe1"), 0.0)?;

    let mut second = workload_on("other1")?;
    second.ask("reg count=4 size=10000")?;
    first.ask("dereg count=all")?;
    first.end()?;
    wait_for("the gauges of a name that no device has to go", || {
        let page = exporter.page()?;
        Ok(held(&page, "rxe1").is_none() && holds(&page, "other1", 4.0).is_ok())
    })?;

    delete_device_under(second, "other1")?;
    wait_for("the gauges of a deleted device to go", || {
        Ok(held(&exporter.page()?, "other1").is_none())
    })?;
    let page = exporter.page()?;
    equal("of the old name still", registered(&page, "rxe1"), 3.0)?;
    equal("of the new name still", registered(&page, "other1"), 6.0)?;
    equal("deregistered", deregistered(&page, "rxe1") + deregistered(&page, "other1"), 9.0)?;

    // Another device of that name goes on where the first was.
    run("ip link delete dummy1")?;
    add_device("rxe1", "dummy1")?;
    let mut third = workload_on("rxe1")?;
    third.ask("reg count=1 size=10000")?;
    let page = exporter.page()?;
    equal("of the name that came again", registered(&page, "rxe1"), 4.0)?;
    holds(&page, "rxe1", 1.0)?;
    third.end()?;
    run("rdma link delete rxe1")?;
    run("ip link delete dummy1")?;

    let churned = churn.end()?;
    let page = exporter.page()?;
    equal("of rxe0", registered(&page, "rxe0"), churned)?;
    equal("registrations in all", sum(&page, ALL_REGISTRATIONS), churned + 10.0)?;
    equal("deregistrations in all", sum(&page, ALL_DEREGISTRATIONS), churned + 10.0)?;
    for gauge in ["mrscope_mr_active{", "mrscope_mr_active_bytes{", "mrscope_umem_pinned_bytes{"] {
        equal(gauge, sum(&page, gauge), 0.0)?;
    }
    if !page.lost().is_empty() {
        return Err(format!("lost: {:?}", page.lost()));
    }
    let pages = watch.end()?;
    println!("  {pages} pages, {churned} registrations beside");
    exporter.stop().map(|_| ())
}

/// Programs that a registration by the library, one by write(), and their ends run through. A probe
/// waits for a function that may come, too, whether or not it then does.
fn exercised(hits: &Hits) -> Result<Vec<(&str, f64)>, String> {
    let has_va = kprobes::has_function("__ib_umem_get_va")?;
    let pin = |program: &str| {
        program.starts_with("umem_get_enter") || program.starts_with("umem_get_exit")
    };
    let pin_va = |program: &str| program.starts_with("umem_get_va_");
    let exercised = hits
        .iter()
        .filter(|(program, _)| {
            program.starts_with("verbs_reg_mr_e")
                || program.starts_with("verbs_dereg_mr_")
                || ["verbs_ioctl_enter", "verbs_write_enter", "verbs_close_enter"]
                    .contains(&program.as_str())
                || program.as_str() == "umem_release_enter"
                || if has_va { pin_va(program) } else { pin(program) }
        })
        .map(|(program, hits)| (program.as_str(), *hits));
    Ok(exercised.collect())
}

/// One load on fresh modules: six MRs of the library's, two by write().
fn load(exporter: &Exporter, earlier: f64) -> Result<f64, String> {
    let mut workload = Workload::start()?;
    workload.ask("reg count=6 size=10000")?;
    workload.ask("rawreg by=write count=2 size=10000")?;
    wait_for("the figures to be exact", || {
        let page = exporter.page()?;
        holds(&page, "rxe0", 8.0)?;
        Ok(registered(&page, "rxe0") == earlier + 8.0 && in_state(&page, "mr", "ok").is_ok())
    })?;
    workload.ask("rawdereg by=write")?;
    workload.ask("dereg count=all")?;
    holds(&exporter.page()?, "rxe0", 0.0)?;
    let reply = workload.ask("churn threads=4 rounds=50 size=10000")?;
    let done = earlier + 8.0 + number(&reply, "registered")?;
    equal("after the churn", registered(&exporter.page()?, "rxe0"), done)?;
    workload.end()?;
    Ok(done)
}

fn probes_live(exporter: &Exporter) -> Result<usize, String> {
    let (dead, live) = kprobes::dead(exporter.pid())?;
    if dead.is_empty() { Ok(live) } else { Err(format!("not live: {dead:?}")) }
}

pub fn modules_that_go_and_come_again_are_watched_each_time() -> Outcome {
    const ROUNDS: u32 = 3;
    let exporter = Exporter::start(&[])?;
    let watch = Watch::begin(exporter.port);
    let live = probes_live(&exporter)?;
    if live == 0 {
        return Err("no probe is live: the case proves nothing".to_owned());
    }
    let mut done = load(&exporter, 0.0)?;
    for round in 1..=ROUNDS {
        let without = WithoutRdma::begin().map_err(|error| format!("round {round}: {error}"))?;
        equal("functions that are left", probes_live(&exporter)? as f64, 0.0)?;
        drop(without);
        let before = kprobes::hits(exporter.pid())?;
        let earlier = done;
        done = load(&exporter, done).map_err(|error| format!("round {round}: {error}"))?;
        equal("live probes", probes_live(&exporter)? as f64, live as f64)?;
        let after = kprobes::hits(exporter.pid())?;
        for (program, hits) in exercised(&after)? {
            let grown = hits - before.get(program).copied().unwrap_or_default();
            // Each registration runs through them once but for those of whole system calls.
            let (least, most) = match program {
                "verbs_close_enter" => (1.0, f64::MAX),
                "verbs_write_enter" => (4.0, 4.0),
                "verbs_ioctl_enter" | "umem_release_enter" => (done - earlier, f64::MAX),
                _ => (done - earlier, done - earlier),
            };
            if !(least..=most).contains(&grown) {
                return Err(format!(
                    "round {round}: {program} was hit {grown} times, expected {least} to {most}"
                ));
            }
        }
        equal("programs that were hit", exercised(&after)?.len() as f64, 10.0)?;
    }
    let page = exporter.page()?;
    equal("registrations in all", sum(&page, ALL_REGISTRATIONS), done)?;
    equal("deregistrations in all", sum(&page, ALL_DEREGISTRATIONS), done)?;
    if !page.lost().is_empty() {
        return Err(format!("lost: {:?}", page.lost()));
    }
    let pages = watch.end()?;
    println!("  {pages} pages, {live} probes, {done} registrations");
    exporter.stop().map(|_| ())
}
