//! A kernel and a list of processes that always say the same.
// Each test file uses its part of it.
#![allow(dead_code)]

pub mod resources;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use mrscope::collector::{CollectError, CountsTlb, ListsTasks, Openers, Probes};
use mrscope::ebpf::{EventsError, KernelEvents};
use mrscope::model::{
    AddressRange, Attach, Cause, Counting, DeviceLimit, DeviceTotals, Failure, HookState, InFlight,
    LastFailure, LostUpdates, MadeBy, MapUse, Measured, Memory, MlockCall, MlockTotals, Mlocks,
    MrKind, Pin, PinUse, Place, Placed, Placement, PortFigures, ProbeFigures, ProbeRun, Process,
    ProcessCounters, ProcessGauges, ProcessKey, Snapshot, Task, Tasks, TlbCounter, TlbEvent,
    TlbFigures, TlbNode, TlbProcess, TlbRole, Trouble,
};

/// Counters that always say the same.
pub struct Counted(pub TlbFigures);

impl CountsTlb for Counted {
    fn count(&mut self, _: &[ProcessKey]) -> Result<TlbFigures, CollectError> {
        Ok(self.0.clone())
    }
}

/// Ports that were measured, always the same.
pub struct Probed(pub ProbeFigures);

impl Probes for Probed {
    fn figures(&self) -> Result<ProbeFigures, CollectError> {
        Ok(self.0.clone())
    }

    fn wait(&self, _: Instant) {}

    fn processes(&self) -> HashSet<(u32, u64)> {
        HashSet::new()
    }

    fn judge(&self, _: Instant, _: &[Process]) -> Vec<ProbeRun> {
        Vec::new()
    }

    fn settle(&self) {}
}

/// One port that is well, one that fails, one that is gone.
pub fn write_probe() -> ProbeFigures {
    let measured = |bandwidth, registration_ns| Measured {
        bandwidth_bytes_per_second: bandwidth,
        latency_p50_ns: 2_100,
        latency_p99_ns: 3_900,
        registration_ns,
        at: Instant::now(),
    };
    let well = PortFigures {
        present: true,
        rate_bytes_per_second: Some(50_000_000_000),
        measured: BTreeMap::from([
            ((4096, None), measured(42e9, 900_000)),
            ((2 << 20, Some(1)), measured(48.5e9, 110_000)),
        ]),
        success: Some(true),
        last_run: Some(1_700_000_000.5),
        runs: BTreeMap::from([("ok", 40), ("skipped_busy", 2)]),
        ..PortFigures::default()
    };
    let fails = PortFigures {
        present: true,
        success: Some(false),
        last_run: Some(1_700_000_001.25),
        runs: BTreeMap::from([("no_gid", 3), ("skipped_back_off", 4)]),
        failure: Some(("no_gid", "ibv_query_gid: no GID at all; Give it an address.".to_owned())),
        unseen: 1,
        ..PortFigures::default()
    };
    let gone = PortFigures {
        runs: BTreeMap::from([("gone", 1), ("ok", 7)]),
        last_run: Some(1_700_000_002.0),
        ..PortFigures::default()
    };
    let port = |device: &str, number| (device.to_owned(), number);
    ProbeFigures {
        ports: BTreeMap::from([
            (port("mlx5_0", 1), well),
            (port("mlx5_0", 2), fails),
            (port("mlx5_9", 1), gone),
        ]),
        limits: vec![DeviceLimit {
            device: "mlx5_0".to_owned(),
            max_mr: 16_777_216,
            max_mr_size: u64::MAX,
        }],
        trouble: None,
    }
}

/// A kernel and a list of processes that the test brings, and counters that always say the same.
pub fn openers(
    events: impl FnOnce() -> Result<Box<dyn KernelEvents>, EventsError> + Send + 'static,
    lister: impl ListsTasks + Send + 'static,
) -> Openers {
    Openers {
        events: Box::new(|_| events()),
        tasks: Box::new(|_| Box::new(lister)),
        tlb: Box::new(|_| Box::new(Counted(tlb()))),
        resources: Box::new(|_| Box::new(resources::Listing::of_ended())),
        write_probe: Box::new(|_| Ok(Box::new(Probed(write_probe())))),
    }
}

/// A kernel that always says the same.
pub struct Recorded(pub Snapshot);

impl KernelEvents for Recorded {
    fn snapshot(&mut self, _: &[String]) -> Result<Snapshot, EventsError> {
        Ok(self.0.clone())
    }

    fn pins(&mut self) -> Result<Vec<Pin>, EventsError> {
        Ok(self.0.processes.iter().flat_map(pins).collect())
    }

    fn placements(&mut self) -> Result<Option<HashMap<u64, Placed>>, EventsError> {
        let (base, huge) = ((Some(4096), Some(0)), (Some(2 << 20), Some(1)));
        let placed = |process: &Process| {
            let mut placement = Placement::default();
            for (page_bytes, node) in [base, huge] {
                placement.add(Place { page_bytes, node }, 4096);
            }
            (process.key.tgid.into(), Placed { born_ns: 1, scatter_entries: Some(2), placement })
        };
        // Of one of them nothing is known.
        Ok(Some(self.0.processes.iter().skip(1).map(placed).collect()))
    }

