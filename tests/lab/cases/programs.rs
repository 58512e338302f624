//! What the kernel takes: every program, and how each function is watched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter};
use libbpf_rs::{Object, ObjectBuilder, OpenObject, PrintLevel, ProgramAttachType, set_print};

use crate::cases::*;
use crate::exporter::Exporter;
use crate::matrix::{CANNOT, MLOCK, What, cannot};
use crate::page::Page;
use crate::watched::Watched;

/// The bytes of an object, aligned as an ELF reader wants them.
macro_rules! object {
    ($stem:literal) => {{
        #[repr(C, align(8))]
        struct Aligned<B: ?Sized>(B);
        static OBJECT: &Aligned<[u8]> =
            &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $stem, ".bpf.o")));
        ($stem, &OBJECT.0)
    }};
}

fn objects() -> [(&'static str, &'static [u8]); 5] {
    [object!("verbs"), object!("umem"), object!("mlock"), object!("tasks"), object!("rows")]
}

/// The object whose programs keep what a thread is in with the thread, or in a map.
const LOCKS: &str = "mlock";

/// The one program on the page that sits on no function.
const TASKS: &str = "tasks";

/// What the kernel lets a program and all that it calls have of stack.
const STACK_BYTES: u32 = 512;

/// BPF_LOG_STATS: the verifier says how much it looked at, and each function's stack.
const LOG_STATS: u32 = 4;

static VERIFIER: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(_: PrintLevel, words: String) {
    VERIFIER.lock().unwrap_or_else(PoisonError::into_inner).push(words);
}

/// Loads what no plan would load together, and compares the stacks with the limit.
pub fn every_program_of_every_object_loads(kernel: &str) -> Outcome {
    // Hooks by name, with their functions: mrscope names them at that level.
    let exporter = Exporter::start(&["--log.level", "debug"])?;
    let page = exporter.page()?;
    let symbols = functions(&page, &exporter.end()?)?;
    let places = Places::read()?;
    if places.has_btf("ib_uverbs_reg_mr") == cannot(kernel, What::ModuleBtf).is_some() {
        return Err("matrix.rs says the opposite of whether modules have BTF here".to_owned());
    }
    let mut deepest = (0, String::new());
    let mut hooks = BTreeSet::new();
    let storage = cannot(kernel, What::ThreadStorage).is_none();
    let mut variants: Vec<_> = objects().into_iter().map(|object| (object, false)).collect();
    variants.extend(storage.then_some((object!("mlock"), true)));
    variants.push((object!("umem"), true));
    for ((stem, bytes), optional) in variants {
        let error = |error: libbpf_rs::Error| format!("{stem}: {error:#}");
        let mut open = ObjectBuilder::default().open_memory(bytes).map_err(error)?;
        if stem == LOCKS {
            keep_with_threads(&mut open, optional).map_err(error)?;
        } else if stem == "umem" && optional {
            walk_pages(&mut open);
        }
        let wanted = choose(&mut open, kernel, &symbols, &places, &mut hooks)?;
        let before = loaded();
        let (object, said) = load(open).map_err(|error| format!("{stem}: {error}"))?;
        equal(&format!("{stem}: programs in the kernel"), loaded() - before, wanted as f64)?;
        drop(object);
        let stacks = stacks(&said)?;
        equal(&format!("{stem}: stacks told"), stacks.len() as f64, wanted as f64)?;
        for (program, parts) in stacks {
            let bytes: u32 = parts.iter().sum();
            if bytes > STACK_BYTES {
                return Err(format!("{program} takes {bytes} bytes of stack: {parts:?}"));
            }
            deepest = deepest.max((bytes, format!("{program} {parts:?}")));
        }
        println!("{stem}: {wanted} programs load");
    }
    let seen = |hook: &String| hook == TASKS || hooks.contains(hook);
    let unknown: Vec<_> = symbols.keys().filter(|hook| !seen(hook)).collect();
    if !unknown.is_empty() {
        return Err(format!("hooks on the page that no object has programs for: {unknown:?}"));
    }
    println!("the deepest stack: {} of {STACK_BYTES} bytes, {}", deepest.0, deepest.1);
    Ok(())
}

