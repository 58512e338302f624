//! Hooks of bpf/mlock.bpf.c: the system calls that lock memory.

use libbpf_rs::ProgramType;

use crate::model::MlockOptions;

use super::hook::{Hook, Shape, Stem};
use super::load::object;
use super::records;

#[cfg(target_arch = "x86_64")]
macro_rules! function {
    ($syscall:literal) => {
        concat!("__x64_sys_", $syscall)
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! function {
    ($syscall:literal) => {
        concat!("__arm64_sys_", $syscall)
    };
}

macro_rules! hook {
    ($syscall:literal) => {
        Hook {
            name: concat!("mlock_", $syscall),
            symbol: function!($syscall),
            modules: &[],
            shape: Shape::Around,
            syscall: Some($syscall),
        }
    };
}

pub static STEM: Stem = Stem {
    name: "mlock",
    object: object!("mlock"),
    hooks: &[
        hook!("mlock"),
        hook!("mlock2"),
        hook!("mlockall"),
        hook!("munlock"),
        hook!("munlockall"),
    ],
};

/// The map of what threads are in, where they have storage for it.
pub const THREADS: &str = "mlock_threads";

/// Whether tracing programs may keep something with a thread, as this kernel says when it is tried.
#[must_use]
pub fn has_thread_storage() -> bool {
    let helper = |id| ProgramType::Kprobe.is_helper_supported(id).unwrap_or(false);
    helper(libbpf_sys::BPF_FUNC_task_storage_get)
        && helper(libbpf_sys::BPF_FUNC_get_current_task_btf)
}

/// What of the object is a part of its programs.
#[must_use]
pub fn choice(thread_storage: bool, options: MlockOptions) -> records::mlock_choice {
    records::mlock_choice {
        has_thread_storage: thread_storage.into(),
        per_process: options.per_process.into(),
    }
}