    fn forget(&mut self, _: &[ProcessKey]) {}

    fn hooks(&self) -> Vec<HookState> {
        hooks()
    }
}

/// One buffer on two devices that RDMA netlink does not list.
fn pins(process: &Process) -> [Pin; 2] {
    ["rxe0", "rxe1"].map(|device| Pin {
        umem: u64::from(process.key.tgid),
        born_ns: 1,
        owner: Some(process.key),
        device: device.into(),
        kind: MrKind::Host,
        pin_use: PinUse::Mr,
        made_by: MadeBy::Registration,
        committed: true,
        address: 0x7000_0000,
        length_bytes: 6144,
        pinned_bytes: 8192,
    })
}

pub fn hooks() -> Vec<HookState> {
    let hook = |hook, symbol, attach| HookState {
        hook,
        symbol,
        attach,
        trouble: (attach == Attach::None).then_some(Trouble::NoFunction),
    };
    vec![
        hook("verbs_reg_mr", "ib_uverbs_reg_mr", Attach::Kprobe),
        hook("umem_get", "ib_umem_get", Attach::Fentry),
        hook("umem_release", "ib_umem_release", Attach::Kprobe),
        hook("umem_get_peer", "ib_umem_get_peer", Attach::None),
        hook("mlock_mlock", "__x64_sys_mlock", Attach::Fentry),
        hook("mlock_mlock2", "__x64_sys_mlock2", Attach::Tracepoint),
        hook("mlock_mlockall", "__x64_sys_mlockall", Attach::None),
        hook("mlock_munlock", "__x64_sys_munlock", Attach::Kprobe),
        hook("mlock_munlockall", "__x64_sys_munlockall", Attach::Kprobe),
        hook("verbs_devx_umem_reg", "mlx5_devx", Attach::Pending),
    ]
}

fn device(name: &str, kind: MrKind) -> DeviceTotals {
    let mut slots = vec![0; 28];
    slots[3] = 2;
    slots[27] = 1;
    DeviceTotals {
        device: name.to_owned(),
        kind,
        registration_ns: 1_500_000_000,
        pin_ns: 500_000_000,
        deregistration_ns: 250_000_000,
        registered_bytes: 12_345_678,
        repeats: 2,
        repeat_ns: 1_000_000_000,
        registration_slots: slots.clone(),
        pin_slots: slots.clone(),
        deregistration_slots: vec![0; 28],
        size_slots: slots,
        active: 3,
        active_bytes: 12_345_678,
        pinned_bytes: [12_349_440, 8192, 0],
        unknown_releases: 0,
        walk_ns: 7_000_000,
    }
}

pub fn process(tgid: u32, comm: &str, registrations: u64) -> Process {
    Process {
        key: ProcessKey { tgid, start_ns: 1 },
        comm: comm.to_owned(),
        cgroup_id: 0,
        counters: ProcessCounters {
            registration_ns: registrations * 1_000_000,
            slots: [0, registrations, 0, 0, 0, 0, 0],
            repeats: registrations / 2,
            repeat_ns: registrations / 2 * 1_000_000,
            failures: std::array::from_fn(|cause| u64::from(cause == Cause::MemlockLimit as usize)),
            lock_calls: registrations / 4,
            lock_ns: registrations / 4 * 2_000,
        },
        gauges: ProcessGauges { active: 2, active_bytes: 8192, largest_bytes: 4096 },
        pinned_bytes: 12_288,
        live_pins: 2,
    }
}

fn mlocks() -> Mlocks {
    let mut slots = vec![0; 28];
    slots[0] = 4;
    slots[9] = 1;
    let totals = |call: MlockCall| MlockTotals {
        call,
        ns: 1_250_000,
        bytes: if call.has_length() { 3 << 20 } else { 0 },
        slots: slots.clone(),
        failures: [0, 0, 0, 2, 0, 0],
    };
    Mlocks { totals: MlockCall::ALL.map(totals).to_vec(), per_process: true }
}

/// One of each kind of figures, the newest first.
fn last_failures() -> Vec<LastFailure> {
    let limited = LastFailure {
        at_ns: 99_000_000_000,
        tgid: 4_194_305,
        comm: "a \"quoted\"\nname\\".to_owned(),
        device: "mlx5_0".to_owned(),
        error: 12,
        cause: Cause::MemlockLimit,
        kind: MrKind::Host,
        range: Some(AddressRange { address: 0x7f00_0000_1000, length_bytes: 1_048_577 }),
        memlock_bytes: 8 << 20,
        pinned_bytes: 8_384_512,
        memlock_exempt: false,
    };
    let refused = LastFailure {
        at_ns: 8_500_000_000,
        comm: "<script>alert('1')</script> & more".to_owned(),
        error: 22,
        cause: Cause::Refused,
        range: None,
        memlock_bytes: Memory::NO_LIMIT,
        pinned_bytes: 0,
        memlock_exempt: true,
        ..limited.clone()
    };
    vec![limited, refused]
}

