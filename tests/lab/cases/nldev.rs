//! RDMA netlink as mrscope reads it, beside iproute2's `rdma`, libibverbs and the workload.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mrscope::host::{Host, Processes};
use mrscope::model::{Creator, MrEntry, MrOwner, OwnedBy};
use mrscope::nldev::{Budget, Dump, End, Limit, Netlink, NldevError, owners};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use serde_json::Value;

use super::devices::{add_device, run};
use super::lifecycle::WithoutRdma;
use crate::cases::*;
use crate::exporter::{signal, wait_for};
use crate::rdma;
use crate::workload::{Workload, child_of, kernel_mrs, number};

pub const CASES: &[OnceCase] = &[
    ("rdma_netlink_lists_what_iproute2_shows", rdma_netlink_lists_what_iproute2_shows),
    (
        "rdma_netlink_lists_the_contexts_that_iproute2_shows",
        rdma_netlink_lists_the_contexts_that_iproute2_shows,
    ),
    ("rdma_netlink_counts_what_iproute2_counts", rdma_netlink_counts_what_iproute2_counts),
    (
        "rdma_netlink_tells_the_maxima_that_libibverbs_tells",
        rdma_netlink_tells_the_maxima_that_libibverbs_tells,
    ),
    (
        "rdma_netlink_finds_who_lives_of_those_who_made_an_mr",
        rdma_netlink_finds_who_lives_of_those_who_made_an_mr,
    ),
    (
        "rdma_netlink_finds_no_owner_where_all_who_made_an_mr_have_ended",
        rdma_netlink_finds_no_owner_where_all_who_made_an_mr_have_ended,
    ),
    ("rdma_netlink_needs_no_right_but_for_keys", rdma_netlink_needs_no_right_but_for_keys),
    (
        "rdma_netlink_says_that_a_dump_beyond_its_budget_is_a_part",
        rdma_netlink_says_that_a_dump_beyond_its_budget_is_a_part,
    ),
    (
        "rdma_netlink_is_not_asked_without_modules_and_loads_none",
        rdma_netlink_is_not_asked_without_modules_and_loads_none,
    ),
];

fn open() -> Result<Netlink, String> {
    let netlink = Netlink::open(&Host::live()).map_err(|error| error.to_string())?;
    netlink.ok_or_else(|| "no RDMA in this kernel".to_owned())
}

/// The kernel's index of a device.
fn index_of(netlink: &mut Netlink, name: &str) -> Result<u32, String> {
    let devices = whole(netlink.devices(&Budget::default()))?;
    let device = devices.into_iter().find(|device| device.name == name);
    device.map(|device| device.index).ok_or_else(|| format!("no device {name}"))
}

/// The entries of a dump that is whole.
fn whole<T>(dump: Result<Dump<T>, NldevError>) -> Result<Vec<T>, String> {
    let dump = dump.map_err(|error| error.to_string())?;
    match dump.end {
        End::Whole => Ok(dump.entries),
        End::Partial(limit) => Err(format!("only a part: {limit:?}")),
    }
}

