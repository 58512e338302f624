//! The first process of a guest: counts TLB misses of loops whose misses are known, prints a figure a
//! line, and ends the machine. The code that counts is mrscope's own, by its very files.

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::io;
use std::ptr::{null_mut, read_volatile, write_volatile};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};

#[path = "../../../../src/host/cpu_counters.rs"]
mod cpu_counters;
#[path = "../../../../src/host/perf.rs"]
#[allow(dead_code)] // What mrscope alone uses.
mod perf;
#[path = "../../../../src/host/scaled.rs"]
mod scaled;
#[path = "../../../../src/bin/mrscope-write-probe/walk.rs"]
mod walk;

use cpu_counters::{CpuCounters, OpensOnCpu};
use perf::{Event, Group, Reading, Refused, Target};

const PAGE: usize = 4096;
/// More than the emulated TLB holds.
const PAGES: usize = 16_384;
const ROUNDS: usize = 10;

const LOAD_ACCESS: Event = Event::cache(3, 0, 0);
const LOAD_MISS: Event = Event::cache(3, 0, 1);
const STORE_MISS: Event = Event::cache(3, 1, 1);

fn main() {
    let outcome = std::panic::catch_unwind(|| match work() {
        Ok(()) => println!("end"),
        Err(error) => println!("error {error}"),
    });
    if outcome.is_err() {
        println!("error a panic");
    }
    let _ = reboot(RebootCommand::PowerOff);
}

fn work() -> io::Result<()> {
    for (what, place) in [("proc", "/proc"), ("sysfs", "/sys")] {
        fs::create_dir_all(place)?;
        mount(what, place, what, MountFlags::empty(), None)?;
    }
    let region = Region::new()?;
    println!("kernel {}", fs::read_to_string("/proc/sys/kernel/osrelease")?.trim());
    of_a_thread(&region)?;
    of_all_cpus(&region);
    what_is_absent();
    a_cpu_that_goes(&region)
}

/// Touched pages.
struct Region(*mut u8);

impl Region {
    fn new() -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at a place that the kernel picks.
        let at = unsafe { mmap_anonymous(null_mut(), PAGES * PAGE, protection, flags)? };
        // SAFETY: the mapping is that long; hugepages would have a TLB hold it all.
        unsafe { rustix::mm::madvise(at, PAGES * PAGE, rustix::mm::Advice::LinuxNoHugepage)? };
        let region = Self(at.cast());
        region.write(PAGES, 1);
        Ok(region)
    }

    fn read(&self, pages: usize, rounds: usize) {
        for _ in 0..rounds {
            for page in 0..pages {
                // SAFETY: the mapping has PAGES pages.
                black_box(unsafe { read_volatile(self.0.add(page * PAGE)) });
            }
        }
    }

    fn write(&self, pages: usize, rounds: usize) {
        for round in 0..rounds {
            for page in 0..pages {
                // SAFETY: as above.
                unsafe { write_volatile(self.0.add(page * PAGE), round as u8) };
            }
        }
    }
}

fn tid() -> u32 {
    gettid().as_raw_nonzero().get() as u32
}

fn open(target: Target, events: &[Event]) -> io::Result<Group> {
    Group::open(target, events).map_err(|Refused { at, why }| {
        io::Error::other(format!("{target:?}, event {at} of {events:?}: {why}"))
    })
}

fn reading(group: &Group) -> io::Result<Reading> {
    group.read()?.ok_or_else(|| io::Error::other("counters that are dead"))
}

/// Misses of the calling thread in user mode: loads, stores.
fn counted(work: impl FnOnce()) -> io::Result<[u64; 2]> {
    let groups = [LOAD_MISS, STORE_MISS].map(|event| open(Target::Thread(tid()), &[event]));
    let [loads, stores] = groups;
    let (loads, stores) = (loads?, stores?);
    let before = [reading(&loads)?, reading(&stores)?];
    work();
    let after = [reading(&loads)?, reading(&stores)?];
    let mut misses = [0; 2];
    for ((misses, before), after) in misses.iter_mut().zip(before).zip(after) {
        if after.running_ns != after.enabled_ns || after.running_ns <= before.running_ns {
            return Err(io::Error::other(format!("they did not run all the time: {after:?}")));
        }
        *misses = after.counts[0] - before.counts[0];
    }
    Ok(misses)
}

fn of_a_thread(region: &Region) -> io::Result<()> {
    let one_page = PAGES * ROUNDS;
    let works: [(&str, &dyn Fn()); 4] = [
        ("idle", &|| ()),
        ("one_page", &|| region.read(1, one_page)),
        ("read", &|| region.read(PAGES, ROUNDS)),
        ("write", &|| region.write(PAGES, ROUNDS)),
    ];
    for (name, work) in works {
        let [loads, stores] = counted(work)?;
        println!("thread_{name}_loads {loads}\nthread_{name}_stores {stores}");
    }
    // A thread that is created later is counted with the one that created it.
    let [loads, _] = counted(|| {
        let at = region.0.addr();
        let read = move || Region(std::ptr::with_exposed_provenance_mut(at)).read(PAGES, ROUNDS);
        let _ = region.0.expose_provenance();
        std::thread::spawn(read).join().expect("reads");
    })?;
    println!("thread_of_thread_loads {loads}");
    of_walks(region)
}