/// Where the programs of mlock keep what a thread is in.
fn keep_with_threads(open: &mut OpenObject, by_thread: bool) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut() {
        if map.name() == "mlock_threads" {
            map.set_autocreate(by_thread)?;
        } else if map.name().to_string_lossy().ends_with(".rodata")
            && let Some(first) = map.initial_value_mut().and_then(|bytes| bytes.get_mut(..4))
        {
            first.copy_from_slice(&u32::from(by_thread).to_ne_bytes());
        }
    }
    Ok(())
}

/// Pages as Debian's newest kernel describes them.
fn walk_pages(open: &mut OpenObject) {
    const CHOICE: [u32; 5] = [1, 32, 1, 54, 1023];
    for mut map in open.maps_mut().filter(|map| map.name().to_string_lossy().ends_with(".rodata")) {
        for (at, word) in
            map.initial_value_mut().into_iter().flat_map(|all| all.chunks_mut(4)).zip(CHOICE)
        {
            at.copy_from_slice(&word.to_ne_bytes());
        }
    }
}

/// The table says which kernels have no storage for threads: without it no such program loads.
pub fn without_storage_for_threads_no_program_uses_it(kernel: &str) -> Outcome {
    loads_unless(kernel, What::ThreadStorage, "mlock_mlock_enter", true)
}

/// The same of trampolines on system calls.
pub fn trampolines_on_system_calls_load_where_their_argument_has_a_type(kernel: &str) -> Outcome {
    let storage = cannot(kernel, What::ThreadStorage).is_none();
    loads_unless(kernel, What::Trampoline(MLOCK), "mlock_mlock_fentry", storage)
}

fn loads_unless(kernel: &str, what: What, one: &str, by_thread: bool) -> Outcome {
    let (_, bytes) = object!("mlock");
    let mut open = ObjectBuilder::default().open_memory(bytes).map_err(|e| e.to_string())?;
    keep_with_threads(&mut open, by_thread).map_err(|error| error.to_string())?;
    for mut program in open.progs_mut() {
        program.set_autoload(program.name() == one);
        if program.name() == one && one.ends_with("_fentry") {
            let target = program.set_attach_target(0, Some(MLOCK.to_owned()));
            target.map_err(|error| error.to_string())?;
        }
    }
    match (open.load(), cannot(kernel, what)) {
        (Ok(_), None) | (Err(_), Some(_)) => Ok(()),
        (Ok(_), Some(why)) => Err(format!("it loads: take its row out of matrix.rs ({why})")),
        (Err(error), None) => Err(format!("{one} does not load: {error:#}")),
    }
}

/// Chooses all programs for kprobes, those for trampolines where the function has one to give, and
/// the iterators. Says how many.
fn choose(
    open: &mut OpenObject,
    kernel: &str,
    symbols: &BTreeMap<String, String>,
    places: &Places,
    hooks: &mut BTreeSet<String>,
) -> Result<usize, String> {
    let mut wanted = 0;
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let trampoline = name.strip_suffix("_fentry").or_else(|| name.strip_suffix("_fexit"));
        let mut ends = ["_enter", "_exit", "_entered", "_left"].into_iter();
        let kprobe = ends.find_map(|end| name.strip_suffix(end));
        let mut load = true;
        // The iterators sit on no function.
        if let Some(hook) = trampoline.or(kprobe) {
            let symbol = symbols.get(hook).ok_or_else(|| format!("{hook} is not on the page"))?;
            hooks.insert(hook.to_owned());
            let system_call = hook.starts_with("mlock_");
            let refused = system_call && cannot(kernel, What::Trampoline(MLOCK)).is_some();
            load = trampoline.is_none() || (places.has_btf(symbol) && !refused);
            if load && trampoline.is_some() {
                let target = program.set_attach_target(0, Some(symbol.clone()));
                target.map_err(|error| format!("{name} on {symbol}: {error}"))?;
            }
        }
        program.set_autoload(load);
        if load {
            program.set_log_level(LOG_STATS);
            wanted += 1;
        }
    }
    Ok(wanted)
}

/// The object in the kernel, and what the verifier said.
fn load(open: OpenObject) -> Result<(Object, String), String> {
    let take = || std::mem::take(&mut *VERIFIER.lock().unwrap_or_else(PoisonError::into_inner));
    take();
    let usual = set_print(Some((PrintLevel::Debug, keep)));
    let object = open.load();
    set_print(usual);
    let said = take().concat();
    match object {
        Ok(object) => Ok((object, said)),
        Err(error) => {
            let at = said.find("BPF program load failed").unwrap_or_default();
            Err(format!("{error:#}: {}", &said[at..]))
        }
    }
}

