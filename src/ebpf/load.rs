//! Loads the BPF object of a stem: the programs that its plan needs, on maps that all stems share.

use libbpf_rs::{Object, ObjectBuilder, OpenMapMut, OpenObject};

use crate::model::EbpfOptions;

use super::facts::KernelFacts;
use super::hook::Stem;
use super::maps::SharedMaps;
use super::plan::{PlannedHook, PlannedStem, Rung};
use super::records::{self, Record, as_bytes};
use super::{mlock, placement, umem};

/// The bytes of an object, aligned as an ELF reader wants them.
macro_rules! object {
    ($stem:literal) => {{
        #[repr(C, align(8))]
        struct Aligned<B: ?Sized>(B);
        static OBJECT: &Aligned<[u8]> =
            &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $stem, ".bpf.o")));
        &OBJECT.0
    }};
}
pub(super) use object;

/// Loads a stem; its maps are those of `shared` where that has one of the name.
///
/// # Errors
/// What libbpf says: one program that fails fails the object.
pub fn load(
    planned: &PlannedStem,
    facts: &KernelFacts,
    shared: &SharedMaps,
    options: &EbpfOptions,
) -> Result<Object, libbpf_rs::Error> {
    let mut open =
        ObjectBuilder::default().name(planned.stem.name)?.open_memory(planned.stem.object)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(fd) = shared.get(&name) {
            map.reuse_fd(fd)?;
        } else if let Some(rows) = chosen_rows(&name, options) {
            map.set_max_entries(rows)?;
        } else if name == mlock::THREADS {
            map.set_autocreate(facts.thread_storage)?;
        } else if name == placement::ROWS {
            // Programs that were loaded before without it have constants that say so.
            let is_new = shared.get(&format!("{}.rodata", umem::STEM.name)).is_none();
            map.set_autocreate(is_new && placement::choose(facts, options).is_ok())?;
            map.set_max_entries(options.max_pins)?;
            if facts.pages.rows_on_demand {
                // 250 bytes for each MR that lives. One that could not be made leaves an MR unknown.
                map.set_map_flags(libbpf_sys::BPF_F_NO_PREALLOC)?;
            }
        } else if name.ends_with(".rodata") {
            set_constants(&mut map, planned.stem, facts, options);
        }
    }
    choose_programs(&mut open, &planned.hooks)?;
    open.load()
}

/// Chooses what of the object is a part of its programs.
fn set_constants(
    constants: &mut OpenMapMut<'_>,
    stem: &Stem,
    facts: &KernelFacts,
    options: &EbpfOptions,
) {
    if stem.name == umem::STEM.name {
        // Zeros are no walk.
        set(constants, &placement::choose(facts, options).unwrap_or_default());
    } else if let Some(mlock) = options.watched.mlock {
        set(constants, &mlock::choice(facts.thread_storage, mlock));
    }
}

fn set<C: Record>(constants: &mut OpenMapMut<'_>, choice: &C) {
    let from = as_bytes(choice);
    if let Some(to) = constants.initial_value_mut().and_then(|all| all.get_mut(..from.len())) {
        to.copy_from_slice(from);
    }
}

/// How many sets have the places that were asked for.
#[must_use]
pub fn history_sets(options: &EbpfOptions) -> u32 {
    options.history.div_ceil(records::HISTORY_PLACES)
}

/// The size of a map that the user may choose.
fn chosen_rows(map: &str, options: &EbpfOptions) -> Option<u32> {
    match map {
        "pins" => Some(options.max_pins),
        "processes" => Some(options.max_processes),
        "history" => Some(history_sets(options)),
        _ => None,
    }
}

fn choose_programs(open: &mut OpenObject, hooks: &[PlannedHook]) -> Result<(), libbpf_rs::Error> {
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let wanted = hooks.iter().find(|planned| programs(planned).contains(&name));
        program.set_autoload(wanted.is_some());
        if let Some(PlannedHook { hook, rung: Rung::Fentry }) = wanted {
            program.set_attach_target(0, Some(hook.symbol.to_owned()))?;
        }
    }
    Ok(())
}

