//! One run from the device to the report.

use std::path::Path;
use std::time::Duration;

use mrscope::probe::{Pages, ProbeOptions, Report};

use crate::failure::ProbeError;
use crate::gid::{self, Gid};
use crate::guard;
use crate::memory::{Buffer, Policy};
use crate::pattern::Pattern;
use crate::placement::{self, Placement};
use crate::sysfs::{self, Sysfs};
use crate::tlb::{self, Counted};
use crate::verbs::{self, Context, Domain, Pair, Port, Region};
use crate::writes::{Halves, Lane, percentile};

/// Measures what is asked for, on base pages if the others can't be had and that is allowed.
/// Which GID it wrote to is in `gid`, also when it failed.
pub fn run(
    options: &ProbeOptions,
    sysfs: &Sysfs,
    gid: &mut Option<Gid>,
) -> Result<Report, ProbeError> {
    match attempt(options, options.pages, sysfs, gid) {
        Err(error) if options.fallback && error.is_of_pages() => {
            let report = attempt(options, Pages::Base, sysfs, gid)?;
            Ok(Report { fallback: Some(error.to_string()), ..report })
        }
        done => done,
    }
}

fn attempt(
    options: &ProbeOptions,
    pages: Pages,
    sysfs: &Sysfs,
    chosen: &mut Option<Gid>,
) -> Result<Report, ProbeError> {
    let context = Context::open(&options.device)?;
    if sysfs.is_iwarp() {
        return Err(ProbeError::Iwarp);
    }
    let port = ready_port(&context, options, sysfs)?;
    let gid = chosen_gid(&port, options, sysfs)?;
    chosen.clone_from(&gid);
    let path = verbs::Path {
        number: options.port,
        port,
        gid: gid.as_ref().map(|gid| (gid.index, gid.address)),
    };
    let limits = context.limits();
    let domain = Domain::new(&context)?;

    let thp = placement::transparent_bytes(Path::new("/"));
    let policy = options.numa_node.map(|node| Policy::on(node, pages)).transpose()?;
    let buffer = Buffer::map(pages, options.mr_bytes, !options.untouched, thp)?;
    let region = Region::register(&domain, &buffer)?;
    // Registering took the pages that were not there.
    drop(policy);
    let registration = region.took;
    let placement = Placement::of(&buffer, thp, options.numa_node)?;

    let pair = Pair::connect(&domain, options.depth, &path)?;
    let lane = Lane { pair: &pair, region: &region, sysfs, gid: gid.as_ref() };
    let measured = measure(options, &lane)?;
    // Nothing may be under way to memory that is given back.
    guard::at("ibv_destroy_qp");
    drop(pair);
    let deregistration = region.deregister()?;
    // Last, so that what it does to caches and TLBs is in no other figure; the pages are still there.
    let tlb = if options.tlb { tlb::count(&buffer) } else { Counted::default() };

    let bytes = measured.writes * options.message_bytes;
    let elapsed_ns = ns(measured.elapsed);
    let by_codes = || sysfs::rate_by_codes(port.speed, port.width).unwrap_or(0);
    Ok(Report {
        device: options.device.clone(),
        port: options.port,
        gid_index: gid.as_ref().map(|gid| gid.index),
        gid: gid.as_ref().map(|gid| gid.address.to_string()),
        gid_type: gid.map(|gid| gid.kind),
        mtu_bytes: port.mtu_bytes(),
        port_rate_bytes_per_second: sysfs.rate().unwrap_or_else(by_codes),
        max_mr: limits.map(|limits| limits.max_mr),
        max_mr_size: limits.map(|limits| limits.max_mr_size),
        pages,
        page_size_bytes: placement.page_bytes,
        fallback: None,
        numa_node: placement.node,
        mr_bytes: options.mr_bytes,
        touched: !options.untouched,
        registration_ns: ns(registration),
        deregistration_ns: ns(deregistration),
        message_bytes: options.message_bytes,
        depth: options.depth,
        writes: measured.writes,
        bytes,
        elapsed_ns,
        bandwidth_bytes_per_second: Report::bandwidth(bytes, elapsed_ns),
        latency_message_bytes: options.latency_message_bytes,
        latency_p50_ns: ns(percentile(&measured.latencies, 50)),
        latency_p99_ns: ns(percentile(&measured.latencies, 99)),
        latency_samples: measured.latencies.len() as u64,
        tlb_accesses: tlb.accesses,
        tlb_misses: tlb.misses,
        tlb_unavailable: tlb.unavailable,
    })
}

struct Measured {
    writes: u64,
    elapsed: Duration,
    /// Sorted.
    latencies: Vec<Duration>,
}

fn measure(options: &ProbeOptions, lane: &Lane<'_>) -> Result<Measured, ProbeError> {
    let limit = Duration::from_millis(options.max_ms);
    let bytes = options.mr_bytes as usize;
    let halves = Halves::of(bytes, options.message_bytes as usize);
    let depth = u64::from(options.depth);
    let pattern = Pattern::of_this_run();

    lane.fill(halves, pattern);
    lane.stream(halves, options.warm_up(), depth, limit)?;
    lane.clear(halves);
    let stretch = lane.stream(halves, options.count, depth, limit)?;
    lane.compare(halves, stretch.writes, pattern)?;

    let small = Halves::of(bytes, options.latency_message_bytes as usize);
    lane.clear(small);
    let mut latencies = lane.singly(small, u64::from(options.latency_count), limit)?;
    lane.compare(small, latencies.len() as u64, pattern)?;
    latencies.sort_unstable();
    Ok(Measured { writes: stretch.writes, elapsed: stretch.elapsed, latencies })
}

/// A port that is up and can send such messages.
fn ready_port(
    context: &Context,
    options: &ProbeOptions,
    sysfs: &Sysfs,
) -> Result<Port, ProbeError> {
    let port = context.port(options.port)?;
    if !port.active {
        let state = sysfs.state().unwrap_or_else(|| port.state.to_string());
        return Err(ProbeError::PortState { state });
    }
    let longest = options.message_bytes.max(options.latency_message_bytes);
    if longest > u64::from(port.max_message_bytes) {
        return Err(ProbeError::MessageTooLong { max: port.max_message_bytes });
    }
    Ok(port)
}

/// None where the port's LID is enough.
fn chosen_gid(
    port: &Port,
    options: &ProbeOptions,
    sysfs: &Sysfs,
) -> Result<Option<Gid>, ProbeError> {
    let by_lid = !sysfs.is_ethernet() && !port.needs_grh && options.gid_index.is_none();
    if by_lid {
        return Ok(None);
    }
    guard::at("ibv_query_gid");
    let index = options.gid_index;
    match gid::choose(&sysfs.gids(), index) {
        Some(gid) => Ok(Some(gid.clone())),
        None => Err(ProbeError::NoGid { index }),
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
