//! What this kernel has, observed: never by its version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::host::{Home, Host, Modules, Symbols, load_of, preempts, tracefs};

use super::btf::Types;
use super::placement::PageFacts;
use super::{hook, mlock};

/// The facts that a plan stands on.
#[derive(Debug, Clone, Default)]
// Each holds or not without regard to the others.
#[allow(clippy::struct_excessive_bools)]
pub struct KernelFacts {
    /// Where the functions of the hooks are.
    pub symbols: Symbols,
    /// Whether `symbols` could be read at all.
    pub symbols_known: bool,
    pub modules: Modules,
    /// Which load it is, of each module that has a function of a hook, or may have one.
    pub loads: BTreeMap<String, u64>,
    /// The tracefs whose kprobe_events can be written.
    pub tracefs: Option<PathBuf>,
    /// Else why there is none.
    pub no_tracefs: &'static str,
    pub vmlinux_btf: bool,
    /// A trampoline's program that is preempted keeps all others of its CPU out until it runs
    /// again: with 8 threads on 2 CPUs a tenth of all calls was lost so.
    pub preempts: bool,
    /// Tracing programs may keep something with a thread.
    pub thread_storage: bool,
    /// Modules with BTF.
    pub module_btf: BTreeSet<String>,
    /// The kernel tells the types of modules at all.
    pub tells_modules: bool,
    pub offsets: FieldOffsets,
    pub pages: PageFacts,
}

/// Offsets of fields of module types; None where no BTF tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FieldOffsets {
    pub device_name: Option<u32>,
    pub attrs_context: Option<u32>,
    pub context_device: Option<u32>,
    /// Of the address of its scatter list, in ib_umem.
    pub umem_list: Option<u32>,
    /// Of the number of that list's entries.
    pub umem_entries: Option<u32>,
}

impl KernelFacts {
    /// Looks at the host. What can't be read counts as not there, and is logged. Of what is `known`
    /// neither what the kernel can do is tried again, nor are types of modules looked for that were
    /// not loaded anew since.
    #[must_use]
    pub fn gather(host: &Host, known: Option<&Self>) -> Self {
        // Modules before their functions: one that comes in between is a change when it is looked
        // for again, and no module without its functions.
        let modules = Modules::read(host).unwrap_or_else(|error| {
            tracing::warn!("loaded modules are not known: {error}");
            Modules::default()
        });
        let mut loads_of_all = loads(host, hook::modules());
        let symbols = Symbols::read(host, &hook::symbols());
        if let Err(error) = &symbols {
            tracing::warn!("functions of the kernel are not known: {error}");
        }
        let symbols_known = symbols.is_ok();
        let symbols = symbols.unwrap_or_default();
        for (module, load) in loads(host, symbols.modules()) {
            loads_of_all.entry(module).or_insert(load);
        }
        let loads = loads_of_all;
        let tracefs = tracefs(host);
        let btf = host.sys("kernel/btf");
        let types = Types::of(host);
        Self {
            symbols_known,
            symbols,
            no_tracefs: tracefs.as_ref().err().copied().unwrap_or_default(),
            tracefs: tracefs.ok(),
            vmlinux_btf: btf.join("vmlinux").exists(),
            preempts: preempts(host),
            thread_storage: known
                .map_or_else(mlock::has_thread_storage, |known| known.thread_storage),
            tells_modules: std::fs::read_dir(&btf).is_ok_and(|files| files.count() > 1),
            pages: known.map_or_else(|| PageFacts::read(&types), |known| known.pages),
            module_btf: loads.keys().filter(|module| btf.join(module).exists()).cloned().collect(),
            modules,
            offsets: known
                .filter(|known| of_hooks(&known.loads).eq(of_hooks(&loads)))
                .map_or_else(|| FieldOffsets::read(&types), |known| known.offsets),
            loads,
        }
    }

    /// Which load of its module a function belongs to; None in the kernel itself.
    #[must_use]
    pub fn load(&self, home: &Home) -> Option<u64> {
        match home {
            Home::Vmlinux => None,
            Home::Module(module) => self.loads.get(module).copied(),
        }
    }

    /// Whether a trampoline on a function there can be had and sees every call.
    #[must_use]
    pub fn trampolines(&self, home: &Home) -> bool {
        !self.preempts
            && match home {
                Home::Vmlinux => self.vmlinux_btf,
                Home::Module(module) => self.vmlinux_btf && self.module_btf.contains(module),
            }
    }
}

/// The loads of modules that hooks name.
fn of_hooks(loads: &BTreeMap<String, u64>) -> impl Iterator<Item = Option<u64>> {
    hook::modules().map(|module| loads.get(module).copied())
}

/// Of each module that is loaded, which load it is.
pub fn loads<'a>(host: &Host, modules: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    modules.filter_map(|module| Some((module.to_owned(), load_of(host, module)?))).collect()
}

impl FieldOffsets {
    fn read(types: &Types) -> Self {
        let [device_name, attrs_context, context_device, append, list, entries] = types
            .field_offsets([
                ("ib_device", "name"),
                ("uverbs_attr_bundle", "context"),
                ("ib_ucontext", "device"),
                // 5.15 and later.
                ("ib_umem", "sgt_append"),
                ("sg_table", "sgl"),
                ("sg_table", "orig_nents"),
            ]);
        let (umem_list, umem_entries) = if append.is_some() {
            (sum(append, list), sum(append, entries))
        } else {
            let before = [("ib_umem", "sg_head"), ("ib_umem", "sg_nents")];
            let [head, entries] = types.field_offsets(before);
            (sum(head, list), entries)
        };
        Self { device_name, attrs_context, context_device, umem_list, umem_entries }
    }
}

fn sum(outer: Option<u32>, inner: Option<u32>) -> Option<u32> {
    Some(outer? + inner?)
}