/// What iproute2 says.
pub fn rdma_says(words: &str) -> Result<Value, String> {
    let line = format!("-j resource show {words}");
    let output = Command::new("rdma").args(line.split_whitespace()).output();
    let output = output.map_err(|error| format!("rdma: {error}"))?;
    if !output.status.success() {
        return Err(format!("rdma {line}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("rdma {line}: {error}"))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: &[T], said: &[T]) -> Outcome {
    if seen == said {
        return Ok(());
    }
    let (a, b) = (seen.len(), said.len());
    let first = seen.iter().zip(said).find(|(seen, said)| seen != said);
    Err(format!("{what}: {a} are read and iproute2 has {b}; the first that differ: {first:?}"))
}

/// A server that waits: a process with a QP and a CQ.
struct Server(Child);

impl Server {
    fn start() -> Result<Self, String> {
        let words = ["-d", "rxe0", "-g", "1", "-p", "18517"];
        let mut command = Command::new("ibv_rc_pingpong");
        let child = command.args(words).stdout(Stdio::null()).spawn();
        let server = Self(child.map_err(|error| format!("ibv_rc_pingpong: {error}"))?);
        wait_for("the server's QP", || {
            let pid = Value::from(server.0.id());
            let qps = rdma_says("qp")?;
            Ok(qps.as_array().is_some_and(|qps| qps.iter().any(|qp| qp["pid"] == pid)))
        })?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three processes, one of which has MRs of a thread that has ended. The last has enough of them for
/// several datagrams.
fn three() -> Result<[Workload; 3], String> {
    let [mut plain, mut threads, mut many] =
        [Workload::start()?, Workload::start()?, Workload::start()?];
    plain.ask("reg count=5 size=10000 offset=7")?;
    threads.ask("reg count=2 size=8192")?;
    threads.ask("thread count=4 size=5000")?;
    many.ask("reg count=1500 size=4096")?;
    Ok([plain, threads, many])
}

fn rdma_netlink_lists_what_iproute2_shows() -> Outcome {
    let workloads = three()?;
    let server = Server::start()?;
    let mut netlink = open()?;
    let device = index_of(&mut netlink, "rxe0")?;
    let budget = Budget::default();

    let dump = netlink.memory_regions(device, &budget).map_err(|error| error.to_string())?;
    if dump.datagrams < 3 {
        return Err(format!("{} datagrams: the case proves nothing", dump.datagrams));
    }
    let mrs = whole(Ok(dump))?;
    same("MRs", &mrs, &rdma::rows(&rdma_says("mr")?, rdma::mr)?)?;
    equal("all of them", mrs.len() as f64, 5.0 + 2.0 + 4.0 + 1500.0 + 1.0)?;
    let made_by = |pid: u32| mrs.iter().filter(|mr| mr.creator == Creator::Thread(pid)).count();
    for (workload, count) in workloads.iter().zip([5, 2, 1500]) {
        equal("MRs by their thread", made_by(workload.pid) as f64, f64::from(count))?;
    }
    let lengths: u64 = mrs.iter().filter_map(|mr| mr.length).sum();
    equal("their bytes", lengths as f64, kernel_mrs()?.1)?;

    let pds = whole(netlink.protection_domains(device, &budget))?;
    same("PDs", &pds, &rdma::rows(&rdma_says("pd")?, rdma::pd)?)?;
    let cqs = whole(netlink.completion_queues(device, &budget))?;
    same("CQs", &cqs, &rdma::rows(&rdma_says("cq")?, rdma::cq)?)?;
    let qps = whole(netlink.queue_pairs(device, &budget))?;
    same("QPs", &qps, &rdma::rows(&rdma_says("qp")?, rdma::qp)?)?;
    let creator = Creator::Thread(server.0.id());
    if !cqs.iter().any(|cq| cq.creator == creator) || !qps.iter().any(|qp| qp.creator == creator) {
        return Err(format!("nothing of the server: {cqs:?} {qps:?}"));
    }

    // One alone is what it is in the list.
    let last = mrs.last().ok_or("no MR")?;
    let one = |netlink: &mut Netlink, mrn| {
        netlink.memory_region(device, mrn).map_err(|error| error.to_string())
    };
    same("one MR", &[one(&mut netlink, last.mrn)?], &[Some(last.clone())])?;
    same("an MR that is not there", &[one(&mut netlink, last.mrn + 1)?], &[None])?;
    drop(server);
    workloads.into_iter().try_for_each(Workload::end)
}

fn rdma_netlink_lists_the_contexts_that_iproute2_shows() -> Outcome {
    let workloads = three()?;
    let mut netlink = open()?;
    let device = index_of(&mut netlink, "rxe0")?;
    let contexts = netlink.contexts(device, &Budget::default()).map_err(|e| e.to_string())?;
    let Some(contexts) = contexts else {
        let said = rdma_says("ctx").err().ok_or("iproute2 lists contexts, mrscope does not")?;
        return Err(format!("this kernel lists no contexts: {said}"));
    };
    let contexts = whole(Ok(contexts))?;
    same("contexts", &contexts, &rdma::rows(&rdma_says("ctx")?, rdma::ctx)?)?;
    let made: Vec<_> = contexts.iter().map(|context| context.creator.clone()).collect();
    same("their creators", &made, &workloads.each_ref().map(|it| Creator::Thread(it.pid)))?;
    workloads.into_iter().try_for_each(Workload::end)
}

fn rdma_netlink_counts_what_iproute2_counts() -> Outcome {
    let workloads = three()?;
    add_device("rxe7", "dummy7")?;
    let mut netlink = open()?;
    let counts = whole(netlink.resources(&Budget::default()))?;
    let counts: Vec<_> = counts.into_iter().map(rdma::comparable).collect();
    let said = rdma::rows(&rdma_says("")?, rdma::resources)?;
    let said: Vec<_> = said.into_iter().map(rdma::comparable).collect();
    same("counts", &counts, &said)?;
    equal("devices", counts.len() as f64, 2.0)?;
    equal("MRs", counts[0].in_use("mr").unwrap_or(0) as f64, kernel_mrs()?.0)?;
    workloads.into_iter().try_for_each(Workload::end)?;

    // What is asked of a device that went is told from what the kernel can't.
    let device = index_of(&mut netlink, "rxe7")?;
    whole(netlink.memory_regions(device, &Budget::default()))?;
    run("rdma link delete rxe7")?;
    run("ip link delete dummy7")?;
    let gone = |error: Option<NldevError>| match error {
        Some(NldevError::NoDevice { index }) if index == device => Ok(()),
        other => Err(format!("of a device that is gone: {other:?}")),
    };
    gone(netlink.memory_regions(device, &Budget::default()).err())?;
    gone(netlink.contexts(device, &Budget::default()).err())?;
    gone(netlink.memory_region(device, 0).err())
}

/// By libibverbs, which asks the driver.
fn rdma_netlink_tells_the_maxima_that_libibverbs_tells() -> Outcome {
    let mut netlink = open()?;
    let counts = whole(netlink.resources(&Budget::default()))?;
    let output = Command::new("ibv_devinfo").args(["-v", "-d", "rxe0"]).output();
    let output = output.map_err(|error| format!("ibv_devinfo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let most = |kind: &str| {
        let name = format!("max_{kind}:");
        text.lines().find_map(|line| line.trim().strip_prefix(&name)?.trim().parse::<u64>().ok())
    };
    for kind in ["pd", "cq", "qp", "mr", "srq"] {
        let count = counts[0].counts.iter().find(|count| count.kind == kind);
        let told = count.and_then(|count| count.maximum);
        if told.is_none() || told != most(kind) {
            let said = most(kind);
            return Err(format!("{kind}: at most {told:?}, and libibverbs says {said:?}"));
        }
    }
    Ok(())
}

/// How many MRs each owner has.
fn owned(netlink: &mut Netlink, by: MrOwner) -> Result<usize, String> {
    let device = index_of(netlink, "rxe0")?;
    let budget = Budget::default();
    let mrs: Vec<MrEntry> = whole(netlink.memory_regions(device, &budget))?;
    let pds = whole(netlink.protection_domains(device, &budget))?;
    let contexts = netlink.contexts(device, &budget).map_err(|error| error.to_string())?;
    let contexts = contexts.map_or(Ok(Vec::new()), |dump| whole(Ok(dump)))?;
    let host = Host::live();
    let processes = Processes::of(&host);
    let owners = owners(&mrs, &pds, &contexts, |tid| processes.of_thread(tid));
    Ok(owners.into_iter().filter(|owner| *owner == by).count())
}

fn rdma_netlink_finds_who_lives_of_those_who_made_an_mr() -> Outcome {
    let workloads = three()?;
    let mut netlink = open()?;
    let mut owns = |what: &str, tgid: u32, by, count: usize| {
        let seen = owned(&mut netlink, MrOwner::Process { tgid, by })?;
        equal(what, seen as f64, count as f64)
    };
    let [plain, threads, many] = workloads.each_ref().map(|workload| workload.pid);
    owns("of the plain one", plain, OwnedBy::Thread, 5)?;
    owns("of that with threads, by its own", threads, OwnedBy::Thread, 2)?;
    owns("of that with threads, by its PD", threads, OwnedBy::Pd, 4)?;
    owns("of that with many", many, OwnedBy::Thread, 1500)?;
    workloads.into_iter().try_for_each(Workload::end)?;

    // A dead leader, whose id the kernel tells, has living threads.
    let mut leader = Workload::start()?;
    leader.ask("reg count=3 size=4096")?;
    leader.ask("leave")?;
    wait_for("the leader to be dead", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", leader.pid));
        Ok(status.is_ok_and(|status| status.contains("State:\tZ")))
    })?;
    let of_leader = MrOwner::Process { tgid: leader.pid, by: OwnedBy::Thread };
    equal("of a dead leader", owned(&mut netlink, of_leader)? as f64, 3.0)?;
    leader.kill()
}

/// The child has the parent's open file, and nothing in the kernel's lists says so.
fn rdma_netlink_finds_no_owner_where_all_who_made_an_mr_have_ended() -> Outcome {
    let mut netlink = open()?;
    let device = index_of(&mut netlink, "rxe0")?;
    let lists = netlink.contexts(device, &Budget::default()).map_err(|e| e.to_string())?.is_some();
    // Without contexts the way ends before it is all seen.
    let (end, other) =
        if lists { (MrOwner::Gone, MrOwner::Unknown) } else { (MrOwner::Unknown, MrOwner::Gone) };
    let mut parent = Workload::start()?;
    parent.ask("reg count=10 size=1M")?;
    let child = number(&parent.ask("fork")?, "child_pid")? as u32;
    equal("its child", f64::from(child_of(parent.pid)?), f64::from(child))?;
    let owner = MrOwner::Process { tgid: parent.pid, by: OwnedBy::Thread };
    equal("while the parent lives", owned(&mut netlink, owner)? as f64, 10.0)?;
    parent.kill()?;
    wait_for("the kernel to know no creator", || {
        let mrs = rdma::rows(&rdma_says("mr")?, rdma::mr)?;
        Ok(mrs.len() == 10 && mrs.iter().all(|mr| mr.creator == Creator::Gone))
    })?;
    equal("without an owner", owned(&mut netlink, end)? as f64, 10.0)?;
    equal("of the other kind", owned(&mut netlink, other)? as f64, 0.0)?;
    signal(child, "KILL")?;
    wait_for("the kernel to have none of its MRs", || Ok(kernel_mrs()?.0 == 0.0))
}

fn rdma_netlink_needs_no_right_but_for_keys() -> Outcome {
    let mut workload = Workload::start()?;
    workload.ask("reg count=5 size=10000")?;
    let read = || {
        let mut netlink = open()?;
        let device = index_of(&mut netlink, "rxe0")?;
        whole(netlink.memory_regions(device, &Budget::default()))
    };
    let mut expected = read()?;
    if expected.iter().any(|mr| mr.lkey.is_none()) {
        return Err(format!("root is told no keys: {expected:?}"));
    }
    for mr in &mut expected {
        (mr.rkey, mr.lkey) = (None, None);
    }
    // Capabilities are a thread's.
    let without = std::thread::spawn(move || {
        let empty = CapabilitySet::empty();
        let none = CapabilitySets { effective: empty, permitted: empty, inheritable: empty };
        set_capabilities(None, none).map_err(|error| error.to_string())?;
        read()
    });
    let seen = without.join().map_err(|_| "the thread panicked")??;
    same("without a right", &seen, &expected)?;
    workload.end()
}

fn rdma_netlink_says_that_a_dump_beyond_its_budget_is_a_part() -> Outcome {
    let workloads = three()?;
    let mut netlink = open()?;
    let device = index_of(&mut netlink, "rxe0")?;
    let all = whole(netlink.memory_regions(device, &Budget::default()))?;
    let mut part = |budget| netlink.memory_regions(device, &budget).map_err(|e| e.to_string());

    let few = part(Budget { bytes: 1, ..Budget::default() })?;
    equal("datagrams", f64::from(few.datagrams), 1.0)?;
    let count = few.entries.len();
    if few.end != End::Partial(Limit::Bytes) || count == 0 || count >= all.len() {
        return Err(format!("of {}: {count}, {:?}", all.len(), few.end));
    }
    same("the first ones", &few.entries, &all[..count])?;
    let none = part(Budget { time: Duration::ZERO, ..Budget::default() })?;
    let ended = none.end == End::Partial(Limit::Time);
    if !ended || !none.entries.is_empty() {
        return Err(format!("{} in no time, {:?}", none.entries.len(), none.end));
    }
    // What is left of a part is no part of the next answer.
    let again = part(Budget::default())?;
    same("the whole again", &again.entries, &all)?;
    workloads.into_iter().try_for_each(Workload::end)
}

/// An exporter that looks loads nothing.
fn rdma_netlink_is_not_asked_without_modules_and_loads_none() -> Outcome {
    let without = WithoutRdma::begin()?;
    let none = Netlink::open(&Host::live()).map_err(|error| error.to_string())?.is_none();
    let loaded = std::path::Path::new("/sys/module/ib_core").exists();
    drop(without);
    if none && !loaded { Ok(()) } else { Err(format!("none {none}, ib_core loaded {loaded}")) }
}
