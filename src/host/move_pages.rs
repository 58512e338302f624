//! On which NUMA nodes pages of a process lie, by move_pages(2) without a node to move them to: it
//! tells where they are, and moves none.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::io;
use std::ptr::null;

use rustix::io::Errno;

/// Neither the C library nor rustix has a function for it.
const MOVE_PAGES: Option<c_long> = if cfg!(target_arch = "x86_64") {
    Some(279)
} else if cfg!(any(target_arch = "aarch64", target_arch = "riscv64")) {
    Some(239)
} else {
    None
};

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

/// The node of each page of a thread's process; None of a page that is not there, or that the kernel tells no node of.
///
/// # Errors
/// ESRCH: no such thread. EINVAL: it has no memory any more, as it has ended. EPERM: it takes
/// CAP_SYS_PTRACE, or a filter of system calls forbids it. ENOSYS: a kernel without it.
pub(super) fn nodes_of(tid: u32, addresses: &[u64]) -> io::Result<Vec<Option<u32>>> {
    // The pid 0 is the caller.
    let pid = c_int::try_from(tid).ok().filter(|pid| *pid > 0).ok_or(Errno::SRCH)?;
    let number = MOVE_PAGES.ok_or(Errno::NOSYS)?;
    let pages: Vec<*const c_void> =
        addresses.iter().map(|address| *address as usize as *const c_void).collect();
    let mut status = vec![-1; pages.len()];
    // SAFETY: both lists have as many entries as the call is told, of the types that it takes, and
    // outlive it. The addresses are of another process, and looked up there; nothing is moved.
    let done = unsafe {
        syscall(
            number,
            pid,
            pages.len() as c_ulong,
            pages.as_ptr(),
            null::<c_int>(),
            status.as_mut_ptr(),
            0 as c_int,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status.into_iter().map(|node: c_int| u32::try_from(node).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Host, memory_nodes};

    #[test]
    fn a_page_of_this_process_is_on_a_node_with_memory_and_one_that_is_not_there_on_none() {
        let here = Box::new(7u64);
        let addresses = [&raw const *here as u64, 0];
        let nodes = nodes_of(std::process::id(), &addresses).unwrap();
        let known = memory_nodes(&Host::live()).unwrap();
        assert!(known.iter().any(|node| Some(node.number) == nodes[0]), "{nodes:?} of {known:?}");
        assert_eq!(nodes[1], None);
    }

    #[test]
    fn a_process_that_is_not_there_is_no_other() {
        for tgid in [0, u32::MAX] {
            let error = nodes_of(tgid, &[0]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::SRCH.raw_os_error()), "{tgid}");
        }
    }
}
