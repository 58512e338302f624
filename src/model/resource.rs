//! What RDMA netlink tells of a device's resources. Numbers are the kernel's own, unique among the
//! resources of one kind of one device.

use std::time::Duration;

/// How the kernel's lists are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourcesOptions {
    /// Between two comparisons of all MRs, at least.
    pub interval: Duration,
}

impl Default for ResourcesOptions {
    fn default() -> Self {
        Self { interval: Duration::from_mins(1) }
    }
}

/// A device, by the kernel's index, which a rename leaves as it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeviceId {
    pub index: u32,
    /// As in `mlx5_0`.
    pub name: String,
}

/// How many resources a device has, by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceResources {
    pub device: DeviceId,
    pub counts: Vec<ResourceCount>,
}

impl DeviceResources {
    /// How many of that kind are in use, if the kernel counts them.
    #[must_use]
    pub fn in_use(&self, kind: &str) -> Option<u64> {
        self.counts.iter().find(|count| count.kind == kind).map(|count| count.in_use)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceCount {
    /// The kernel's word: `pd`, `cq`, `qp`, `cm_id`, `mr`, `ctx`, `srq`, and what comes later.
    pub kind: String,
    pub in_use: u64,
    /// How many the device can have. None where the kernel does not tell.
    pub maximum: Option<u64>,
}

/// Who made a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Creator {
    /// The id of the *thread* that did, in the reader's pid namespace.
    Thread(u32),
    /// A part of the kernel.
    Kernel(String),
    /// That thread has ended, or belongs to a pid namespace that the reader does not see.
    Gone,
}

/// A memory region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MrEntry {
    pub mrn: u32,
    /// Its PD; the kernel tells none for its own.
    pub pdn: Option<u32>,
    /// In bytes. None for all memory (implicit on-demand paging). 0 for those that were not
    /// registered as memory of the host, of drivers that do not set it.
    pub length: Option<u64>,
    /// Remote and local key: only for readers with CAP_NET_ADMIN in the first user namespace.
    pub rkey: Option<u32>,
    pub lkey: Option<u32>,
    /// On-demand paging, of the drivers that tell.
    pub odp: Option<Odp>,
    pub creator: Creator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Odp {
    Explicit,
    /// All memory of its process.
    Implicit,
}

/// A protection domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PdEntry {
    pub pdn: u32,
    /// Its context; the kernel tells none for its own.
    pub ctxn: Option<u32>,
    /// How many resources refer to it.
    pub users: u64,
    pub creator: Creator,
}

/// A context: an open device file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CtxEntry {
    pub ctxn: u32,
    pub creator: Creator,
}

/// A completion queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CqEntry {
    pub cqn: u32,
    pub ctxn: Option<u32>,
    /// How many completions it can hold.
    pub capacity: u32,
    /// How many queue pairs and the like refer to it.
    pub users: u64,
    pub creator: Creator,
}

/// A queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QpEntry {
    pub lqpn: u32,
    pub pdn: Option<u32>,
    /// None before it is bound to one.
    pub port: Option<u32>,
    /// IB_QPT_*.
    pub kind: Option<u8>,
    /// IB_QPS_*.
    pub state: Option<u8>,
    /// The queue pair at the other end, of connected ones.
    pub remote_qpn: Option<u32>,
    pub creator: Creator,
}

/// Whose an MR is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MrOwner {
    Kernel,
    /// A process that lives.
    Process {
        tgid: u32,
        by: OwnedBy,
    },
    /// All three who made it, its PD and its context have ended: it may be an orphan, which lives by
    /// a file that another process has open.
    Gone,
    /// No one lives as far as could be seen, and that was not all of the way.
    Unknown,
}

/// By whose creator the owner of an MR was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnedBy {
    /// The MR's own.
    Thread,
    /// That of its PD, as the MR's own has ended.
    Pd,
    /// That of its context, as both others have ended.
    Ctx,
}
