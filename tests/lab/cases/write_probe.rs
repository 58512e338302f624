//! What the write probe measures, and that its memory is what it says: against /proc and /sys while
//! it holds it, and against what mrscope and the device counted.

use std::fs;
use std::process::Command;

use super::devices::{add_device, run};
use crate::boot::NODES;
use crate::cases::*;
use crate::exporter::{Exporter, signal, wait_for};
use crate::page::Page;
use crate::probe::{MR_BYTES, Probe};
use crate::workload::{kernel_mrs, number, status_bytes, vm_pin};

const MIB: f64 = 1024.0 * 1024.0;
const TERM: i32 = 15;

/// More than it can do until it is ended.
pub const ENDLESS: &str =
    "--count 10000000 --message 4096 --max-bytes 100000000000 --max-ms 60000 --guard-ms 600000";

/// Of the guest's pool, by the words for it: bytes of a page, and the kernel's name of them.
const POOLED: [(&str, f64, &str); 2] =
    [("2m", 2.0 * MIB, "hugepages-2048kB"), ("1g", 1024.0 * MIB, "hugepages-1048576kB")];

pub fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

pub fn pool_file(node: u32, size: &str, file: &str) -> String {
    format!("/sys/devices/system/node/node{node}/hugepages/{size}/{file}")
}

/// Free pages of all sizes on all nodes, by sysfs.
pub fn free_pages() -> Result<Vec<(u32, &'static str, f64)>, String> {
    let mut all = Vec::new();
    for node in 0..NODES {
        for (pages, _, size) in POOLED {
            let text = read(&pool_file(node, size, "free_hugepages"))?;
            all.push((node, pages, text.trim().parse().map_err(|_| text)?));
        }
    }
    Ok(all)
}

/// The one node that has the page of 1 GiB.
pub fn node_of_1g() -> Result<u32, String> {
    let free = free_pages()?;
    let on: Vec<u32> =
        free.iter().filter(|(_, pages, free)| *pages == "1g" && *free > 0.0).map(|f| f.0).collect();
    match on[..] {
        [node] => Ok(node),
        _ => Err(format!("pages of 1 GiB are on the nodes {on:?}: the case proves nothing")),
    }
}

/// Bytes of a transparent hugepage, which the base page decides.
fn transparent_page() -> Result<f64, String> {
    let text = read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")?;
    text.trim().parse().map_err(|_| text)
}

/// Pages with their bytes, and the node, for every kind that the guest has.
pub fn kinds() -> Result<Vec<(&'static str, f64, u32)>, String> {
    let (base, transparent) = (rustix::param::page_size() as f64, transparent_page()?);
    let mut kinds = Vec::new();
    for node in 0..NODES {
        kinds.extend([("base", base, node), ("thp", transparent, node), ("2m", 2.0 * MIB, node)]);
    }
    kinds.push(("1g", 1024.0 * MIB, node_of_1g()?));
    Ok(kinds)
}

/// Whether all that a probe has taken is given back.
pub fn nothing_is_held(free: &[(u32, &str, f64)]) -> Outcome {
    equal("MRs left", kernel_mrs()?.0, 0.0)?;
    let now = free_pages()?;
    if now == free { Ok(()) } else { Err(format!("free pages were {free:?}, now {now:?}")) }
}

/// The address of the largest mapping, the kernel's page size of it, and the nodes of its pages.
pub fn largest_mapping(pid: u32) -> Result<(String, f64, Vec<u32>), String> {
    let text = read(&format!("/proc/{pid}/numa_maps"))?;
    let mapping = |line: &str| {
        let mut words = line.split(' ');
        let address = words.next()?.to_owned();
        let (mut page, mut pages, mut nodes) = (0.0, 0.0, Vec::new());
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            if key == "kernelpagesize_kB" {
                page = value.parse::<f64>().ok()? * 1024.0;
            } else if let Some(node) = key.strip_prefix('N').and_then(|node| node.parse().ok()) {
                pages += value.parse::<f64>().ok()?;
                nodes.push(node);
            }
        }
        Some((pages * page, (address, page, nodes)))
    };
    let all = text.lines().filter_map(mapping);
    let largest = all.max_by(|a, b| a.0.total_cmp(&b.0));
    largest.map(|(_, mapping)| mapping).ok_or_else(|| format!("no mapping in {text}"))
}

/// Bytes of transparent hugepages in the mapping at that address.
pub fn transparent_bytes(pid: u32, address: &str) -> Result<f64, String> {
    let text = read(&format!("/proc/{pid}/smaps"))?;
    let start = format!("{}-", address.trim_start_matches('0'));
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
    let kilobytes = lines.find_map(|line| {
        line.strip_prefix("AnonHugePages:")?.split_whitespace().next()?.parse::<f64>().ok()
    });
    kilobytes.map(|kb| kb * 1024.0).ok_or_else(|| format!("no mapping at {address} in {text}"))
}

