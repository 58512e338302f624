//! System calls that lock memory, or give it back.

use super::histogram::Slots;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MlockCall {
    Mlock,
    Mlock2,
    Mlockall,
    Munlock,
    Munlockall,
}

impl MlockCall {
    /// In the order of `enum mlock_syscall` of bpf/mlock.h.
    pub const ALL: [Self; 5] =
        [Self::Mlock, Self::Mlock2, Self::Mlockall, Self::Munlock, Self::Munlockall];

    /// The value of the label `syscall`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Mlock => "mlock",
            Self::Mlock2 => "mlock2",
            Self::Mlockall => "mlockall",
            Self::Munlock => "munlock",
            Self::Munlockall => "munlockall",
        }
    }

    /// Whether the caller names a length.
    #[must_use]
    pub fn has_length(self) -> bool {
        matches!(self, Self::Mlock | Self::Mlock2)
    }
}

/// Values of the label `errno`, in the order of `enum mlock_error` of bpf/mlock.h.
pub const MLOCK_ERRORS: [&str; 6] = ["EPERM", "EINTR", "EAGAIN", "ENOMEM", "EINVAL", "other"];

/// One system call since mrscope's start. Slots: [`super::power_of_four_bounds`] from 2^12.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlockTotals {
    pub call: MlockCall,
    /// Of those that succeeded, as all but the failures.
    pub ns: u64,
    pub bytes: u64,
    pub slots: Slots,
    /// By [`MLOCK_ERRORS`].
    pub failures: [u64; MLOCK_ERRORS.len()],
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mlocks {
    pub totals: Vec<MlockTotals>,
    /// Calls are counted for each process too.
    pub per_process: bool,
}
