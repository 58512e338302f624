//! RDMA netlink: which devices there are, how many resources each has, and which, with the threads
//! that made them. [`wire`], [`entries`], [`dump`], [`owners`] and [`pace`] are pure; [`socket`] asks.
//!
//! What is seen: the devices of the reader's network namespace, or all of them where RDMA namespaces
//! are shared (`rdma system`, the default); resources of all processes on them, whatever their
//! namespaces; thread ids as the reader's pid namespace has them, none for threads outside of it. So
//! read in the host's.

pub mod dump;
pub mod entries;
pub mod live;
pub mod owners;
pub mod pace;
pub mod socket;
pub mod wire;

use std::fmt;

use crate::model::errno_name;

pub use live::{ListsResources, LiveResources};
pub use owners::owners;
pub use pace::Pace;
pub use socket::{Budget, Dump, End, Limit, Netlink};

/// What can be asked for: of enum rdma_nldev_command, which is ABI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Devices = 1,
    Resources = 9,
    QueuePairs = 10,
    CompletionQueues = 12,
    MemoryRegions = 13,
    ProtectionDomains = 14,
    /// Not in 5.10; in 6.1.
    Contexts = 22,
}

impl Command {
    /// The kind of its messages.
    #[must_use]
    pub fn kind(self) -> u16 {
        const RDMA_NL_NLDEV: u16 = 5;
        (RDMA_NL_NLDEV << 10) + self as u16
    }

    fn words(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Resources => "counts of resources",
            Self::QueuePairs => "QPs",
            Self::CompletionQueues => "CQs",
            Self::MemoryRegions => "MRs",
            Self::ProtectionDomains => "PDs",
            Self::Contexts => "contexts",
        }
    }
}

/// A list, or one of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    pub command: Command,
    /// The index of the device whose resources are asked for.
    pub device: Option<u32>,
    /// The one MR.
    pub mrn: Option<u32>,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mrn {
            Some(mrn) => write!(f, "show MR {mrn}")?,
            None => write!(f, "list {}", self.command.words())?,
        }
        self.device.map_or(Ok(()), |device| write!(f, " of device {device}"))
    }
}

/// No answer.
#[derive(Debug, thiserror::Error)]
pub enum NldevError {
    #[error("RDMA netlink, {call}: {}", errno_name(*errno))]
    Socket { call: &'static str, errno: u32 },
    #[error("the kernel refuses to {question}: {}", errno_name(*errno))]
    Refused { question: Question, errno: u32 },
    /// It went between two questions.
    #[error("there is no device {index} any more")]
    NoDevice { index: u32 },
    /// In time, or in one piece.
    #[error("asked to {question}, the kernel gave no whole answer")]
    NoAnswer { question: Question },
    #[error("RDMA netlink: {0}")]
    Wire(#[from] wire::WireError),
    #[error("asked to {question}, the kernel sent a message of kind {kind}")]
    Strange { kind: u16, question: Question },
    #[error("RDMA netlink: a datagram has {met} bytes, expected at most {room}")]
    Cut { met: usize, room: usize },
}

impl NldevError {
    /// Whether a right is lacking.
    #[must_use]
    pub fn denied(&self) -> bool {
        const EPERM: u32 = 1;
        const EACCES: u32 = 13;
        match self {
            Self::Socket { errno, .. } | Self::Refused { errno, .. } => {
                matches!(*errno, EPERM | EACCES)
            }
            _ => false,
        }
    }
}
