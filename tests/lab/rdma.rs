//! What iproute2's `rdma` says of resources, in the model's words: the oracle of mrscope's own
//! reader of RDMA netlink.

use mrscope::model::{
    CqEntry, Creator, CtxEntry, DeviceId, DeviceResources, MrEntry, PdEntry, QpEntry, ResourceCount,
};
use serde_json::Value;

/// Of enum ib_qp_type and enum ib_qp_state.
const QP_KINDS: [&str; 5] = ["SMI", "GSI", "RC", "UC", "UD"];
const QP_STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

/// Rows of a list, by what each comes to.
pub fn rows<T>(list: &Value, each: impl Fn(&Value) -> Result<T, String>) -> Result<Vec<T>, String> {
    list.as_array().ok_or("rdma: no list")?.iter().map(each).collect()
}

fn some(row: &Value, key: &str) -> Option<u64> {
    row[key].as_u64()
}

fn number(row: &Value, key: &str) -> Result<u64, String> {
    some(row, key).ok_or_else(|| format!("rdma: no number {key} in {row}"))
}

fn narrow(row: &Value, key: &str) -> Result<u32, String> {
    u32::try_from(number(row, key)?).map_err(|error| format!("rdma: {key}: {error}"))
}

fn small(row: &Value, key: &str) -> Option<u32> {
    some(row, key).and_then(|number| number.try_into().ok())
}

/// Keys are written in hexadecimal.
fn key(row: &Value, key: &str) -> Option<u32> {
    row[key].as_str().and_then(|text| u32::from_str_radix(text, 16).ok())
}

fn word(row: &Value, key: &str, words: &[&str]) -> Option<u8> {
    let word = row[key].as_str()?;
    words.iter().position(|known| *known == word).map(|at| at as u8)
}

/// `comm` without a pid is a part of the kernel.
fn creator(row: &Value) -> Creator {
    match (small(row, "pid"), row["comm"].as_str()) {
        (Some(pid), _) => Creator::Thread(pid),
        (None, Some(name)) => Creator::Kernel(name.to_owned()),
        (None, None) => Creator::Gone,
    }
}

pub fn mr(row: &Value) -> Result<MrEntry, String> {
    Ok(MrEntry {
        mrn: narrow(row, "mrn")?,
        pdn: small(row, "pdn"),
        length: some(row, "mrlen"),
        rkey: key(row, "rkey"),
        lkey: key(row, "lkey"),
        odp: None,
        creator: creator(row),
    })
}

pub fn pd(row: &Value) -> Result<PdEntry, String> {
    Ok(PdEntry {
        pdn: narrow(row, "pdn")?,
        ctxn: small(row, "ctxn"),
        users: number(row, "users")?,
        creator: creator(row),
    })
}

pub fn ctx(row: &Value) -> Result<CtxEntry, String> {
    Ok(CtxEntry { ctxn: narrow(row, "ctxn")?, creator: creator(row) })
}

pub fn cq(row: &Value) -> Result<CqEntry, String> {
    Ok(CqEntry {
        cqn: narrow(row, "cqn")?,
        ctxn: small(row, "ctxn"),
        capacity: narrow(row, "cqe")?,
        users: number(row, "users")?,
        creator: creator(row),
    })
}

pub fn qp(row: &Value) -> Result<QpEntry, String> {
    Ok(QpEntry {
        lqpn: narrow(row, "lqpn")?,
        pdn: small(row, "pdn"),
        port: small(row, "port"),
        kind: word(row, "type", &QP_KINDS),
        state: word(row, "state", &QP_STATES),
        remote_qpn: small(row, "rqpn"),
        creator: creator(row),
    })
}

pub fn device(row: &Value) -> Result<DeviceId, String> {
    let name = row["ifname"].as_str().ok_or("rdma: no ifname")?.to_owned();
    Ok(DeviceId { index: narrow(row, "ifindex")?, name })
}

/// It tells no maxima.
pub fn resources(row: &Value) -> Result<DeviceResources, String> {
    let counts = row.as_object().ok_or("rdma: no counts")?.iter();
    let counts = counts.filter(|(kind, _)| !kind.starts_with("if")).map(|(kind, _)| {
        Ok(ResourceCount { kind: kind.clone(), in_use: number(row, kind)?, maximum: None })
    });
    let counts: Result<Vec<_>, String> = counts.collect();
    Ok(DeviceResources { device: device(row)?, counts: counts? })
}

/// The same, in the order of their kinds and without maxima: what can be compared.
pub fn comparable(mut of: DeviceResources) -> DeviceResources {
    of.counts.sort_by(|a, b| a.kind.cmp(&b.kind));
    for count in &mut of.counts {
        count.maximum = None;
    }
    of
}
