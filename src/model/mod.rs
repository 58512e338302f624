//! The nouns: what a snapshot of the kernel's maps says, in Rust's words.
//! No I/O, no unsafe, no type of another crate.

mod attach;
mod bench;
mod device;
mod errno;
mod failure;
mod histogram;
mod mlock;
mod options;
mod pin;
mod placement;
mod process;
mod resource;
mod snapshot;
mod task;
mod tlb;
mod write_probe;

pub use attach::{Attach, HookState, Trouble};
pub use bench::BenchOptions;
pub use device::{Excluded, RdmaDevice};
pub use errno::errno_name;
pub use failure::{Cause, Failure};
pub use histogram::{PROCESS_BOUNDS_SECONDS, Slots, cumulate, power_of_four_bounds};
pub use mlock::{MLOCK_ERRORS, MlockCall, MlockTotals, Mlocks};
pub use options::{AttachMode, COLLECTORS, EbpfOptions, MlockOptions, ProcessLabel, Watched};
pub use pin::{Account, Accounts, Found, FoundMr, FoundOwner, MadeBy, Pin};
pub use placement::{Place, Placed, Placement, PlacementOptions};
pub use process::{Labels, Process, ProcessCounters, ProcessGauges, ProcessKey, text};
pub use resource::{
    CqEntry, Creator, CtxEntry, DeviceId, DeviceResources, MrEntry, MrOwner, Odp, OwnedBy, PdEntry,
    QpEntry, ResourceCount, ResourcesOptions,
};
pub use snapshot::{
    AddressRange, DeviceTotals, InFlight, LastFailure, LostUpdates, MapUse, MrKind, PinUse,
    Snapshot,
};
pub use task::{Memory, Task, Tasks};
pub use tlb::{
    Counting, TlbCounter, TlbEvent, TlbFigures, TlbNode, TlbOptions, TlbProcess, TlbRole,
};
pub use write_probe::{
    DeviceLimit, Measured, PageBytes, PortFigures, PortName, ProbeFigures, ProbeRun, ProbeTrouble,
    WriteProbeOptions,
};
