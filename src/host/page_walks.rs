//! Events of page walks, which have no common name: by the vendors' own lists of events.

use super::perf::Event;
use super::{Host, HostError};

/// Cycles of a CPU, walks that loads caused, and cycles in which such a walk was under way: counted
/// at the same time.
pub type PageWalkEvents = [Event; 3];

/// DTLB_LOAD_MISSES.WALK_COMPLETED and DTLB_LOAD_MISSES.WALK_ACTIVE of Intel's event lists, by the
/// models of family 6 that have them under these numbers. Server CPUs: where the RDMA is.
const INTEL: &[(&[u32], Codes)] = &[
    // Skylake, Cascade Lake and Cooper Lake; Ice Lake.
    (&[0x55, 0x6a, 0x6c], Codes { event: 0x08, completed: 0x0e, active: 0x10 }),
    // Sapphire, Emerald and Granite Rapids.
    (&[0x8f, 0xcf, 0xad, 0xae], Codes { event: 0x12, completed: 0x0e, active: 0x10 }),
];

/// A counter mask of 1: cycles in which there is one at least, not how many there are.
const ONE_OR_MORE: u64 = 1 << 24;

/// An event's number, and the units of it.
struct Codes {
    event: u64,
    completed: u64,
    active: u64,
}

/// The events of this host's CPUs; None of a CPU that is not known.
///
/// # Errors
/// /proc/cpuinfo can't be read.
pub fn page_walk_events(host: &Host) -> Result<Option<PageWalkEvents>, HostError> {
    let text = host.proc_text("cpuinfo")?;
    Ok(cpu(&text).and_then(|(vendor, family, model)| events(vendor, family, model)))
}

/// Vendor, family and model of the first CPU.
fn cpu(cpuinfo: &str) -> Option<(&str, u32, u32)> {
    let value = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then_some(value.trim())
        })
    };
    let number = |name| value(name)?.parse().ok();
    Some((value("vendor_id")?, number("cpu family")?, number("model")?))
}

fn events(vendor: &str, family: u32, model: u32) -> Option<PageWalkEvents> {
    if (vendor, family) != ("GenuineIntel", 6) {
        return None;
    }
    let (_, codes) = INTEL.iter().find(|(models, _)| models.contains(&model))?;
    let Codes { event, completed, active } = codes;
    Some([
        Event::CYCLES,
        Event::raw(event | completed << 8),
        Event::raw(event | active << 8 | ONE_OR_MORE),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpuinfo(vendor: &str, family: u32, model: u32) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
             model name\t: Some CPU: of 2.0 GHz\nstepping\t: 4\n\nprocessor\t: 1\n"
        )
    }

    fn configs(text: &str) -> Option<[u64; 2]> {
        let (vendor, family, model) = cpu(text)?;
        let [cycles, walks, active] = events(vendor, family, model)?;
        assert_eq!(cycles, Event::CYCLES);
        assert_eq!((walks.kind, active.kind), (4, 4), "raw");
        Some([walks.config, active.config])
    }

    #[test]
    fn a_known_cpu_has_the_events_that_its_vendor_lists() {
        for model in [85, 106, 108] {
            let found = configs(&cpuinfo("GenuineIntel", 6, model));
            assert_eq!(found, Some([0x0e08, 0x0100_1008]), "{model}");
        }
        for model in [143, 207, 173, 174] {
            let found = configs(&cpuinfo("GenuineIntel", 6, model));
            assert_eq!(found, Some([0x0e12, 0x0100_1012]), "{model}");
        }
    }

    #[test]
    fn of_any_other_nothing_is_guessed() {
        assert_eq!(configs(&cpuinfo("GenuineIntel", 6, 63)), None);
        assert_eq!(configs(&cpuinfo("GenuineIntel", 15, 85)), None);
        assert_eq!(configs(&cpuinfo("AuthenticAMD", 25, 17)), None);
        assert_eq!(configs("processor\t: 0\nhart\t: 0\nisa\t: rv64imafdc\n"), None);
        assert_eq!(configs(""), None);
    }

    #[test]
    fn no_model_is_listed_twice() {
        let mut models: Vec<u32> = INTEL.iter().flat_map(|(models, _)| *models).copied().collect();
        let all = models.len();
        models.sort_unstable();
        models.dedup();
        assert_eq!(models.len(), all);
    }
}
