//! How each function of the kernel is watched.

/// The rung of the ladder that a hook stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attach {
    /// Trampoline on a function with BTF.
    Fentry,
    /// A kprobe event of our own in tracefs, or of the perf PMU where tracefs can't be written.
    Kprobe,
    /// A kprobe event whose module is not loaded yet: it comes alive with the module.
    Pending,
    /// Not watched.
    None,
}

impl Attach {
    pub const ALL: [Self; 4] = [Self::Fentry, Self::Kprobe, Self::Pending, Self::None];

    /// The value of the label `attach`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
            Self::Pending => "pending",
            Self::None => "none",
        }
    }
}

/// One hook as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookState {
    /// Name of the hook, as in `umem_get`.
    pub hook: &'static str,
    /// The kernel function.
    pub symbol: &'static str,
    pub attach: Attach,
    /// Why it is not watched; empty when it is.
    pub reason: String,
}
