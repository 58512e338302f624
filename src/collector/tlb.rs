//! Collector `tlb`: translations that the CPUs had to look up.

use std::time::Duration;

use crate::metrics::{Metric, Page, PageError, tlb};
use crate::model::{
    Counting, Labels, ProcessKey, TlbCounter, TlbEvent, TlbFigures, TlbNode, TlbProcess, TlbRole,
};

use super::{CollectError, Collector, Scene, SourceTimes};

pub struct Tlb;

impl Collector for Tlb {
    fn name(&self) -> &'static str {
        "tlb"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.tlb
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let figures = scene.tlb.map_err(Clone::clone)?;
        for counter in &figures.counters {
            counted(counter, page)?;
        }
        for event in TlbEvent::ALL {
            times(figures, event, page)?;
        }
        let shown = &scene.view.shown;
        for process in &figures.processes {
            // To the tick, as the list of processes may tell no more of their starts.
            let is_it = |key: ProcessKey| key.tick() == process.key.tick();
            if let Some(shown) = shown.iter().find(|shown| shown.key.is_some_and(is_it)) {
                of_process(process, &shown.labels, page)?;
            }
        }
        verdict(figures)
    }
}

/// Values of the labels `tlb` and `op`.
fn words(event: TlbEvent) -> [&'static str; 2] {
    match event {
        TlbEvent::DataLoad | TlbEvent::PageWalk => ["data", "load"],
        TlbEvent::DataStore => ["data", "store"],
        TlbEvent::InstructionLoad => ["instruction", "load"],
    }
}

fn counted(counter: &TlbCounter, page: &mut Page) -> Result<(), PageError> {
    let [tlb, op] = words(counter.event);
    let is_counted = f64::from(counter.counting == Counting::Counted);
    page.number(&tlb::EVENT_COUNTED, &[tlb, op, counter.role.word()], is_counted)?;
    let (metric, by_words): (&'static Metric, _) = match counter.role {
        TlbRole::Access => (&tlb::ACCESSES, true),
        TlbRole::Miss => (&tlb::MISSES, true),
        TlbRole::Cycles => (&tlb::CPU_CYCLES, false),
        TlbRole::Walks => (&tlb::PAGE_WALKS, false),
        TlbRole::WalkCycles => (&tlb::PAGE_WALK_CYCLES, false),
    };
    for TlbNode { node, count, .. } in &counter.nodes {
        let node = node.to_string();
        let labels = [node.as_str(), tlb, op];
        page.number(metric, if by_words { &labels } else { &labels[..1] }, *count as f64)?;
    }
    Ok(())
}

/// How long an event was counted: both of its counters at the same times, if there are two.
fn times(figures: &TlbFigures, event: TlbEvent, page: &mut Page) -> Result<(), PageError> {
    let of = |role| {
        let mut counters = figures.counters.iter();
        counters.find(|counter| {
            (counter.event, counter.role, &counter.counting) == (event, role, &Counting::Counted)
        })
    };
    let Some(counter) = of(TlbRole::Miss).or_else(|| of(TlbRole::Access)) else { return Ok(()) };
    let [tlb, op] = words(event);
    for TlbNode { node, enabled_ns, running_ns, .. } in &counter.nodes {
        let node = node.to_string();
        let labels = [node.as_str(), tlb, op];
        page.number(&tlb::ENABLED_SECONDS, &labels, *enabled_ns as f64 / 1e9)?;
        page.number(&tlb::RUNNING_SECONDS, &labels, *running_ns as f64 / 1e9)?;
    }
    Ok(())
}

fn of_process(process: &TlbProcess, labels: &Labels, page: &mut Page) -> Result<(), PageError> {
    let metric = match process.role {
        TlbRole::Access => &tlb::PROCESS_ACCESSES,
        TlbRole::Miss => &tlb::PROCESS_MISSES,
        TlbRole::Cycles | TlbRole::Walks | TlbRole::WalkCycles => return Ok(()),
    };
    page.process_number_by(metric, labels, words(process.event), process.count as f64)
}

/// Fine if anything is counted; else what is the easiest to help comes first.
fn verdict(figures: &TlbFigures) -> Result<(), CollectError> {
    let mut all = figures.counters.iter().map(|counter| &counter.counting);
    if all.clone().any(|counting| *counting == Counting::Counted) {
        return figures.missing.as_ref().map_or(Ok(()), error);
    }
    let rank = |counting: &&Counting| match counting {
        Counting::Denied(_) => 0,
        Counting::Failed(_) => 1,
        Counting::NoData(_) => 2,
        Counting::Unsupported(_) | Counting::Counted => 3,
    };
    let first = all.clone().map(|counting| rank(&counting)).min();
    all.find(|counting| Some(rank(counting)) == first).map_or(Ok(()), error)
}

fn error(counting: &Counting) -> Result<(), CollectError> {
    Err(match counting.clone() {
        Counting::Counted => return Ok(()),
        Counting::NoData(why) => CollectError::NoData(why),
        Counting::Unsupported(why) => CollectError::Unsupported(why),
        Counting::Denied(why) => CollectError::Denied(why),
        Counting::Failed(why) => CollectError::Failed(why),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(all: &[Counting], missing: Option<Counting>) -> TlbFigures {
        let counter = |counting: &Counting| TlbCounter {
            event: TlbEvent::DataLoad,
            role: TlbRole::Miss,
            counting: counting.clone(),
            nodes: Vec::new(),
        };
        TlbFigures { counters: all.iter().map(counter).collect(), processes: Vec::new(), missing }
    }

    #[test]
    fn one_event_that_is_counted_suffices_and_else_what_can_be_helped_is_told() {
        let absent = Counting::Unsupported("absent".into());
        let denied = Counting::Denied("CAP_PERFMON".into());
        let failed = Counting::Failed("files".into());
        let silent = Counting::NoData("nothing yet".into());
        let state = |all: &[Counting]| verdict(&figures(all, None)).unwrap_err().state();
        assert_eq!(verdict(&figures(&[absent.clone(), Counting::Counted], None)), Ok(()));
        assert_eq!(state(&[absent.clone(), denied.clone(), failed.clone()]), "denied");
        assert_eq!(state(&[absent.clone(), silent.clone(), failed.clone()]), "failed");
        assert_eq!(state(&[absent.clone(), silent]), "no_data");
        assert_eq!(state(&[absent.clone(), absent]), "unsupported");
        let partly = figures(&[Counting::Counted], Some(denied));
        assert_eq!(verdict(&partly), Err(CollectError::Denied("CAP_PERFMON".into())));
    }
}
