//! The only room that names libbpf: facts of the kernel → a plan → programs attached → snapshots.

mod attach;
mod btf;
mod cost;
mod decode;
mod device;
mod events;
mod facts;
mod hook;
mod kprobe;
mod load;
mod maps;
mod mlock;
mod placement;
mod plan;
mod readers;
mod records;
mod rows;
mod tasks;
mod tracer;
mod umem;
mod verbs;
mod walk;
mod watch;

pub use decode::UNKNOWN_DEVICE;
pub use events::{EventsError, KernelEvents, Unwatched};
pub use facts::KernelFacts;
pub use plan::AttachPlan;
pub use tasks::TaskIterator;
pub use tracer::Tracer;

/// First bound of the kernel's histogram slots, as a power of two: nanoseconds or bytes.
pub const SLOT_FIRST_LOG2: u32 = records::SLOT_FIRST_LOG2;