/// Looked at from outside while it writes.
pub fn a_write_probe_holds_the_pages_and_the_node_it_was_asked_for() -> Outcome {
    let free = free_pages()?;
    for (pages, page_bytes, node) in kinds()? {
        let error = |error: String| format!("{pages} on node {node}: {error}");
        let line = format!("--device rxe0 --pages {pages} --numa-node {node} {ENDLESS}");
        let probe = Probe::begin(&line)?;
        let pid = probe.pid;
        wait_for("its MR", || Ok(vm_pin(pid)? == MR_BYTES)).map_err(error)?;
        is_held(pid, pages, page_bytes, node, &free).map_err(error)?;
        signal(pid, "TERM")?;
        probe.wait()?.by_signal(TERM).map_err(error)?;
        nothing_is_held(&free).map_err(error)?;
    }
    Ok(())
}

fn is_held(
    pid: u32,
    pages: &str,
    page_bytes: f64,
    node: u32,
    free: &[(u32, &'static str, f64)],
) -> Outcome {
    let (address, kernel_page, nodes) = largest_mapping(pid)?;
    if nodes != [node] {
        return Err(format!("its pages are on the nodes {nodes:?}"));
    }
    let pooled = POOLED.iter().any(|(pool, _, _)| *pool == pages);
    let usual = rustix::param::page_size() as f64;
    equal("the kernel's page size", kernel_page, if pooled { page_bytes } else { usual })?;
    let mapped = (MR_BYTES / page_bytes).ceil() * page_bytes;
    let transparent = if pages == "thp" { mapped } else { 0.0 };
    equal("transparent hugepages", transparent_bytes(pid, &address)?, transparent)?;
    let hugetlb = if pooled { mapped } else { 0.0 };
    equal("HugetlbPages", status_bytes(&pid.to_string(), "HugetlbPages")?, hugetlb)?;
    for (was, now) in free.iter().zip(free_pages()?) {
        let taken = if (was.0, was.1) == (node, pages) { mapped / page_bytes } else { 0.0 };
        equal(&format!("pages taken of {} on node {}", was.1, was.0), was.2 - now.2, taken)?;
    }
    Ok(())
}

/// A number of the device's file, or the port's rate in bytes a second.
fn of_port(file: &str) -> Result<f64, String> {
    let text = read(&format!("/sys/class/infiniband/rxe0/ports/1/{file}"))?;
    let number = text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    number.ok_or_else(|| format!("{file}: {text}"))
}

/// By ibv_devinfo, as in `active_mtu: 4096 (5)` or `max_mr_size: 0xffffffffffffffff`.
fn by_devinfo(key: &str) -> Result<f64, String> {
    let output = Command::new("ibv_devinfo").args(["-v", "-d", "rxe0"]).output();
    let output = output.map_err(|error| format!("ibv_devinfo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let word = text.lines().find_map(|line| {
        line.trim().strip_prefix(key)?.strip_prefix(':')?.split_whitespace().next()
    });
    let number = word.and_then(|word| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(|number| number as f64),
        None => word.parse().ok(),
    });
    number.ok_or_else(|| format!("{key}: {text}"))
}

const REGISTERED: &str = "mrscope_mr_registered_bytes_total{device=\"rxe0\",kind=\"host\"}";

/// Its own figures against mrscope's of the same calls, and the device's of its packets.
pub fn a_write_probe_s_report_is_what_mrscope_and_the_device_counted() -> Outcome {
    let exporter = Exporter::start(&[])?;
    let free = free_pages()?;
    let mut lines: Vec<_> = kinds()?
        .into_iter()
        .map(|(pages, bytes, node)| (format!("--pages {pages} --numa-node {node}"), bytes, node))
        .collect();
    let base = rustix::param::page_size() as f64;
    lines.push(("--pages base --untouched --numa-node 1".to_owned(), base, 1));
    lines.push(("--pages thp --untouched --numa-node 1".to_owned(), transparent_page()?, 1));
    lines.push(("--mr-bytes 200000 --message 4104 --numa-node 0".to_owned(), base, 0));
    for (line, page_bytes, node) in lines {
        one_report(&exporter, &line, page_bytes, node).map_err(|e| format!("{line}: {e}"))?;
        nothing_is_held(&free).map_err(|error| format!("{line}: {error}"))?;
    }
    exporter.stop().map(|_| ())
}

fn one_report(exporter: &Exporter, line: &str, page_bytes: f64, node: u32) -> Outcome {
    const COUNT: f64 = 64.0;
    let (before, packets) = (exporter.page()?, of_port("hw_counters/sent_pkts")?);
    // Time enough for all writes, so that their number is known.
    let line = format!("--device rxe0 {line} --count 64 --latency-count 20 --max-ms 60000");
    let report = Probe::run(&line)?.report()?;
    let after = exporter.page()?;

    let said = |key: &str| number(&report, key);
    equal("page_size_bytes", said("page_size_bytes")?, page_bytes)?;
    equal("numa_node", said("numa_node")?, f64::from(node))?;
    let mtu = by_devinfo("active_mtu")?;
    equal("mtu_bytes", said("mtu_bytes")?, mtu)?;
    for key in ["max_mr", "max_mr_size"] {
        equal(key, said(key)?, by_devinfo(key)?)?;
    }
    // Gigabits a second.
    equal("port rate", said("port_rate_bytes_per_second")?, of_port("rate")? * 125e6)?;
    equal("gid_index", said("gid_index")?, 1.0)?;
    equal("writes", said("writes")?, COUNT)?;
    equal("latencies", said("latency_samples")?, 20.0)?;
    let bytes = COUNT * said("message_bytes")?;
    equal("bytes", said("bytes")?, bytes)?;
    let rate = bytes * 1e9 / said("elapsed_ns")?;
    let off = (said("bandwidth_bytes_per_second")? / rate - 1.0).abs();
    if off > 1e-6 || !report["fallback"].is_null() {
        return Err(format!("{report}"));
    }
    let sent = of_port("hw_counters/sent_pkts")? - packets;
    let least = (COUNT + said("depth")?) * (said("message_bytes")? / mtu).ceil();
    if sent < least {
        return Err(format!("the device sent {sent} packets, at least {least} were to be"));
    }

    let moved = |series: &str| after.or_zero(series) - before.or_zero(series);
    equal("registrations", moved(REGISTRATIONS), 1.0)?;
    equal("deregistrations", moved(DEREGISTRATIONS), 1.0)?;
    equal("registered bytes", moved(REGISTERED), said("mr_bytes")?)?;
    equal("MRs left", after.or_zero(ACTIVE), before.or_zero(ACTIVE))?;
    within_call(moved(REGISTRATION_SECONDS), said("registration_ns")?)?;
    within_call(moved(DEREGISTRATION_SECONDS), said("deregistration_ns")?)
}

/// What the kernel took of a call is a part of it.
pub(super) fn within_call(seconds: f64, call_ns: f64) -> Outcome {
    if seconds > 0.0 && seconds <= call_ns * 1e-9 {
        Ok(())
    } else {
        Err(format!("mrscope says {seconds} s, the call took {call_ns} ns"))
    }
}

/// Any interface that soft RoCE sits on.
pub fn a_write_probe_runs_over_dummy_veth_and_lo() -> Outcome {
    let exporter = Exporter::start(&[])?;
    run("ip link add veth0 type veth peer name veth1")?;
    let verdict = over_interfaces(&exporter);
    run("ip link delete veth0")?;
    run("ip addr del 10.9.3.1/32 dev lo")?;
    verdict?;
    exporter.stop().map(|_| ())
}

fn over_interfaces(exporter: &Exporter) -> Outcome {
    run("ip link set veth1 up")?;
    run("ip link set veth0 up")?;
    run("ip addr add 10.9.2.1/24 dev veth0")?;
    run("ip addr add 10.9.3.1/32 dev lo")?;
    for (device, interface) in [("rxe_veth", "veth0"), ("rxe_lo", "lo")] {
        run(&format!("rdma link add {device} type rxe netdev {interface}"))?;
    }
    let mut verdict = Ok(());
    for device in ["rxe0", "rxe_veth", "rxe_lo"] {
        verdict = verdict.and_then(|()| over(exporter, device));
    }
    for device in ["rxe_veth", "rxe_lo"] {
        run(&format!("rdma link delete {device}"))?;
    }
    verdict
}

fn over(exporter: &Exporter, device: &str) -> Outcome {
    let count = |page: &Page| {
        let labels = format!("{{device=\"{device}\",kind=\"host\"}}");
        page.or_zero(&format!("mrscope_mr_registration_duration_seconds_count{labels}"))
    };
    let before = count(&exporter.page()?);
    let line = format!("--device {device} --max-ms 60000 --message 4096");
    let mut last = String::new();
    // A new device's file and its GIDs come in the background.
    wait_for("its first report", || match Probe::run(&line)?.report() {
        Ok(report) => {
            last = report.to_string();
            Ok(true)
        }
        Err(error) => Err(error),
    })
    .map_err(|error| format!("{device}: {error}"))?;
    if count(&exporter.page()?) <= before {
        return Err(format!("{device}: mrscope saw no registration of {last}"));
    }
    Ok(())
}

/// A device of its own, for its lifetime, with an address.
pub struct Device {
    pub name: &'static str,
    pub interface: &'static str,
}

impl Device {
    pub fn make(
        name: &'static str,
        interface: &'static str,
        address: &str,
    ) -> Result<Self, String> {
        add_device(name, interface)?;
        let made = Self { name, interface };
        run(&format!("ip addr add {address} dev {interface}"))?;
        wait_for("its GID", || made.gid().map(|gid| gid.contains(":ffff:")))?;
        Ok(made)
    }

    /// The row that addresses of version 4 come to.
    pub fn gid(&self) -> Result<String, String> {
        read(&format!("/sys/class/infiniband/{}/ports/1/gids/1", self.name))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Where a case has deleted it, or failed, there may be less to undo.
        let _ = run(&format!("rdma link delete {}", self.name));
        let _ = run(&format!("ip link delete {}", self.interface));
    }
}
