//! Loads the BPF object of a stem: the programs that its plan needs, on maps that all stems share.

use libbpf_rs::{Object, ObjectBuilder, OpenObject};

use super::maps::SharedMaps;
use super::plan::{PlannedHook, PlannedStem, Rung};

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
pub fn load(planned: &PlannedStem, shared: &SharedMaps) -> Result<Object, libbpf_rs::Error> {
    let mut open =
        ObjectBuilder::default().name(planned.stem.name)?.open_memory(planned.stem.object)?;
    for mut map in open.maps_mut() {
        if let Some(fd) = shared.get(map.name().to_string_lossy().as_ref()) {
            map.reuse_fd(fd)?;
        }
    }
    choose_programs(&mut open, &planned.hooks)?;
    open.load()
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
fn programs(planned: &PlannedHook) -> Vec<String> {
    let sides = planned.hook.shape.sides().iter();
    match planned.rung {
        Rung::Fentry => sides.map(|side| planned.hook.fentry_program(*side)).collect(),
        Rung::Tracefs { .. } | Rung::PerfKprobe => {
            sides.map(|side| planned.hook.kprobe_program(*side)).collect()
        }
        Rung::Absent(_) => Vec::new(),
    }
}
