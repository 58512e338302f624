//! /proc/meminfo and /proc/vmstat, line by line: one that is missing or no number hides no other.

use std::path::Path;

use super::{Files, absent, number, strange, trouble};
use crate::host::HostError;

/// Lines of /proc/meminfo, in bytes; None where the kernel has no such line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemInfo {
    pub total_bytes: Option<u64>,
    pub available_bytes: Option<u64>,
    pub hugetlb_bytes: Option<u64>,
    pub default_page_size_bytes: Option<u64>,
    pub anon_hugepages_bytes: Option<u64>,
    pub shmem_hugepages_bytes: Option<u64>,
    pub file_hugepages_bytes: Option<u64>,
    pub mlocked_bytes: Option<u64>,
    pub unevictable_bytes: Option<u64>,
    pub page_tables_bytes: Option<u64>,
    pub secondary_page_tables_bytes: Option<u64>,
}

/// Counters of /proc/vmstat; None where the kernel has no such line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VmEvents {
    pub pins_acquired: Option<u64>,
    pub pins_released: Option<u64>,
    pub oom_kills: Option<u64>,
    pub hugepage_allocations: Option<u64>,
    pub hugepage_allocation_failures: Option<u64>,
    pub thp_faults: Option<u64>,
    pub thp_fallbacks: Option<u64>,
    pub thp_collapses: Option<u64>,
    pub thp_splits: Option<u64>,
}

/// What a kernel has tells which lines it owes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    pub has_hugetlb: bool,
    pub has_thp: bool,
}

/// Who has a line.
#[derive(Debug, Clone, Copy)]
enum Owed {
    Always,
    ByHugetlb,
    ByThp,
    /// Some kernels have it.
    Never,
}

impl Owed {
    fn by(self, kernel: Kernel) -> bool {
        match self {
            Self::Always => true,
            Self::ByHugetlb => kernel.has_hugetlb,
            Self::ByThp => kernel.has_thp,
            Self::Never => false,
        }
    }
}