/// Programs that the kernel has, by its own list.
fn loaded() -> f64 {
    ProgInfoIter::default().count() as f64
}

/// The stack of each function of each program, by the verifier's "stack depth 64+0+128"; from 7.3
/// on that of the deepest chain of calls alone, "stack depth max 192".
fn stacks(said: &str) -> Result<Vec<(String, Vec<u32>)>, String> {
    let mut stacks = Vec::new();
    for log in said.split("prog '").skip(1) {
        let Some((program, log)) = log.split_once("': -- BEGIN PROG LOAD LOG --") else {
            continue;
        };
        let line = log.lines().find_map(|line| line.strip_prefix("stack depth "));
        let line = line.ok_or_else(|| format!("the verifier told no stack of {program}"))?;
        let line = line.strip_prefix("max ").unwrap_or(line);
        let words = line.split_whitespace().next().unwrap_or_default().split('+');
        let parts = words.map(str::parse).collect::<Result<_, _>>();
        stacks.push((program.to_owned(), parts.map_err(|_| format!("{program}: {line:?}"))?));
    }
    Ok(stacks)
}

/// What hooks are on is named so.
fn is_watched(function: &str) -> bool {
    function.contains("ib_") || function.contains("_sys_m")
}

/// Where functions are, by the kernel's own list, and which of those places have BTF.
struct Places(BTreeMap<String, Place>);

struct Place {
    address: String,
    module: String,
}

impl Places {
    fn read() -> Result<Self, String> {
        let list = fs::read_to_string("/proc/kallsyms").map_err(|error| error.to_string())?;
        let functions = list.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?.to_owned();
            let mut words = words.skip(1);
            let name = words.next().filter(|name| is_watched(name))?;
            let module = words.next().unwrap_or("[vmlinux]");
            let module = module.trim_matches(['[', ']']).to_owned();
            Some((name.to_owned(), Place { address, module }))
        });
        Ok(Self(functions.collect()))
    }

    fn has(&self, symbol: &str) -> bool {
        self.0.contains_key(symbol)
    }

    /// Whether a list that names functions by their addresses names this one, by any of its names.
    fn is_on(&self, list: &str, symbol: &str) -> bool {
        let Some(place) = self.0.get(symbol) else { return false };
        let same = self.0.iter().filter(|(_, other)| other.address == place.address);
        let mut names = same.map(|(name, _)| format!(" {name}+"));
        names.any(|name| list.lines().any(|line| line.contains(&name)))
    }

    fn has_btf(&self, symbol: &str) -> bool {
        let btf = |place: &Place| Path::new("/sys/kernel/btf").join(&place.module).exists();
        self.0.get(symbol).is_some_and(btf)
    }
}

/// Every hook of the page with its function, from lines such as "umem_get (ib_umem_get): kprobe".
fn functions(page: &Page, log: &str) -> Result<BTreeMap<String, String>, String> {
    let hooks = attached(page)?;
    let line = |hook: &str| {
        let start = format!("{hook} (");
        let said = log.lines().filter(|line| line.contains("level=debug"));
        let mut said = said.filter_map(|line| line.split_once(&start));
        let (_, rest) = said.find(|(before, _)| before.ends_with(['"', ' ']))?;
        Some(rest.split_once(')')?.0.to_owned())
    };
    let mut functions = BTreeMap::new();
    for hook in hooks.into_keys().filter(|hook| hook != TASKS) {
        let symbol = line(&hook).ok_or_else(|| format!("the log names no function of {hook}"))?;
        functions.insert(hook, symbol);
    }
    functions.insert(TASKS.to_owned(), "iter/task".to_owned());
    Ok(functions)
}

/// How the page says each program is attached.
fn attached(page: &Page) -> Result<BTreeMap<String, String>, String> {
    let mut attached = BTreeMap::new();
    let prefix = "mrscope_program_attached{attach=\"";
    for (series, value) in page.starting(prefix) {
        let rest = &series[prefix.len()..];
        let (attach, rest) = rest.split_once("\",program=\"").ok_or("no label program")?;
        let program = rest.trim_end_matches("\"}");
        let watches = f64::from(!matches!(attach, "pending" | "none"));
        equal(series, value, watches)?;
        if attached.insert(program.to_owned(), attach.to_owned()).is_some() {
            return Err(format!("{program} is there twice"));
        }
    }
    if attached.is_empty() { Err("no program is on the page".to_owned()) } else { Ok(attached) }
}