/// The write probe's walks, over more than a TLB holds and over less.
fn of_walks(region: &Region) -> io::Result<()> {
    // SAFETY: no word of a step is outside of its page, and the mapping has PAGES of them.
    let read = |byte| {
        black_box(unsafe { read_volatile(region.0.add(byte).cast::<u64>()) });
    };
    for (name, steps) in [("many", PAGES), ("few", 16)] {
        walk::warm_up(steps, read);
        let mut accesses = 0;
        let [loads, stores] = counted(|| accesses = walk::walk(steps, read))?;
        println!("walk_{name}_accesses {accesses}");
        println!("walk_{name}_loads {loads}\nwalk_{name}_stores {stores}");
    }
    Ok(())
}

/// The kernel's counters, on CPUs of node 0.
struct Kernel;

impl OpensOnCpu for Kernel {
    type Open = Group;

    fn open(&mut self, cpu: u32, events: &[Event]) -> Result<Group, Refused> {
        Group::open(Target::Cpu(cpu), events)
    }
}

fn online() -> BTreeMap<u32, u32> {
    let there = |cpu: &u32| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        // The first may have no such file: it can't go.
        fs::read_to_string(path).map_or(*cpu == 0, |text| text.trim() == "1")
    };
    (0..2).filter(there).map(|cpu| (cpu, 0)).collect()
}

fn count(counters: &CpuCounters<Group>, event: usize) -> u64 {
    counters.totals(event).values().map(|total| total.count).sum()
}

/// Adds up what is counted while `work` is done. The emulator has one counter for each event: who
/// opens it twice has one of them count nothing.
fn on_all_cpus(events: &[Event], work: impl FnOnce()) -> CpuCounters<Group> {
    let mut counters = CpuCounters::new(events);
    counters.read(&mut Kernel, &online());
    work();
    counters.read(&mut Kernel, &online());
    counters
}

fn of_all_cpus(region: &Region) {
    println!("cpus {}", online().len());
    // The access is absent, the miss stays.
    let pair = on_all_cpus(&[LOAD_ACCESS, LOAD_MISS], || region.read(PAGES, ROUNDS));
    println!("cpus_access {:?}\ncpus_miss {:?}", pair.verdict(0), pair.verdict(1));
    println!("cpus_pair_loads {}", count(&pair, 1));
    drop(pair);
    let three = [Event::CYCLES, LOAD_MISS, STORE_MISS];
    let three = on_all_cpus(&three, || region.write(PAGES, ROUNDS));
    println!("cpus_cycles {}", count(&three, 0));
    println!("cpus_write_loads {}\ncpus_write_stores {}", count(&three, 1), count(&three, 2));
    for (node, total) in three.totals(1) {
        println!("cpus_node {node}");
        println!("cpus_enabled_ns {}\ncpus_running_ns {}", total.enabled_ns, total.running_ns);
    }
}

fn what_is_absent() {
    let refusal = |target, events: &[Event]| match Group::open(target, events) {
        Ok(_) => "none".to_owned(),
        Err(Refused { at, why }) => format!("{at} {why:?}"),
    };
    println!("absent_thread {}", refusal(Target::Thread(tid()), &[LOAD_ACCESS]));
    println!("absent_cpu {}", refusal(Target::Cpu(0), &[LOAD_ACCESS]));
    println!("absent_second {}", refusal(Target::Cpu(0), &[LOAD_MISS, LOAD_ACCESS]));
}

fn run_on(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// CPU 1 goes offline and comes back, between two readings and for longer.
fn a_cpu_that_goes(region: &Region) -> io::Result<()> {
    let set_online =
        |on| fs::write("/sys/devices/system/cpu/cpu1/online", if on { "1" } else { "0" });
    let mut counters = CpuCounters::new(&[LOAD_MISS, STORE_MISS]);
    let mut last = 0;
    let mut read = |name: &str| {
        counters.read(&mut Kernel, &online());
        let now = count(&counters, 0);
        println!("hotplug_{name} {:?}", counters.verdict(0));
        // A total that fell is no number.
        println!("hotplug_{name}_loads {}", now as i64 - last as i64);
        last = now;
    };
    read("open");
    run_on(1)?;
    region.read(PAGES, ROUNDS);
    read("before");
    run_on(0)?;
    set_online(false)?;
    let gone = Group::open(Target::Cpu(1), &[LOAD_MISS]).err().map(|refused| refused.why);
    println!("hotplug_open_offline {gone:?}");
    set_online(true)?;
    read("back");
    run_on(1)?;
    region.read(PAGES, ROUNDS);
    read("again");
    run_on(0)?;
    set_online(false)?;
    read("away");
    region.read(PAGES, ROUNDS);
    read("left");
    set_online(true)?;
    read("returned");
    drop(counters);
    // What makes it necessary to open counters anew.
    let group = open(Target::Cpu(1), &[LOAD_MISS, STORE_MISS])?;
    set_online(false)?;
    set_online(true)?;
    println!("hotplug_dead_group {:?}", group.read()?.is_none());
    let alone = open(Target::Cpu(1), &[LOAD_MISS])?;
    set_online(false)?;
    set_online(true)?;
    let before = alone.read()?;
    run_on(1)?;
    region.read(PAGES, ROUNDS);
    println!("hotplug_dead_single {:?}", alone.read()? == before);
    Ok(())
}
