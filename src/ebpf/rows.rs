//! The programs of bpf/rows.bpf.c: each walks one map and writes all its rows. They are run when a
//! reading is asked for and sit on no function of the kernel.

use std::io;

use libbpf_rs::{Iter, Link, ObjectBuilder};

use super::attach::os_error;
use super::events::EventsError;
use super::load::object;
use super::maps::SharedMaps;
use super::records::{Record, as_bytes, from_bytes};
use super::tracer::load_error;
use super::walk::{buffer, read_records};

pub const OBJECT: &[u8] = object!("rows");
const PREFIX: &str = "rows_";

/// A walk for each map that is read whole.
pub struct RowWalks {
    links: Vec<(String, Link)>,
    buffer: Vec<u8>,
}

impl RowWalks {
    /// Loads the programs, each bound to its map.
    ///
    /// # Errors
    /// Denied for lack of rights; Unsupported where the kernel has no such iterator.
    pub fn start(maps: &SharedMaps) -> Result<Self, EventsError> {
        let open = ObjectBuilder::default()
            .name("rows")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(|error| load_error(&error))?;
        let object = open.load().map_err(|error| load_error(&error))?;
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
        Ok(Self { links, buffer: buffer() })
    }

    /// All rows of a map, by key. Rows that come or go meanwhile may or may not be among them;
    /// all others are, since only rows that are added or removed move those of their bucket.
    ///
    /// # Errors
    /// There is no walk of that map, or the kernel refuses it or ends it halfway.
    pub fn read<K: Record, V: Record>(
        &mut self,
        map: &'static str,
    ) -> Result<Vec<(K, V)>, EventsError> {
        let failed = |source| EventsError::Map { map, source };
        let link = self.links.iter().find(|(known, _)| known == map).map(|(_, link)| link);
        let link = link.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let walk = Iter::new(link).map_err(|error| failed(system_error(&error)))?;
        let mut rows: Vec<(K, V)> = Vec::new();
        let bytes = size_of::<K>() + size_of::<V>();
        read_records(walk, bytes, &mut self.buffer, |record| {
            let (key, value) = record.split_at(size_of::<K>());
            rows.push((from_bytes(key), from_bytes(value)));
        })
        .map_err(failed)?;
        Ok(each_once(rows))
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
        for program in open.progs() {
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
        assert_eq!(written.len(), 6);
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
