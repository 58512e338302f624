//! Whether the kernel takes the CPU from code that runs inside it.

use super::Host;

/// True where it does, or where nothing tells that it doesn't.
#[must_use]
pub fn preempts(host: &Host) -> bool {
    let dynamic = host.sys_text("kernel/debug/sched/preempt").ok();
    let version = host.proc_text("sys/kernel/version").unwrap_or_default();
    judge(dynamic.as_deref(), &version)
}

/// `dynamic` lists the modes with the one in force in brackets; `version` names what was built in.
fn judge(dynamic: Option<&str>, version: &str) -> bool {
    let mode = dynamic.and_then(|text| Some(text.split_once('(')?.1.split_once(')')?.0));
    match mode {
        Some("none" | "voluntary") => false,
        Some(_) => true,
        None => version.split_whitespace().any(|word| word.starts_with("PREEMPT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_in_force_counts_and_without_it_what_was_built_in() {
        let debian_12 = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3 (2026-11-26)";
        assert!(!judge(Some("none (voluntary) full \n"), debian_12));
        assert!(judge(Some("full (lazy) \n"), debian_12));
        assert!(judge(None, debian_12));
        assert!(!judge(None, "#1 SMP Debian 5.10.262-1 (2026-11-20)"));
        assert!(judge(None, "#1 SMP PREEMPT_RT Debian"));
    }
}
