//! What reading a whole map costs: the walk in the kernel that mrscope takes, look-ups in batches,
//! and one by one as most exporters do. Usage: bench_rows [ROWS]: 8192 if not given.

use std::error::Error;
use std::io::Read;
use std::os::fd::AsFd;

use libbpf_rs::{Iter, MapCore, MapFlags, MapHandle, MapType, ObjectBuilder};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 21;
/// The rows of processes are those that there are most of.
const MAP: &str = "processes";

/// The bytes of an object, aligned as an ELF reader wants them.
#[repr(C, align(8))]
struct Aligned<B: ?Sized>(B);
static MAPS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/umem.bpf.o")));
static WALKS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/rows.bpf.o")));

/// CPU time of this thread in milliseconds.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// A map like that of mrscope, full.
fn full_map(rows: u32) -> Result<MapHandle, Box<dyn Error>> {
    let open = ObjectBuilder::default().open_memory(&MAPS.0)?;
    let like = open.maps().find(|map| map.name() == MAP).ok_or("no such map")?;
    let (key_bytes, value_bytes) = (like.key_size(), like.value_size());
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::Hash, Some(MAP), key_bytes, value_bytes, rows, &options)?;
    for row in 0..rows {
        let mut key = vec![0; key_bytes as usize];
        key[..4].copy_from_slice(&row.to_ne_bytes());
        map.update(&key, &vec![1; value_bytes as usize], MapFlags::ANY)?;
    }
    Ok(map)
}

/// Reads all rows; says how many it saw.
type Reader<'a> = Box<dyn FnMut() -> Result<usize, Box<dyn Error>> + 'a>;

fn main() -> Result<(), Box<dyn Error>> {
    let rows = std::env::args().nth(1).map_or(Ok(8192), |word| {
        word.parse::<u32>().map_err(|_| format!("'{word}': expected a number of rows"))
    })?;
    let map = full_map(rows)?;
    let object = ObjectBuilder::default().open_memory(&WALKS.0)?.load()?;
    let name = format!("rows_{MAP}");
    let program = object.progs_mut().find(|program| program.name() == name.as_str());
    let link = program.ok_or("no such walk")?.attach_iter(map.as_fd())?;
    let row_bytes = (map.key_size() + map.value_size()) as usize;
    let mut buffer = vec![0; 256 << 10];
    let walk = || {
        let (mut walk, mut bytes) = (Iter::new(&link)?, 0);
        loop {
            match walk.read(&mut buffer)? {
                0 => return Ok(bytes / row_bytes),
                read => bytes += read,
            }
        }
    };
    // All in one: libbpf-rs takes a batch that is not full for the last.
    let batches = || Ok(map.lookup_batch(rows, MapFlags::ANY, MapFlags::ANY)?.count());
    let single = || {
        let looked_up = map.keys().map(|key| map.lookup(&key, MapFlags::ANY));
        Ok(looked_up.filter(|row| row.as_ref().is_ok_and(Option::is_some)).count())
    };
    let mut readers: [(&str, Reader, Vec<f64>); 3] = [
        ("walk", Box::new(walk), Vec::new()),
        ("in batches", Box::new(batches), Vec::new()),
        ("one by one", Box::new(single), Vec::new()),
    ];
    for _ in 0..ROUNDS {
        for (name, read, times) in &mut readers {
            let begun = cpu_ms();
            let seen = read()?;
            times.push(cpu_ms() - begun);
            if seen != rows as usize {
                return Err(format!("{name} saw {seen} rows, expected {rows}").into());
            }
        }
    }
    println!("{rows} rows of {row_bytes} bytes, {ROUNDS} rounds, CPU ms of one reading");
    let mut least = None;
    for (name, _, times) in &mut readers {
        times.sort_by(f64::total_cmp);
        let (p10, median) = (times[ROUNDS / 10], times[ROUNDS / 2]);
        let least = *least.get_or_insert(median);
        println!("{name:<11} p10 {p10:8.3}  median {median:8.3}  {:6.1} x walk", median / least);
    }
    Ok(())
}
