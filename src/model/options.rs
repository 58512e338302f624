//! What the user may choose of what several rooms share.

/// How functions of modules are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttachMode {
    /// Kprobes, which hold no module.
    #[default]
    Auto,
    /// Trampolines where there is BTF: cheaper, but the RDMA modules can't be unloaded meanwhile.
    Fentry,
}

impl AttachMode {
    pub const ALL: [Self; 2] = [Self::Auto, Self::Fentry];

    /// The word for it on the command line and in the configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fentry => "fentry",
        }
    }
}

/// What is loaded into the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EbpfOptions {
    pub attach: AttachMode,
    /// Concurrent calls that a return probe can follow, 1 to 4096.
    pub maxactive: u32,
    /// Rows of the map of live pins: one for each umem that lives.
    pub max_pins: u32,
    /// Rows of the map of processes: each that registered and lives, or ended in the last seconds.
    pub max_processes: u32,
    /// Deregistered MRs that are remembered, so that one that comes back is known.
    pub history: u32,
    /// Looks at the pages of each MR as it is made.
    pub placement: bool,
    /// Gives up the right to attach again once all is attached.
    pub permanent_drop: bool,
    pub watched: Watched,
}

/// Which calls are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    /// Registrations and pins.
    pub mr: bool,
    /// mlock and its kin.
    pub mlock: Option<MlockOptions>,
}

/// How mlock and its kin are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlockOptions {
    /// Counts calls and their time for each process too.
    pub per_process: bool,
    /// Where functions can't be watched, tracepoints are, which slow down every system call of the
    /// host.
    pub tracepoints: bool,
}

impl Default for MlockOptions {
    fn default() -> Self {
        Self { per_process: true, tracepoints: false }
    }
}

impl Watched {
    #[must_use]
    pub fn nothing(&self) -> bool {
        !self.mr && self.mlock.is_none()
    }
}

impl Default for Watched {
    fn default() -> Self {
        Self { mr: true, mlock: Some(MlockOptions::default()) }
    }
}

impl EbpfOptions {
    /// KRETPROBE_MAXACTIVE_MAX of the kernel.
    pub const MAXACTIVE_LIMIT: u32 = 4096;
    /// 16 million rows of 80 bytes: what a hash of the kernel can hold in one piece.
    pub const ROWS_LIMIT: u32 = 1 << 24;
}

impl Default for EbpfOptions {
    fn default() -> Self {
        Self {
            attach: AttachMode::Auto,
            // 64 threads beside two mmap loops lost 1,024 of 6,400 at the kernel's own 4 to 16,
            // none at 128.
            maxactive: 512,
            max_pins: 131_072,
            max_processes: 8192,
            history: 65_536,
            placement: true,
            permanent_drop: false,
            watched: Watched::default(),
        }
    }
}

/// What tells one process series from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProcessLabel {
    Pid,
    Comm,
    Cgroup,
    ContainerId,
    PodUid,
    SlurmJob,
    SlurmStep,
    SystemdUnit,
}

impl ProcessLabel {
    pub const ALL: [Self; 8] = [
        Self::Pid,
        Self::Comm,
        Self::Cgroup,
        Self::ContainerId,
        Self::PodUid,
        Self::SlurmJob,
        Self::SlurmStep,
        Self::SystemdUnit,
    ];

    /// The name of the label.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Pid => "pid",
            Self::Comm => "comm",
            Self::Cgroup => "cgroup",
            Self::ContainerId => "container_id",
            Self::PodUid => "pod_uid",
            Self::SlurmJob => "slurm_job",
            Self::SlurmStep => "slurm_step",
            Self::SystemdUnit => "systemd_unit",
        }
    }
}

/// The words of all collectors, in the order of the page: file, flag, config key and label.
pub const COLLECTORS: [&str; 10] = [
    "mr",
    "process",
    "mlock",
    "hugepages",
    "tlb",
    "write_probe",
    "devices",
    "resources",
    "placement",
    "exporter",
];
