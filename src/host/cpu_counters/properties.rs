//! Whatever CPUs and counters do, no total falls.

use proptest::prelude::*;

use super::tests::{Hardware, Reads};
use super::*;

const CPUS: u32 = 4;
const EVENTS: [Event; 2] = [Event::cache(3, 0, 0), Event::cache(3, 0, 1)];

/// What happens between two readings.
#[derive(Debug, Clone)]
enum Happens {
    Passes {
        cpu: u32,
        ns: u64,
        events: u64,
        running: bool,
    },
    Goes {
        cpu: u32,
        reads: bool,
    },
    Comes {
        cpu: u32,
    },
    /// Counters that are open can't be read any more, or can again.
    Reads {
        cpu: u32,
        how: u8,
    },
    /// They begin at zero again.
    Restarts {
        cpu: u32,
    },
    /// An event is refused from here on, or no more.
    Refuses {
        cpu: Option<u32>,
        event: usize,
        why: u8,
    },
    Allows,
    /// With the list of CPUs as it is, or as it was.
    Reading {
        stale: bool,
    },
}

fn happens(calm: bool) -> BoxedStrategy<Happens> {
    let cpu = 0..CPUS;
    let passes = (cpu.clone(), 1..20_000_000_000u64, 0..1_000u64, prop::bool::weighted(0.7))
        .prop_map(move |(cpu, ns, events, running)| Happens::Passes {
            cpu,
            ns,
            events,
            running: running || calm,
        });
    let goes = (cpu.clone(), any::<bool>())
        .prop_map(move |(cpu, reads)| Happens::Goes { cpu, reads: reads || calm });
    let comes = cpu.clone().prop_map(|cpu| Happens::Comes { cpu });
    let reading = any::<bool>().prop_map(|stale| Happens::Reading { stale });
    let quiet = prop_oneof![6 => passes, 1 => goes, 2 => comes, 4 => reading];
    if calm {
        return quiet.boxed();
    }
    let reads = (cpu.clone(), 0..3u8).prop_map(|(cpu, how)| Happens::Reads { cpu, how });
    let restarts = cpu.clone().prop_map(|cpu| Happens::Restarts { cpu });
    let refuses = (prop::option::of(cpu), 0..2usize, 0..3u8)
        .prop_map(|(cpu, event, why)| Happens::Refuses { cpu, event, why });
    prop_oneof![
        12 => quiet,
        1 => reads,
        1 => restarts,
        1 => refuses,
        1 => Just(Happens::Allows),
    ]
    .boxed()
}

/// Does it all, and looks at the totals after each reading.
fn live(
    happenings: &[Happens],
    mut look: impl FnMut(&CpuCounters<super::tests::Handle>, &Hardware),
) {
    let mut hardware = Hardware::default();
    let mut counters = CpuCounters::new(&EVENTS);
    let now = |hardware: &Hardware| -> BTreeMap<u32, u32> {
        let there = (0..CPUS).filter(|cpu| !hardware.offline.contains(cpu));
        there.map(|cpu| (cpu, cpu % 2)).collect()
    };
    let mut online = now(&hardware);
    for happening in happenings {
        match happening.clone() {
            Happens::Passes { cpu, ns, events, running } => {
                hardware.passes(cpu, ns, events, running);
            }
            Happens::Goes { cpu, reads } => {
                hardware.goes(cpu, if reads { Reads::Well } else { Reads::Nothing });
            }
            Happens::Comes { cpu } => hardware.comes(cpu),
            Happens::Reads { cpu, how } => {
                let how = [Reads::Well, Reads::Nothing, Reads::Fails][usize::from(how)];
                hardware.read_as(cpu, how);
            }
            Happens::Restarts { cpu } => hardware.restarts(cpu),
            Happens::Refuses { cpu, event, why } => {
                let why = [Why::Denied, Why::NoFiles, Why::Other(16)][usize::from(why)];
                hardware.refuses.push((cpu, EVENTS[event], why));
            }
            Happens::Allows => hardware.refuses.clear(),
            Happens::Reading { stale } => {
                if !stale {
                    online = now(&hardware);
                }
                counters.read(&mut hardware, &online);
                look(&counters, &hardware);
            }
        }
    }
    // What was counted and not read yet.
    online = now(&hardware);
    counters.read(&mut hardware, &online);
    look(&counters, &hardware);
}

fn totals(counters: &CpuCounters<super::tests::Handle>) -> BTreeMap<(usize, u32), NodeTotal> {
    let of =
        |event: usize| counters.totals(event).iter().map(move |(node, at)| ((event, *node), *at));
    (0..EVENTS.len()).flat_map(of).collect()
}

proptest! {
    #[test]
    fn no_total_ever_falls(happenings in prop::collection::vec(happens(false), 1..80)) {
        let mut last = BTreeMap::new();
        let mut fell = None;
        live(&happenings, |counters, _| {
            let now = totals(counters);
            for (key, before) in &last {
                let before: &NodeTotal = before;
                let after = now.get(key).copied().unwrap_or_default();
                let rises = after.count >= before.count
                    && after.enabled_ns >= before.enabled_ns
                    && after.running_ns >= before.running_ns;
                if !rises {
                    fell = Some((*key, *before, after));
                }
            }
            last = now;
        });
        prop_assert_eq!(fell, None);
    }

    #[test]
    fn without_turns_the_totals_are_what_the_hardware_counted(
        happenings in prop::collection::vec(happens(true), 1..80)
    ) {
        let mut end = (0, 0);
        live(&happenings, |counters, hardware| {
            let total: u64 = counters.totals(1).values().map(|total| total.count).sum();
            let counted = hardware.counted.get(&EVENTS[1].config).copied().unwrap_or_default();
            end = (total, counted);
        });
        prop_assert_eq!(end.0, end.1);
    }
}