pub fn snapshot() -> Snapshot {
    Snapshot {
        counting_since_ns: Some(1),
        devices: vec![device("mlx5_0", MrKind::Host), device("mlx5_0", MrKind::Odp)],
        failures: vec![Failure {
            device: "mlx5_0".into(),
            error: 12,
            cause: Cause::MemlockLimit,
            count: 4,
        }],
        last_failures: last_failures(),
        // Pids beyond the largest there can be: this test's own host has none of them.
        processes: vec![
            process(4_194_305, "a \"quoted\"\nname\\", 7),
            process(4_194_306, "python3", 9),
        ],
        history_forgotten: 3,
        in_flight: vec![InFlight {
            device: "mlx5_0".into(),
            tgid: 4_194_306,
            tid: 4_194_306,
            age_ns: 2_500_000_000,
        }],
        mlocks: Some(mlocks()),
        lost: vec![LostUpdates { source: "pins".into(), reason: "full", count: 5 }],
        maps: vec![MapUse {
            map: "pins",
            entries: 3,
            max_entries: 131_072,
            memory_bytes: 9_437_184,
        }],
    }
}

/// A list of processes that is always the same.
pub struct Listed(pub Tasks);

impl ListsTasks for Listed {
    fn list(&mut self) -> Result<(Tasks, HookState), CollectError> {
        let hook = HookState {
            hook: "tasks",
            symbol: "iter/task",
            attach: Attach::Iterator,
            trouble: None,
        };
        Ok((self.0.clone(), hook))
    }
}

pub fn tasks() -> Tasks {
    let task = |tgid, start_ns, comm, memory| Task {
        key: ProcessKey { tgid, start_ns },
        comm,
        memory: Some(memory),
    };
    let held = Memory {
        pinned_bytes: 12_349_440,
        locked_bytes: 0,
        hugetlb_bytes: Some(4 << 20),
        page_table_bytes: 36_864,
        memlock_limit_bytes: Some(Memory::NO_LIMIT),
        locks_future: Some(false),
        exempt: Some(true),
    };
    let locker = Memory {
        pinned_bytes: 0,
        locked_bytes: 3 << 20,
        memlock_limit_bytes: Some(8 << 20),
        locks_future: Some(true),
        exempt: Some(false),
        ..held
    };
    let bystander = Memory { locked_bytes: 0, page_table_bytes: 4096, ..locker };
    Tasks {
        rows: vec![
            task(4_194_305, 1, *b"a \"quoted\"\nname\0", held),
            task(4_194_306, 1, *b"python3\0\0\0\0\0\0\0\0\0", held),
            // Never registered; its name is no UTF-8.
            task(4_194_307, 90_000_000_000, *b"locker \xff\0\0\0\0\0\0\0\0", locker),
            task(4_194_308, 2, *b"bystander\0\0\0\0\0\0\0", bystander),
        ],
        exact: true,
        whole: true,
        unread: None,
    }
}

/// Counters of two nodes, of which one event is absent.
pub fn tlb() -> TlbFigures {
    let node = |node, count| TlbNode {
        node,
        count,
        enabled_ns: 20_000_000_000,
        running_ns: 15_000_000_000,
    };
    let counter = |event, role, counts: [u64; 2]| TlbCounter {
        event,
        role,
        counting: Counting::Counted,
        nodes: vec![node(0, counts[0]), node(1, counts[1])],
    };
    let absent = TlbCounter {
        counting: Counting::Unsupported("CPU 0 has no such event".to_owned()),
        nodes: Vec::new(),
        ..counter(TlbEvent::DataStore, TlbRole::Access, [0, 0])
    };
    let of_process = |tgid, role, count| TlbProcess {
        key: ProcessKey { tgid, start_ns: 1 },
        event: TlbEvent::DataLoad,
        role,
        count,
    };
    TlbFigures {
        counters: vec![
            counter(TlbEvent::DataLoad, TlbRole::Access, [9_000_000_000, 5_000_000_000]),
            counter(TlbEvent::DataLoad, TlbRole::Miss, [163_840, 81_920]),
            absent,
            counter(TlbEvent::DataStore, TlbRole::Miss, [1234, 0]),
            counter(TlbEvent::InstructionLoad, TlbRole::Miss, [77, 88]),
            counter(TlbEvent::PageWalk, TlbRole::Cycles, [60_000_000_000, 50_000_000_000]),
            counter(TlbEvent::PageWalk, TlbRole::Walks, [163_000, 81_000]),
            counter(TlbEvent::PageWalk, TlbRole::WalkCycles, [4_900_000, 2_400_000]),
        ],
        processes: vec![
            of_process(4_194_305, TlbRole::Access, 8_000_000),
            of_process(4_194_305, TlbRole::Miss, 4096),
            of_process(4_194_306, TlbRole::Access, 7),
            of_process(4_194_306, TlbRole::Miss, 0),
        ],
        missing: None,
    }
}
