//! The kinds of guests, and what each is booted with.

/// What of a guest is not as usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    Usual,
    /// The same, for half of the cases: with one of either kind for each kernel the machine's CPUs
    /// are done at about the same time.
    Second,
    /// Its CPUs run at the same time.
    Parallel,
    /// The kernel lets nobody change it, root included.
    Integrity,
    /// Nor read it.
    Confidentiality,
}

impl Boot {
    pub const ALL: [Self; 5] =
        [Self::Usual, Self::Second, Self::Parallel, Self::Integrity, Self::Confidentiality];

    /// The word for it between the lab and its guest.
    pub fn word(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Second => "second",
            Self::Parallel => "parallel",
            Self::Integrity => "integrity",
            Self::Confidentiality => "confidentiality",
        }
    }

    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|boot| boot.word() == word)
    }

    /// Where a case is run that needs nothing of its guest: chance has them alike in number.
    pub fn home(case: &str) -> Self {
        let sum: usize = case.bytes().map(usize::from).sum();
        if sum.is_multiple_of(2) { Self::Usual } else { Self::Second }
    }

    /// CPUs of the machine that it keeps busy.
    pub fn weight(self) -> usize {
        if self == Self::Parallel { 2 } else { 1 }
    }

    /// What is said to the kernel. The pages of 2 MiB are spread over the nodes, that of 1 GiB is on
    /// one of them.
    pub fn append(self) -> String {
        let pages = "hugepages=192 hugepagesz=1G hugepages=1";
        match self {
            Self::Usual | Self::Second | Self::Parallel => pages.to_owned(),
            Self::Integrity | Self::Confidentiality => format!("{pages} lockdown={}", self.word()),
        }
    }
}

/// Of NUMA, in every guest.
pub const NODES: u32 = 2;
