//! How each function of the kernel is watched.

/// The rung of the ladder that a hook stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attach {
    /// Trampoline on a function with BTF.
    Fentry,
    /// A kprobe event of our own in tracefs, or of the perf PMU where tracefs can't be written.
    Kprobe,
    /// A tracepoint of a system call.
    Tracepoint,
    /// A program that is run to walk the kernel's own list.
    Iterator,
    /// A kprobe event whose module is not loaded yet: it comes alive with the module.
    Pending,
    /// Not watched.
    None,
}

impl Attach {
    /// The value of the label `attach`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
            Self::Tracepoint => "tracepoint",
            Self::Iterator => "iterator",
            Self::Pending => "pending",
            Self::None => "none",
        }
    }

    #[must_use]
    pub fn watches(self) -> bool {
        matches!(self, Self::Fentry | Self::Kprobe | Self::Tracepoint | Self::Iterator)
    }
}

/// Why a hook is not attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The kernel has no such function: nothing is missed.
    NoFunction,
    /// It may come with a module, but nothing can wait for it here, and why.
    NotLoaded(&'static str),
    /// The kernel has it and refuses for lack of rights.
    Denied(String),
    /// The kernel has it and refuses.
    Refused(String),
    /// The kernel refuses, and the same is had in another way.
    Replaced(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoFunction => f.write_str("this kernel has no such function"),
            Self::NotLoaded(why) => {
                write!(f, "no module has brought it, and nothing can wait for one: {why}")
            }
            Self::Denied(why) | Self::Refused(why) | Self::Replaced(why) => f.write_str(why),
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
    /// None unless `attach` is [`Attach::None`].
    pub trouble: Option<Trouble>,
}
