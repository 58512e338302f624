//! How mrscope comes, stands and goes.

use std::io::Write;
use std::process::{Command, Stdio};

use libbpf_rs::query::ProgInfoIter;

use crate::cases::*;
use crate::exporter::{Exporter, wait_for};
use crate::matrix::{What, cannot};
use crate::page::{Page, get};
use crate::workload::{Workload, whole_pages};

pub fn every_hook_is_attached_as_planned(lab: &Lab<'_>) -> Outcome {
    let page = lab.exporter.page()?;
    let pin = lab.pin_program;
    for program in ["verbs_ioctl", "verbs_reg_mr", "verbs_dereg_mr", pin, "umem_release"] {
        let labels = format!("attach=\"{}\",program=\"{program}\"", lab.attach);
        equal(program, page.or_zero(&format!("mrscope_program_attached{{{labels}}}")), 1.0)?;
    }
    let state = "mrscope_collector_state{collector=\"mr\",state=\"ok\"}";
    equal("state", page.or_zero(state), 1.0)
}

/// Series of another device, or of none, would be registrations told of the wrong NIC.
pub fn every_device_has_its_name(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    workload.ask("reg count=1 size=4096")?;
    let page = lab.exporter.page()?;
    workload.end()?;
    if page.or_zero(ACTIVE) < 1.0 {
        return Err("no series of rxe0".to_owned());
    }
    let has_btf = cannot(lab.kernel, What::ModuleBtf).is_none();
    let strangers: Vec<_> = page
        .starting("mrscope_")
        .map(|(series, _)| series)
        .filter(|series| series.contains("device=\"") && !series.contains("device=\"rxe0\""))
        // Without the BTF of modules nothing tells the device of a call that never pinned.
        .filter(|series| has_btf || !series.contains("cause=\"refused\""))
        .collect();
    if strangers.is_empty() { Ok(()) } else { Err(format!("{strangers:?}")) }
}

pub fn the_page_of_a_loaded_guest_satisfies_promtool(lab: &Lab<'_>) -> Outcome {
    let mut workload = Workload::start()?;
    workload.ask("reg count=20 size=10000")?;
    workload.ask("fail how=protnone count=2")?;
    let page = lab.exporter.page()?;
    workload.end()?;
    satisfies_promtool(&page)
}

pub fn satisfies_promtool(page: &Page) -> Outcome {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("promtool: {error}"))?;
    let mut input = promtool.stdin.take().ok_or("no stdin")?;
    input.write_all(page.text.as_bytes()).map_err(|error| error.to_string())?;
    drop(input);
    let output = promtool.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

pub fn two_mrscopes_count_the_same(mode: Mode) -> Outcome {
    let first = Exporter::start(mode.flags())?;
    let second = Exporter::start(mode.flags())?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=7 size=12345")?;
    for exporter in [&first, &second] {
        let page = exporter.page()?;
        equal("mr_active", page.or_zero(ACTIVE), 7.0)?;
        equal("mr_active_bytes", page.or_zero(ACTIVE_BYTES), 7.0 * 12345.0)?;
        equal("registrations", page.or_zero(REGISTRATIONS), 7.0)?;
    }
    // One that goes takes nothing of the other's along.
    second.stop()?;
    workload.ask("reg count=1 size=4096")?;
    equal("after the other's end", first.page()?.or_zero(ACTIVE), 8.0)?;
    workload.end()?;
    first.stop().map(|_| ())
}

fn probes() -> Result<String, String> {
    std::fs::read_to_string("/sys/kernel/tracing/kprobe_events").map_err(|e| e.to_string())
}

/// Programs of mrscope's that the kernel has, by its own list.
fn programs() -> usize {
    const STEMS: [&[u8]; 4] = [b"verbs_", b"umem_", b"rows_", b"tasks"];
    let ours = |name: &[u8]| STEMS.iter().any(|stem| name.starts_with(stem));
    ProgInfoIter::default().filter(|program| ours(program.name.as_encoded_bytes())).count()
}

pub fn a_stop_leaves_no_probe_and_a_kill_s_are_cleared(mode: Mode) -> Outcome {
    let exporter = Exporter::start(mode.flags())?;
    equal("healthy", f64::from(get(exporter.port, "/-/healthy")?.0), 200.0)?;
    let status = exporter.stop()?;
    if !status.success() {
        return Err(format!("after TERM mrscope ended with {status}"));
    }
    let left = probes()?;
    if left.contains("mrscope_") {
        return Err(format!("left after a stop: {left}"));
    }

    // The pid tells whose they are: one that is alive keeps its probes.
    let killed = Exporter::start(mode.flags())?;
    let pid = killed.pid();
    if programs() < 10 {
        return Err("it has no programs: the case proves nothing".to_owned());
    }
    killed.kill()?;
    // The kernel frees them a grace period later.
    wait_for("the programs to be gone", || Ok(programs() == 0))?;
    let pinned = std::fs::read_dir("/sys/fs/bpf").map_err(|error| error.to_string())?.count();
    equal("pinned", pinned as f64, 0.0)?;
    if !probes()?.contains(&format!("mrscope_{pid}_")) {
        return Err("a kill left no probe: the case proves nothing".to_owned());
    }
    let next = Exporter::start(mode.flags())?;
    let left = probes()?;
    if left.contains(&format!("mrscope_{pid}_")) {
        return Err(format!("the next start left: {left}"));
    }
    next.stop().map(|_| ())
}

/// Takes the RDMA modules out of the kernel for its lifetime.
pub struct WithoutRdma;

