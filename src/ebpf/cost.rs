//! What the kernel tells about our own maps and programs: memory, and what was missed.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A count of the kernel's that starts anew when its probe does, as one that only rises.
#[derive(Debug, Default)]
pub struct Rising {
    before: u64,
    last: u64,
}

impl Rising {
    /// All that was ever counted, now that the kernel says `now`.
    pub fn rise_to(&mut self, now: u64) -> u64 {
        if now < self.last {
            self.restart();
        }
        self.last = now;
        self.before + now
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.before + self.last
    }

    /// Another probe counts from here on.
    pub fn restart(&mut self) {
        self.before += self.last;
        self.last = 0;
    }
}

/// Kernel memory of a map, as its fdinfo tells; 0 where it doesn't.
pub fn map_memory(map: BorrowedFd<'_>) -> u64 {
    std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))
        .ok()
        .and_then(|text| {
            text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
        })
        .unwrap_or(0)
}

/// Runs of a program that the kernel left out because it was already inside one; 0 before 5.12.
#[allow(unsafe_code)]
pub fn recursion_misses(program: BorrowedFd<'_>) -> u64 {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` is as large as `length` says, and zeroed.
    let status = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
    };
    if status == 0 { info.recursion_misses } else { 0 }
}

/// Calls that a kprobe of the perf PMU missed; None where the kernel does not tell (before 6.7).
#[allow(unsafe_code)]
pub fn kprobe_misses(link: &impl AsFd) -> Option<u64> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` is as large as `length` says, and zeroed.
    let status = unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(
            link.as_fd().as_raw_fd(),
            &raw mut info,
            &raw mut length,
        )
    };
    if status != 0 || info.type_ != libbpf_sys::BPF_LINK_TYPE_PERF_EVENT {
        return None;
    }
    // SAFETY: the type says which member the kernel filled; all are integers in any case.
    let event = unsafe { info.__bindgen_anon_1.perf_event };
    let kinds = [libbpf_sys::BPF_PERF_EVENT_KPROBE, libbpf_sys::BPF_PERF_EVENT_KRETPROBE];
    if !kinds.contains(&event.type_) {
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { event.__bindgen_anon_1.kprobe.missed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_probe_missed_before_its_module_was_reloaded_is_not_forgotten() {
        let mut misses = Rising::default();
        assert_eq!([0, 5, 5, 2, 7].map(|now| misses.rise_to(now)), [0, 5, 5, 7, 12]);
        misses.restart();
        assert_eq!(misses.rise_to(9), 21);
    }
}
