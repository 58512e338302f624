//! The program of bpf/tasks.bpf.c: one walk over all processes, read as rows. It shares no map with
//! the other stems and can be had where they can't. Never decides what a row is worth.

use std::io;

use libbpf_rs::{Iter, Link, ObjectBuilder};
use rustix::io::Errno;

use crate::host::{self, Host, Processes};
use crate::model::{Attach, HookState, Memory, ProcessKey, Task, Tasks};

use super::attach::{one_line, os_error};
use super::events::EventsError;
use super::load::object;
use super::records::{self, from_bytes};
use super::tracer::{load_error, quiet_libbpf};
use super::walk::{buffer, read_records};

const OBJECT: &[u8] = object!("tasks");
const SYMBOL: &str = "iter/task";
const ROW_BYTES: usize = size_of::<records::task>();

/// A loaded program that walks over the processes of this pid namespace. Pids are the host's.
#[derive(Debug)]
pub struct TaskIterator {
    link: Link,
    buffer: Vec<u8>,
    page_bytes: u64,
    whole: bool,
}

impl TaskIterator {
    /// Loads and attaches the program.
    ///
    /// # Errors
    /// Denied for lack of rights; Unsupported where the kernel has no such iterator or no BTF.
    pub fn start(host: &Host) -> Result<Self, EventsError> {
        quiet_libbpf();
        let open = ObjectBuilder::default()
            .name("tasks")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(|error| load_error(&error))?;
        let object = open.load().map_err(|error| load_error(&error).explained(host))?;
        let program = object.progs_mut().next().ok_or_else(|| {
            EventsError::Unsupported("the object tasks has no program".to_owned())
        })?;
        // The link holds the program when the object is gone.
        let link = program.attach().map_err(|error| load_error(&error).explained(host))?;
        Ok(Self {
            link,
            buffer: buffer(),
            page_bytes: host::page_bytes(),
            whole: Processes::of(host).all_visible(),
        })
    }

    /// One walk over all processes.
    ///
    /// # Errors
    /// The kernel refuses the walk, or ends it halfway: nothing is known of any process.
    pub fn read(&mut self) -> Result<Tasks, EventsError> {
        let walk = Iter::new(&self.link).map_err(|error| match os_error(&error) {
            Some(errno) if errno == Errno::PERM.raw_os_error() => {
                EventsError::Denied(one_line(&error))
            }
            _ => failed(io::Error::other(one_line(&error))),
        })?;
        let mut rows = Vec::new();
        read_records(walk, ROW_BYTES, &mut self.buffer, |row| rows.push(from_bytes(row)))
            .map_err(failed)?;
        let rows = processes(rows, self.page_bytes);
        Ok(Tasks { rows, exact: true, whole: self.whole, unread: None })
    }

    /// How the program stands.
    #[must_use]
    pub fn state(&self) -> HookState {
        HookState { hook: "tasks", symbol: SYMBOL, attach: Attach::Iterator, trouble: None }
    }
}

fn failed(source: io::Error) -> EventsError {
    EventsError::Map { map: "tasks (iter/task)", source }
}

/// Rows of the kernel → one row a process; of those that share one memory the oldest has its
/// figures. Threads may each have written a row for a leader that ended before them.
fn processes(mut rows: Vec<records::task>, page_bytes: u64) -> Vec<Task> {
    let key = |row: &records::task| (row.key.tgid, row.key.start_boottime_ns);
    rows.sort_unstable_by_key(|row| (key(row), row.memory == 0));
    rows.dedup_by_key(|row| key(row));
    let mut owners: Vec<(u64, u64, usize)> = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.memory != 0)
        .map(|(at, row)| (row.memory, row.key.start_boottime_ns, at))
        .collect();
    owners.sort_unstable();
    let mut tasks: Vec<Task> = rows.iter().map(|row| process(row, page_bytes)).collect();
    for pair in owners.windows(2) {
        if let [(memory, ..), (same, _, younger)] = pair
            && memory == same
            && let Some(memory) = &mut tasks[*younger].memory
        {
            *memory = own_part(memory);
        }
    }
    tasks
}

/// What is left of shared memory for those that don't own it: their own limit.
fn own_part(memory: &Memory) -> Memory {
    Memory {
        hugetlb_bytes: memory.hugetlb_bytes.map(|_| 0),
        memlock_limit_bytes: memory.memlock_limit_bytes,
        locks_future: memory.locks_future,
        exempt: memory.exempt,
        ..Memory::default()
    }
}