/// Names of the programs that a hook needs on its rung.
#[must_use]
pub fn programs(planned: &PlannedHook) -> Vec<String> {
    let sides = planned.hook.shape.sides().iter();
    match planned.rung {
        Rung::Fentry => sides.map(|side| planned.hook.fentry_program(*side)).collect(),
        Rung::Tracefs { .. } | Rung::PerfKprobe => {
            sides.map(|side| planned.hook.kprobe_program(*side)).collect()
        }
        Rung::Tracepoint => sides.map(|side| planned.hook.tracepoint_program(*side)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::hook::STEMS;
    use super::super::records::device_sample;
    use super::*;

    fn open(object: &[u8]) -> OpenObject {
        ObjectBuilder::default().open_memory(object).unwrap()
    }

    #[test]
    fn both_languages_agree_on_the_size_of_every_row() {
        let sizes: [(&str, usize, usize); 20] = [
            ("settings", 4, size_of::<records::settings>()),
            ("lost", 4, 8),
            ("calls", 8, size_of::<records::call>()),
            ("pins", 8, size_of::<records::pin>()),
            ("processes", size_of::<records::process_key>(), size_of::<records::process>()),
            ("totals", size_of::<records::totals_key>(), size_of::<records::totals>()),
            ("failures", size_of::<records::failure_key>(), 8),
            ("last_failures", 4, size_of::<records::last_failure>()),
            ("devices", 8, size_of::<records::device>()),
            ("device_samples", 8, size_of::<device_sample>()),
            ("totals_at_birth", 4, size_of::<records::totals>()),
            ("process_at_birth", 4, size_of::<records::process>()),
            ("sample_scratch", 4, size_of::<device_sample>()),
            ("history", 4, size_of::<records::history_set>()),
            ("history_use", 4, size_of::<records::history_use>()),
            ("mlocks", 4, size_of::<records::mlock_totals>()),
            ("mlock_threads", 4, size_of::<records::mlock_thread>()),
            ("placements", 8, size_of::<records::placement>()),
            ("mlock.rodata", 4, size_of::<records::mlock_choice>()),
            ("umem.rodata", 4, size_of::<records::placement_choice>()),
        ];
        for stem in STEMS {
            let object = open(stem.object);
            for map in object.maps() {
                let name = match map.name().to_string_lossy().into_owned() {
                    constants if constants.ends_with(".rodata") => format!("{}.rodata", stem.name),
                    name => name,
                };
                let (_, key, value) = sizes
                    .iter()
                    .find(|(known, ..)| *known == name)
                    .unwrap_or_else(|| panic!("{}: the map {name} is not known here", stem.name));
                assert_eq!(map.key_size() as usize, *key, "{name}");
                assert_eq!(map.value_size() as usize, *value, "{name}");
            }
        }
    }

    #[test]
    fn places_of_the_history_are_whole_sets() {
        let sets = |history| history_sets(&EbpfOptions { history, ..EbpfOptions::default() });
        assert_eq!([1, 8, 9, 65_536].map(sets), [1, 1, 2, 8192]);
        assert!(records::HISTORY_PLACES.is_power_of_two());
    }

    #[test]
    fn every_program_belongs_to_a_hook_and_every_hook_has_its_programs() {
        for stem in STEMS {
            let written: BTreeSet<String> = open(stem.object)
                .progs()
                .map(|program| program.name().to_string_lossy().into_owned())
                .collect();
            let wanted: BTreeSet<String> = stem
                .hooks
                .iter()
                .flat_map(|hook| hook.shape.sides().iter().map(move |side| (hook, *side)))
                .flat_map(|(hook, side)| {
                    let tracepoint = hook.syscall.map(|_| hook.tracepoint_program(side));
                    [hook.kprobe_program(side), hook.fentry_program(side)]
                        .into_iter()
                        .chain(tracepoint)
                })
                .collect();
            assert_eq!(written, wanted, "{}", stem.name);
        }
    }
}
