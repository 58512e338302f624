//! What is logged: a state when it changes, never at each page, and with what helps.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Attach, HookState, Snapshot, Trouble};

use super::CollectError;
use super::exporter::Report;

/// A map that is so full is worth a word before it loses anything.
const FULL_SHARE: f64 = 0.8;

/// What was said last.
#[derive(Default)]
pub struct Journal {
    collectors: BTreeMap<&'static str, String>,
    hooks: BTreeMap<&'static str, (Attach, Option<Trouble>)>,
    lost: BTreeSet<(String, &'static str)>,
    full: BTreeSet<&'static str>,
}

impl Journal {
    pub fn collectors(&mut self, reports: &[Report]) {
        for Report { collector, outcome, .. } in reports {
            let state = outcome.as_ref().err().map_or("ok", CollectError::state);
            let reason = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let now = format!("{state} {reason}");
            if self.collectors.get(collector) == Some(&now) {
                continue;
            }
            self.collectors.insert(collector, now);
            match outcome {
                Ok(()) => tracing::info!(collector, state, "collector {collector}: ok"),
                Err(CollectError::NoData(_)) => {
                    tracing::info!(collector, state, "collector {collector}: no data: {reason}");
                }
                Err(_) => {
                    tracing::warn!(collector, state, "collector {collector}: {state}: {reason}");
                }
            }
        }
    }

    /// Hooks that lost their function, or got it, one line for each way; at the start only what
    /// is in trouble.
    pub fn hooks<'a>(&mut self, hooks: impl Iterator<Item = &'a HookState>) {
        let mut changed: BTreeMap<&'static str, Vec<&'static str>> = BTreeMap::new();
        for HookState { hook, symbol, attach, trouble } in hooks {
            let now = (*attach, trouble.clone());
            let before = self.hooks.insert(hook, now.clone());
            if before.as_ref() == Some(&now) {
                continue;
            }
            match trouble {
                Some(why @ (Trouble::Denied(_) | Trouble::Refused(_) | Trouble::Replaced(_))) => {
                    tracing::warn!(program = hook, "{hook} ({symbol}) is not attached: {why}");
                }
                _ if before.is_some() => changed.entry(attach.label()).or_default().push(hook),
                _ => {}
            }
        }
        for (attach, programs) in changed {
            tracing::info!(attach, "programs that are {attach} now: {}", programs.join(", "));
        }
    }

    /// The first loss of each kind, and maps that fill up.
    pub fn losses(&mut self, snapshot: &Snapshot) {
        for lost in snapshot.lost.iter().filter(|lost| lost.count > 0) {
            if self.lost.insert((lost.source.clone(), lost.reason)) {
                tracing::warn!(
                    source = lost.source,
                    reason = lost.reason,
                    "updates were lost: {} {} ({}); {}",
                    lost.source,
                    lost.reason,
                    lost.count,
                    remedy_of_loss(&lost.source, lost.reason)
                );
            }
        }
        for map in &snapshot.maps {
            let full = map.entries as f64 >= FULL_SHARE * map.max_entries as f64;
            if !full || map.may_be_full() {
                self.full.remove(map.map);
            } else if self.full.insert(map.map) {
                tracing::warn!(
                    map = map.map,
                    "the map {} has {} of {} rows in use; {}",
                    map.map,
                    map.entries,
                    map.max_entries,
                    remedy_of_full(map.map)
                );
            }
        }
    }
}

/// What helps when a map is full.
pub fn remedy_of_full(map: &str) -> &'static str {
    match map {
        "pins" => "raise ebpf.max_pins in the configuration and restart mrscope",
        "processes" => "raise ebpf.max_processes in the configuration and restart mrscope",
        _ => "its size is fixed: please report it with the output of /metrics",
    }
}

fn remedy_of_loss(source: &str, reason: &str) -> &'static str {
    match reason {
        "full" => remedy_of_full(source),
        "no_memory" => {
            "the kernel had no memory for what its programs keep: where these MRs lie is unknown, and \
             all else is right"
        }
        "probe_missed" => {
            "more calls at once than return probes follow: raise --ebpf.maxactive (kprobes of the perf \
             PMU can't follow more: mount tracefs writable and restart mrscope)"
        }
        "recursion" => {
            "a program was kept out while another, or another tool's reading of a map, was \
             interrupted on its CPU: kernels that preempt do that now and then, with \
             --ebpf.attach fentry more often"
        }
        "not_written" => "one of the last failures is not shown; it is counted all the same",
        _ => "the return of a call, or a release, was not seen: see probe_missed",
    }
}
