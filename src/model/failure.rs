//! Registrations that failed: why, and what helps. The one written list of causes.

/// Why a registration failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    Refused,
    Device,
    MemlockZero,
    MemlockLimit,
    NoMemory,
    Interrupted,
    BadAddress,
    HugepageUnavailable,
    Invalid,
    Other,
}

impl Cause {
    /// In the order of `enum failure_cause` of bpf/process.h.
    pub const ALL: [Self; 10] = [
        Self::Refused,
        Self::Device,
        Self::MemlockZero,
        Self::MemlockLimit,
        Self::NoMemory,
        Self::Interrupted,
        Self::BadAddress,
        Self::HugepageUnavailable,
        Self::Invalid,
        Self::Other,
    ];

    /// The value of the label `cause`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Device => "device",
            Self::MemlockZero => "memlock_zero",
            Self::MemlockLimit => "memlock_limit",
            Self::NoMemory => "no_memory",
            Self::Interrupted => "interrupted",
            Self::BadAddress => "bad_address",
            Self::HugepageUnavailable => "hugepage_unavailable",
            Self::Invalid => "invalid",
            Self::Other => "other",
        }
    }

    /// What happened; docs/runbook.md has the same words.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Refused => {
                "the kernel or the driver said no before any page was pinned, for example to access \
                 flags"
            }
            Self::Device => "the pages were pinned, but the driver or the NIC failed",
            Self::MemlockZero => "RLIMIT_MEMLOCK of the process is 0",
            Self::MemlockLimit => {
                "what it has pinned and what it asked for exceed RLIMIT_MEMLOCK, and it lacks \
                 CAP_IPC_LOCK"
            }
            Self::NoMemory => {
                "ENOMEM for another reason: the host or the cgroup is short of memory"
            }
            Self::Interrupted => "a signal came, often the OOM killer's",
            Self::BadAddress => {
                "the range is not mapped, or not with the rights that were asked for"
            }
            Self::HugepageUnavailable => {
                "the range is a mapping of hugepages that was not reserved, and the pool, or the \
                 cgroup's limit of it, has no page left: touching it is a SIGBUS"
            }
            Self::Invalid => {
                "an overflowing or empty range, or on-demand paging where there is none"
            }
            Self::Other => "none of these: see `errno`",
        }
    }

    /// What helps: a sentence, which docs/runbook.md has as well.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Refused => {
                "Ask for rights that go together (remote write needs local write) and that the \
                 device has."
            }
            Self::Device => {
                "Look for messages of the driver in dmesg, and for the device's limit of MRs."
            }
            Self::MemlockZero | Self::MemlockLimit => {
                "Raise RLIMIT_MEMLOCK where the process is started (LimitMEMLOCK=infinity, \
                 --ulimit memlock=-1), or give it CAP_IPC_LOCK outside of any user namespace."
            }
            Self::NoMemory => {
                "Look at memory.max of the process's cgroup and at MemAvailable: give it more, or \
                 register less."
            }
            Self::Interrupted => {
                "Look in dmesg for the OOM killer, and at memory.max of the process's cgroup; \
                 else somebody stopped the process."
            }
            Self::BadAddress => {
                "Mend the program: map the range, with the right to write where the device may \
                 write; GPU memory needs a peer-memory module or a dma-buf."
            }
            Self::HugepageUnavailable => {
                "Enlarge the pool or the cgroup's limit, or map without MAP_NORESERVE, which fails \
                 when it maps."
            }
            Self::Invalid => "Mend the program: the length, or on-demand paging.",
            Self::Other => "Look the errno up, and in dmesg.",
        }
    }
}

/// Failed registrations of one device, errno and cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub device: String,
    /// The positive errno that the kernel returned.
    pub error: u32,
    pub cause: Cause,
    pub count: u64,
}