/// Says it to the host, for docs/kernels.md, once the kernel's own lists agree.
pub fn how_each_function_is_watched_is_told(_: &str) -> Outcome {
    for mode in Mode::ALL {
        let flags: Vec<_> = mode.flags().iter().copied().chain(["--log.level", "debug"]).collect();
        let exporter = Exporter::start(&flags)?;
        let attached = agreed(&exporter).map_err(|error| format!("{}: {error}", mode.label()))?;
        let page = exporter.page()?;
        let symbols = functions(&page, &exporter.end()?)?;
        for (program, attach) in attached {
            let row = Watched { mode, function: symbols[&program].clone(), program, attach };
            println!("{}", row.line());
        }
    }
    Ok(())
}

/// What the page says, if the list of kprobes and that of links say the same.
fn agreed(exporter: &Exporter) -> Result<BTreeMap<String, String>, String> {
    let attached = attached(&exporter.page()?)?;
    let places = Places::read()?;
    let probes = fs::read_to_string("/sys/kernel/debug/kprobes/list").map_err(|e| e.to_string())?;
    let log = exporter.log();
    let symbols = functions(&exporter.page()?, &log)?;
    let mut trampolines = 0;
    for (program, attach) in &attached {
        let symbol = &symbols[program];
        let probed = places.is_on(&probes, symbol);
        let (has, agrees) = match attach.as_str() {
            "kprobe" => (true, probed),
            "fentry" => {
                trampolines += 1;
                (true, !probed)
            }
            "pending" | "none" => (false, !probed),
            // Its list is not one of functions.
            _ => continue,
        };
        if !agrees || places.has(symbol) != has {
            let there = places.has(symbol);
            return Err(format!(
                "{program} is {attach}, but {symbol} is there: {there}, has a kprobe: {probed}"
            ));
        }
    }
    let links = LinkInfoIter::default().filter(|link| {
        matches!(&link.info, LinkTypeInfo::Tracing(tracing)
            if matches!(tracing.attach_type, ProgramAttachType::TraceFentry))
    });
    equal("trampolines at an entry", f64::from(trampolines), links.count() as f64)?;
    Ok(attached)
}

/// The table says which kernels lack a function: it is looked for on every kernel.
pub fn functions_that_a_kernel_lacks_are_not_there(kernel: &str) -> Outcome {
    let places = Places::read()?;
    for row in CANNOT {
        if let What::Function(symbol) = row.what {
            let lacks = cannot(kernel, row.what).is_some();
            if places.has(symbol) == lacks {
                return Err(format!("{symbol} is there: {lacks}, matrix.rs says the opposite"));
            }
        }
    }
    Ok(())
}

pub fn asked_for_trampolines_every_hook_is_a_kprobe(_: &str) -> Outcome {
    let asked = Exporter::start(&["--ebpf.attach", "fentry", "--log.level", "debug"])?;
    let with = agreed(&asked)?;
    asked.stop()?;
    let auto = Exporter::start(&["--log.level", "debug"])?;
    let without = agreed(&auto)?;
    auto.stop()?;
    // Functions of the kernel itself have types where those of modules have none.
    let of_modules = || with.iter().filter(|(hook, _)| !hook.starts_with("mlock_"));
    let kprobes = of_modules().filter(|(_, attach)| *attach == "kprobe").count();
    if kprobes == 0 || of_modules().any(|(_, attach)| attach == "fentry") {
        return Err(format!("asked for trampolines: {with:?}"));
    }
    if with == without { Ok(()) } else { Err(format!("{with:?}, by default {without:?}")) }
}

pub fn asked_for_trampolines_the_log_says_why_there_are_none(_: &str) -> Outcome {
    let log = Exporter::start(&["--ebpf.attach", "fentry"])?.end()?;
    let says = |line: &str| line.contains("level=warn") && line.contains("trampolines");
    if log.lines().any(says) {
        Ok(())
    } else {
        Err("no warning of the log has a word about trampolines".to_owned())
    }
}
