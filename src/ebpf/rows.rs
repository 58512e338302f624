//! The programs of bpf/rows.bpf.c: each walks one map and writes all its rows, or deletes those of
//! another. They are run when that is asked for and sit on no function of the kernel.

use std::io;

use libbpf_rs::{Iter, Link, ObjectBuilder};

use super::attach::os_error;
use super::events::EventsError;
use super::load::object;
use super::maps::{Mapped, SharedMaps};
use super::records::{self, Record, as_bytes, from_bytes};
use super::tracer::load_error;
use super::walk::{buffer, read_records};

pub const OBJECT: &[u8] = object!("rows");
const PREFIX: &str = "rows_";

/// Its walk deletes.
const FORGOTTEN: &str = "forgotten";

/// A walk for each map that is read whole, and one that deletes rows of processes.
pub struct RowWalks {
    links: Vec<(String, Link)>,
    forgotten: Mapped<records::process_key>,
    buffer: Vec<u8>,
}

impl RowWalks {
    /// Loads the programs, each bound to its map of those that all share, and adds their own.
    ///
    /// # Errors
    /// Denied for lack of rights; Unsupported where the kernel has no such iterator.
    pub fn start(maps: &mut SharedMaps) -> Result<Self, EventsError> {
        let mut open = ObjectBuilder::default()
            .name("rows")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(|error| load_error(&error))?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let prepared = match maps.get(&name) {
                Some(fd) => map.reuse_fd(fd),
                // Of an object that is not loaded.
                None => map.set_autocreate(name == FORGOTTEN),
            };
            prepared.map_err(|error| load_error(&error))?;
        }
        let object = open.load().map_err(|error| load_error(&error))?;
        maps.add(&object).map_err(|source| EventsError::Map { map: FORGOTTEN, source })?;
        let forgotten = maps.mapped(FORGOTTEN, records::FORGOTTEN_ROWS as usize)?;
        let mut links = Vec::new();
        for program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let map = name.strip_prefix(PREFIX).and_then(|map| Some((map, maps.get(map)?)));
            if let Some((map, fd)) = map {
                let link = program.attach_iter(fd).map_err(|error| load_error(&error))?;
                links.push((map.to_owned(), link));
            }
        }
        // The links hold the programs when the object is gone.
        Ok(Self { links, forgotten, buffer: buffer() })
    }

    /// Deletes rows of processes. One that is not there any more is what was asked for.
    ///
    /// # Errors
    /// The kernel refuses the walk, or ends it halfway.
    pub fn forget(&mut self, gone: &[records::process_key]) -> Result<(), EventsError> {
        for some in gone.chunks(records::FORGOTTEN_ROWS as usize) {
            self.forgotten.write(some);
            self.walk(FORGOTTEN, 1, |_| ())?;
        }
        Ok(())
    }

    /// All rows of a map, by key. Rows that come meanwhile may or may not be among them. Where rows
    /// go meanwhile, others of their bucket may be missed once: of those maps calls and pins have such.
    ///
    /// # Errors
    /// There is no walk of that map, or the kernel refuses it or ends it halfway.
    pub fn read<K: Record, V: Record>(
        &mut self,
        map: &'static str,
    ) -> Result<Vec<(K, V)>, EventsError> {
        let mut rows: Vec<(K, V)> = Vec::new();
        self.walk(map, size_of::<K>() + size_of::<V>(), |record| {
            let (key, value) = record.split_at(size_of::<K>());
            rows.push((from_bytes(key), from_bytes(value)));
        })?;
        Ok(each_once(rows))
    }

    fn walk(
        &mut self,
        map: &'static str,
        row_bytes: usize,
        take: impl FnMut(&[u8]),
    ) -> Result<(), EventsError> {
        let failed = |source| EventsError::Map { map, source };
        let link = self.links.iter().find(|(known, _)| known == map).map(|(_, link)| link);
        let link = link.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let walk = Iter::new(link).map_err(|error| failed(system_error(&error)))?;
        read_records(walk, row_bytes, &mut self.buffer, take).map_err(failed)
    }
}

/// A row that is added while the kernel hands over a part makes it repeat one: the later is kept.
fn each_once<K: Record, V: Record>(mut rows: Vec<(K, V)>) -> Vec<(K, V)> {
    rows.sort_by(|(one, _), (other, _)| as_bytes(one).cmp(as_bytes(other)));
    rows.dedup_by(|(later, value), (earlier, old)| {
        let same = as_bytes(later) == as_bytes(earlier);
        if same {
            *old = *value;
        }
        same
    });
    rows
}

fn system_error(error: &libbpf_rs::Error) -> io::Error {
    os_error(error)
        .map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libbpf_rs::OpenProgram;

    use super::super::hook::STEMS;
    use super::*;

    #[test]
    fn of_a_row_that_comes_twice_the_later_is_kept() {
        let rows = each_once::<u64, u64>(vec![(7, 1), (3, 2), (7, 3), (9, 4)]);
        assert_eq!(rows, [(3, 2), (7, 3), (9, 4)]);
    }

    /// What each program writes: the sizes that it passes to bpf_seq_write, in order.
    #[test]
    fn every_program_writes_rows_of_its_map_s_sizes() {
        const MOVES: [u8; 2] = [0xb7, 0xb4];
        const CALL: u8 = 0x85;
        let open = ObjectBuilder::default().open_memory(OBJECT).unwrap();
        let mut written = BTreeMap::new();
        let reads = |program: &OpenProgram<'_>| program.name() != "rows_forgotten";
        for program in open.progs().filter(reads) {
            let (mut third, mut sizes) = (0, Vec::new());
            for insn in program.insns() {
                if MOVES.contains(&insn.code) && insn.dst_reg() == 3 {
                    third = insn.imm as u32;
                } else if insn.code == CALL {
                    assert_eq!(insn.imm as u32, libbpf_sys::BPF_FUNC_seq_write);
                    sizes.push(third);
                }
            }
            let name = program.name().to_string_lossy().into_owned();
            written.insert(name.strip_prefix(PREFIX).unwrap().to_owned(), sizes);
        }
        assert_eq!(written.len(), 9);
        for stem in STEMS {
            let object = ObjectBuilder::default().open_memory(stem.object).unwrap();
            for map in object.maps() {
                let name = map.name().to_string_lossy().into_owned();
                if let Some(sizes) = written.get(&name) {
                    assert_eq!(*sizes, [map.key_size(), map.value_size()], "{name}");
                }
            }
        }
    }
}