fn process(row: &records::task, page_bytes: u64) -> Task {
    let bytes = |pages: i64| (pages.max(0) as u64).saturating_mul(page_bytes);
    let memory = (row.memory != 0).then(|| Memory {
        pinned_bytes: bytes(row.pinned_pages),
        locked_bytes: bytes(row.locked_pages),
        hugetlb_bytes: (row.has_hugetlb != 0).then(|| bytes(row.hugetlb_pages)),
        page_table_bytes: row.page_table_bytes.max(0) as u64,
        memlock_limit_bytes: Some(row.memlock_bytes),
        locks_future: Some(row.locks_future != 0),
        exempt: Some(row.may_exceed != 0),
    });
    let mut comm = row.comm.map(|c| c as u8);
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    comm[end..].fill(0);
    Task {
        key: ProcessKey { tgid: row.key.tgid, start_ns: row.key.start_boottime_ns },
        comm,
        memory,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_char;

    use super::*;

    /// A row of `tgid`, started at `start`, whose memory is at `memory` and holds one page of each.
    fn row(tgid: u32, start: u64, memory: u64) -> records::task {
        let mut row = records::task {
            key: records::process_key { start_boottime_ns: start, tgid, unused: 0 },
            memory,
            memlock_bytes: 100 + u64::from(tgid),
            has_hugetlb: 1,
            ..records::task::default()
        };
        if memory != 0 {
            (row.pinned_pages, row.locked_pages, row.hugetlb_pages) = (1, 1, 1);
            row.page_table_bytes = 4096;
        }
        row
    }

    fn memories(rows: &[records::task]) -> Vec<(u32, Option<Memory>)> {
        let tasks = processes(rows.to_vec(), 4096);
        tasks.into_iter().map(|task| (task.key.tgid, task.memory)).collect()
    }

    fn held(memory: Option<Memory>) -> Option<[u64; 4]> {
        memory.map(|m| {
            [m.pinned_bytes, m.locked_bytes, m.hugetlb_bytes.unwrap_or(9), m.page_table_bytes]
        })
    }

    #[test]
    fn pages_become_bytes_and_what_is_below_zero_is_none() {
        let mut one = row(7, 5, 0xffff);
        (one.pinned_pages, one.locked_pages, one.has_hugetlb) = (3, -1, 0);
        (one.locks_future, one.memlock_bytes) = (1, u64::MAX);
        let task = process(&one, 65536);
        let expected = Memory {
            pinned_bytes: 3 * 65536,
            locked_bytes: 0,
            hugetlb_bytes: None,
            page_table_bytes: 4096,
            memlock_limit_bytes: Some(Memory::NO_LIMIT),
            locks_future: Some(true),
            exempt: Some(false),
        };
        assert_eq!(task.memory, Some(expected));
        assert_eq!(task.key, ProcessKey { tgid: 7, start_ns: 5 });
    }

    #[test]
    fn a_name_ends_at_its_nul() {
        let mut one = row(7, 5, 0);
        one.comm = *b"a\xff\0stale bytes..".map(|byte| byte as c_char).first_chunk().unwrap();
        let mut comm = [0; 16];
        comm[..2].copy_from_slice(b"a\xff");
        assert_eq!(process(&one, 4096).comm, comm);
        one.comm = [b'x' as c_char; 16];
        assert_eq!(process(&one, 4096).comm, [b'x'; 16]);
    }

    #[test]
    fn of_those_that_share_a_memory_the_oldest_has_it() {
        // The pids do not tell who is older.
        let shared =
            memories(&[row(3, 900, 0xa), row(5, 100, 0xa), row(8, 500, 0xa), row(9, 1, 0xb)]);
        let all = Some([4096; 4]);
        let held: Vec<_> = shared.iter().map(|(tgid, memory)| (*tgid, held(*memory))).collect();
        assert_eq!(held, [(3, Some([0; 4])), (5, all), (8, Some([0; 4])), (9, all)]);
        let limits: Vec<_> =
            shared.iter().filter_map(|(_, memory)| (*memory)?.memlock_limit_bytes).collect();
        assert_eq!(limits, [103, 105, 108, 109]);
    }

    #[test]
    fn threads_speak_for_a_leader_without_memory_and_are_one_process() {
        let leader = row(4, 10, 0);
        let thread = row(4, 10, 0xc);
        for rows in [[leader, thread, thread], [thread, thread, leader]] {
            let tasks = memories(&rows);
            assert_eq!(tasks.len(), 1);
            assert_eq!(held(tasks[0].1), Some([4096; 4]));
        }
    }

    #[test]
    fn those_without_memory_share_none() {
        assert_eq!(memories(&[row(1, 1, 0), row(2, 2, 0)]), [(1, None), (2, None)]);
    }

    #[test]
    fn a_reused_pid_is_a_row_of_its_own() {
        assert_eq!(memories(&[row(1, 1, 0), row(1, 2, 0xa)]).len(), 2);
    }

    /// The code of the one program that the object has.
    fn code() -> Vec<libbpf_sys::bpf_insn> {
        let open = ObjectBuilder::default().open_memory(OBJECT).unwrap();
        assert_eq!(open.maps().count(), 0);
        let mut programs: Vec<_> = open.progs().map(|program| program.insns().to_vec()).collect();
        assert_eq!(programs.len(), 1);
        programs.remove(0)
    }

    #[test]
    fn the_program_keeps_to_its_stack() {
        const FRAME: u8 = 10;
        let code = code();
        let deepest = code
            .iter()
            .filter(|insn| insn.dst_reg() == FRAME || insn.src_reg() == FRAME)
            .map(|insn| -i32::from(insn.off))
            .max();
        assert_eq!(deepest, Some(ROW_BYTES as i32), "the row and nothing else");
    }

    #[test]
    fn the_program_writes_rows_of_the_size_that_is_read() {
        const MOVES: [u8; 2] = [0xb7, 0xb4];
        const CALL: u8 = 0x85;
        let code = code();
        let calls: Vec<_> = (0..code.len()).filter(|at| code[*at].code == CALL).collect();
        assert_eq!(calls.len(), 1, "it calls bpf_seq_write alone");
        assert_eq!(code[calls[0]].imm as u32, libbpf_sys::BPF_FUNC_seq_write);
        let third = code[..calls[0]]
            .iter()
            .rfind(|insn| MOVES.contains(&insn.code) && insn.dst_reg() == 3)
            .unwrap();
        assert_eq!(third.imm as usize, ROW_BYTES);
    }
}