/// A line's name, who has it, and where its figure goes.
type Line<T> = (&'static str, Owed, fn(&mut T) -> &mut Option<u64>);

/// Every kernel from 5.10 on has those that are owed always; SecPageTables is there from 6.1 on.
const MEMINFO: [Line<MemInfo>; 11] = [
    ("MemTotal", Owed::Always, |info| &mut info.total_bytes),
    ("MemAvailable", Owed::Always, |info| &mut info.available_bytes),
    ("Unevictable", Owed::Always, |info| &mut info.unevictable_bytes),
    ("Mlocked", Owed::Always, |info| &mut info.mlocked_bytes),
    ("PageTables", Owed::Always, |info| &mut info.page_tables_bytes),
    ("SecPageTables", Owed::Never, |info| &mut info.secondary_page_tables_bytes),
    ("AnonHugePages", Owed::ByThp, |info| &mut info.anon_hugepages_bytes),
    ("ShmemHugePages", Owed::ByThp, |info| &mut info.shmem_hugepages_bytes),
    ("FileHugePages", Owed::ByThp, |info| &mut info.file_hugepages_bytes),
    ("Hugepagesize", Owed::ByHugetlb, |info| &mut info.default_page_size_bytes),
    ("Hugetlb", Owed::ByHugetlb, |info| &mut info.hugetlb_bytes),
];

const VMSTAT: [Line<VmEvents>; 9] = [
    ("nr_foll_pin_acquired", Owed::Never, |events| &mut events.pins_acquired),
    ("nr_foll_pin_released", Owed::Never, |events| &mut events.pins_released),
    ("oom_kill", Owed::Never, |events| &mut events.oom_kills),
    ("htlb_buddy_alloc_success", Owed::Never, |events| &mut events.hugepage_allocations),
    ("htlb_buddy_alloc_fail", Owed::Never, |events| &mut events.hugepage_allocation_failures),
    ("thp_fault_alloc", Owed::Never, |events| &mut events.thp_faults),
    ("thp_fault_fallback", Owed::Never, |events| &mut events.thp_fallbacks),
    ("thp_collapse_alloc", Owed::Never, |events| &mut events.thp_collapses),
    ("thp_split_page", Owed::Never, |events| &mut events.thp_splits),
];

pub(super) fn meminfo(
    path: &Path,
    kernel: Kernel,
    files: &mut Files,
    troubles: &mut Vec<HostError>,
) -> MemInfo {
    let kib = |rest: &[u8]| number(rest.strip_suffix(b" kB")?.trim_ascii())?.checked_mul(1024);
    let says = |name: &str| format!("\"{name}: KIB kB\", KIB below 2^54");
    let (info, wrong) = match files.read(path) {
        Ok(text) => parse(text, b':', &MEMINFO, kernel, kib, says),
        Err(error) => return refused(path, error, troubles),
    };
    troubles.extend(wrong.into_iter().map(|what| trouble(path, strange(what))));
    info
}

/// A kernel without event counters has no such file.
pub(super) fn vmstat(path: &Path, files: &mut Files, troubles: &mut Vec<HostError>) -> VmEvents {
    let kernel = Kernel { has_hugetlb: false, has_thp: false };
    let says = |name: &str| format!("\"{name} COUNT\", COUNT below 2^64");
    let (events, wrong) = match files.read(path) {
        Ok(text) => parse(text, b' ', &VMSTAT, kernel, number, says),
        Err(error) if absent(&error) => return VmEvents::default(),
        Err(error) => return refused(path, error, troubles),
    };
    troubles.extend(wrong.into_iter().map(|what| trouble(path, strange(what))));
    events
}

fn refused<T: Default>(path: &Path, error: std::io::Error, troubles: &mut Vec<HostError>) -> T {
    troubles.push(trouble(path, error));
    T::default()
}

/// What the lines say, and what is wrong with some. What is wrong is told without the figure: it
/// may change at each reading, and then the same trouble would be a new one each time.
fn parse<T: Default>(
    text: &[u8],
    separator: u8,
    wanted: &[Line<T>],
    kernel: Kernel,
    figure: impl Fn(&[u8]) -> Option<u64>,
    says: impl Fn(&str) -> String,
) -> (T, Vec<String>) {
    let mut found = T::default();
    let mut wrong = Vec::new();
    let mut seen = vec![false; wanted.len()];
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let Some(end) = line.iter().position(|byte| *byte == separator) else { continue };
        let (name, rest) = (&line[..end], &line[end + 1..]);
        let known = wanted.iter().position(|(wanted, ..)| wanted.as_bytes() == name);
        let Some(position) = known.filter(|position| !seen[*position]) else { continue };
        let (name, _, place) = &wanted[position];
        seen[position] = true;
        match figure(rest.trim_ascii()) {
            Some(value) => *place(&mut found) = Some(value),
            None => wrong.push(format!("line {}: expected {}", at + 1, says(name))),
        }
    }
    for ((name, owed, _), seen) in wanted.iter().zip(seen) {
        if !seen && owed.by(kernel) {
            wrong.push(format!("expected a line {}", says(name)));
        }
    }
    (found, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Kernel = Kernel { has_hugetlb: true, has_thp: true };

    fn read(text: &str, kernel: Kernel) -> (MemInfo, Vec<String>) {
        let path = std::env::temp_dir().join(format!(
            "mrscope-meminfo-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&path, text).unwrap();
        let mut troubles = Vec::new();
        let info = meminfo(&path, kernel, &mut Files::default(), &mut troubles);
        std::fs::remove_file(&path).unwrap();
        let prefix = format!("{}: ", path.display());
        let said = |trouble: &HostError| trouble.to_string().replace(&prefix, "");
        (info, troubles.iter().map(said).collect())
    }

    const FEW: Kernel = Kernel { has_hugetlb: false, has_thp: false };
    const FIVE: &str =
        "MemTotal: 8 kB\nMemAvailable: 4 kB\nUnevictable: 3 kB\nMlocked: 2 kB\nPageTables: 1 kB\n";

    #[test]
    fn a_line_that_is_no_number_hides_no_other() {
        for bad in ["x kB", "1", "-1 kB", "+1 kB", " kB", "1 MB", "1 kB kB", "18014398509481984 kB"]
        {
            let text = FIVE.replace("MemAvailable: 4 kB", &format!("MemAvailable: {bad}"));
            let (info, wrong) = read(&text, FEW);
            assert_eq!(info.available_bytes, None, "{bad}");
            assert_eq!(info.total_bytes, Some(8192), "{bad}");
            assert_eq!(info.page_tables_bytes, Some(1024), "{bad}");
            assert_eq!(
                wrong,
                ["line 2: expected \"MemAvailable: KIB kB\", KIB below 2^54"],
                "{bad}"
            );
        }
        let most = FIVE.replace("MemTotal: 8", "MemTotal: 18014398509481983");
        assert_eq!(read(&most, FEW).0.total_bytes, Some(u64::MAX - 1023));
    }

    #[test]
    fn only_what_the_kernel_owes_is_missed() {
        assert_eq!(read(FIVE, FEW).1, Vec::<String>::new());
        let (_, wrong) = read(&FIVE.replace("Mlocked: 2 kB\n", ""), FEW);
        assert_eq!(wrong, ["expected a line \"Mlocked: KIB kB\", KIB below 2^54"]);
        let (_, wrong) = read(FIVE, ALL);
        assert_eq!(wrong.len(), 5, "{wrong:?}");
        for name in ["AnonHugePages", "ShmemHugePages", "FileHugePages", "Hugepagesize", "Hugetlb"]
        {
            let line = format!("a line \"{name}:");
            assert!(wrong.iter().any(|said| said.contains(&line)), "{wrong:?}");
        }
    }

    #[test]
    fn a_name_that_begins_alike_is_another() {
        let (info, _) = read(&format!("MemTotalX: 1 kB\nSecPageTables: 9 kB\n{FIVE}"), FEW);
        assert_eq!(info.total_bytes, Some(8192));
        assert_eq!(info.page_tables_bytes, Some(1024));
        assert_eq!(info.secondary_page_tables_bytes, Some(9216));
    }
}