impl WithoutRdma {
    pub fn begin() -> Result<Self, String> {
        // Users before what they use; what is not loaded is no error.
        for module in [
            "mrscope_lab",
            "rdma_rxe",
            "rdma_ucm",
            "rdma_cm",
            "iw_cm",
            "ib_cm",
            "ib_umad",
            "ib_uverbs",
            // 7.x
            "ib_uverbs_support",
            "ib_core",
        ] {
            run(&["rmmod", module])?;
        }
        let begun = Self;
        if std::path::Path::new("/sys/module/ib_core").exists() {
            return Err("ib_core is still loaded: the case proves nothing".to_owned());
        }
        Ok(begun)
    }
}

impl Drop for WithoutRdma {
    fn drop(&mut self) {
        let _ = run(&["modprobe", "-a", "ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "rdma_rxe"]);
        let _ = run(&["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "dummy0"]);
        let device = std::path::Path::new("/dev/infiniband/uverbs0");
        let _ = wait_for("the device's file", || Ok(device.exists()));
        let _ = run(&["chmod", "666", "/dev/infiniband/uverbs0"]);
    }
}

/// Probes are set while no RDMA module is loaded, and live once they are.
pub fn probes_wait_for_modules_that_come_later(mode: Mode) -> Outcome {
    let without = WithoutRdma::begin()?;
    let state =
        |state: &str| format!("mrscope_collector_state{{collector=\"mr\",state=\"{state}\"}}");
    let exporter = Exporter::start(mode.flags())?;
    equal("no data yet", exporter.page()?.or_zero(&state("no_data")), 1.0)?;

    drop(without);
    let mut workload = Workload::start()?;
    workload.ask("reg count=6 size=10000")?;
    // No page waits until all symbols have been read again.
    wait_for("mr to be ok", || Ok(exporter.page()?.value(&state("ok")) == Some(1.0)))?;
    let page = exporter.page()?;
    equal("mr_active", page.or_zero(ACTIVE), 6.0)?;
    equal("mr_active_bytes", page.or_zero(ACTIVE_BYTES), 60_000.0)?;
    equal("queue buffers", page.or_zero(PINNED_QUEUE), 0.0)?;
    workload.end()?;
    equal("after", exporter.page()?.or_zero(ACTIVE), 0.0)?;
    exporter.stop().map(|_| ())
}

/// Unmounts tracefs for its lifetime.
pub struct WithoutTracefs;

impl WithoutTracefs {
    pub fn begin() -> Result<Self, String> {
        run(&["umount", "/sys/kernel/debug/tracing", "/sys/kernel/tracing", "/sys/kernel/debug"])?;
        Ok(Self)
    }
}

impl Drop for WithoutTracefs {
    fn drop(&mut self) {
        let _ = run(&["mount", "-t", "debugfs", "debugfs", "/sys/kernel/debug"]);
        let _ = run(&["mount", "-t", "tracefs", "tracefs", "/sys/kernel/tracing"]);
    }
}

fn run(words: &[&str]) -> Outcome {
    match Command::new(words[0]).args(&words[1..]).stderr(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{words:?}: {error}")),
    }
}

/// The last rung of kprobes: those of the perf PMU, which can't raise maxactive.
pub fn without_tracefs_the_perf_pmu_s_kprobes_count_the_same(mode: Mode) -> Outcome {
    let tracefs = WithoutTracefs::begin()?;
    if probes().is_ok() {
        return Err("tracefs is still there: the case proves nothing".to_owned());
    }
    let exporter = Exporter::start(mode.flags())?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=5 size=12345")?;
    let page = exporter.page()?;
    equal("mr_active", page.or_zero(ACTIVE), 5.0)?;
    equal("mr_active_bytes", page.or_zero(ACTIVE_BYTES), 5.0 * 12345.0)?;
    equal("pinned", page.or_zero(PINNED_MR), 5.0 * whole_pages(12345.0))?;
    for collector in ["mr", "process", "mlock", "hugepages", "devices", "exporter"] {
        in_state(&page, collector, "ok")?;
    }
    if mode == Mode::Auto {
        exporter.says(&["level=warn", "tracefs can't be written", "few calls"])?;
    }
    workload.ask("dereg count=all")?;
    equal("after", exporter.page()?.or_zero(ACTIVE), 0.0)?;
    workload.end()?;
    exporter.stop()?;
    drop(tracefs);
    probes().map(|_| ())
}

/// Nothing can be attached at the start; what makes it possible comes while mrscope runs.
pub fn what_comes_later_is_watched_where_nothing_could_be_at_the_start() -> Outcome {
    let (modules, tracefs) = (WithoutRdma::begin()?, WithoutTracefs::begin()?);
    let first = Exporter::start(&[])?;
    in_state(&first.page()?, "mr", "unsupported")?;
    first.says(&["tracefs is not to be seen", "mount -t tracefs"])?;
    drop(tracefs);
    // No page waits until all is attached.
    wait_for("mr to have no data", || Ok(in_state(&first.page()?, "mr", "no_data").is_ok()))?;
    first.stop()?;

    let tracefs = WithoutTracefs::begin()?;
    let second = Exporter::start(&[])?;
    in_state(&second.page()?, "mr", "unsupported")?;
    drop(modules);
    // By the perf PMU's kprobes.
    wait_for("mr to be ok", || Ok(in_state(&second.page()?, "mr", "ok").is_ok()))?;
    let mut workload = Workload::start()?;
    workload.ask("reg count=3 size=8192")?;
    equal("mr_active", second.page()?.or_zero(ACTIVE), 3.0)?;
    workload.end()?;
    second.stop()?;
    drop(tracefs);
    Ok(())
}
