//! What a hook is: one function of the kernel and the programs that watch it.

use crate::model::Watched;

use super::{mlock, umem, verbs};

/// Where the programs of a hook sit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// At entry and at return.
    Around,
    /// At entry alone.
    Entry,
}

/// A function of the kernel that is watched. Its programs are `<name>_enter` and `<name>_exit`
/// (kprobe), `<name>_fentry` and `<name>_fexit`, and for a system call `<name>_entered` and
/// `<name>_left` (tracepoint).
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    pub name: &'static str,
    pub symbol: &'static str,
    /// Modules that hold the function on some kernel; none if the kernel itself does on all.
    pub modules: &'static [&'static str],
    pub shape: Shape,
    /// The system call that it is.
    pub syscall: Option<&'static str>,
}

/// A program of a hook: where it sits and how its name ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Enter,
    Exit,
}

impl Shape {
    #[must_use]
    pub fn sides(self) -> &'static [Side] {
        match self {
            Self::Around => &[Side::Enter, Side::Exit],
            Self::Entry => &[Side::Enter],
        }
    }
}

impl Side {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Enter => "enter",
            Self::Exit => "exit",
        }
    }
}

impl Hook {
    /// Name of the kprobe program at `side`.
    #[must_use]
    pub fn kprobe_program(&self, side: Side) -> String {
        format!("{}_{}", self.name, side.word())
    }

    /// Name of the tracepoint program at `side`.
    #[must_use]
    pub fn tracepoint_program(&self, side: Side) -> String {
        let word = match side {
            Side::Enter => "entered",
            Side::Exit => "left",
        };
        format!("{}_{word}", self.name)
    }

    /// Name of the fentry or fexit program at `side`.
    #[must_use]
    pub fn fentry_program(&self, side: Side) -> String {
        let word = match side {
            Side::Enter => "fentry",
            Side::Exit => "fexit",
        };
        format!("{}_{word}", self.name)
    }
}

/// A group of programs that load together: one BPF object.
#[derive(Debug)]
pub struct Stem {
    pub name: &'static str,
    pub object: &'static [u8],
    pub hooks: &'static [Hook],
}

/// All groups. Whole verbs come first: a pin that is seen must find the call around it.
pub static STEMS: [&Stem; 3] = [&verbs::STEM, &umem::STEM, &mlock::STEM];

impl Stem {
    /// Whether its calls are to be watched.
    #[must_use]
    pub fn is_watched(&self, watched: Watched) -> bool {
        if self.name == mlock::STEM.name { watched.mlock.is_some() } else { watched.mr }
    }
}

/// Modules that hold a function of any hook.
pub fn modules() -> impl Iterator<Item = &'static str> {
    STEMS.iter().flat_map(|stem| stem.hooks).flat_map(|hook| hook.modules).copied()
}

/// Every kernel function of every hook.
#[must_use]
pub fn symbols() -> Vec<&'static str> {
    STEMS.iter().flat_map(|stem| stem.hooks).map(|hook| hook.symbol).collect()
}
