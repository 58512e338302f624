//! What can fail, one variant for each call, and what a failure comes from: of the error itself,
//! and of what is seen around it afterwards.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use mrscope::model::errno_name;
use mrscope::probe::{Failure, Pages, ProbeOptions, Reason};
use rustix::io::Errno;

use crate::gid::Gid;
use crate::limits::Limits;
use crate::memory::WORD;
use crate::sysfs::Sysfs;

/// What the queues of a pair take at most of locked memory, for a limit to be blamed.
const QUEUE_BYTES: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("the devices can't be listed")]
    GetDeviceList(Errno),
    #[error("{}", known_devices(.known))]
    NoDevice { known: Vec<String> },
    #[error("the device can't be opened")]
    OpenDevice(Errno),
    #[error("an iWARP device connects by the connection manager, which this program does without")]
    Iwarp,
    #[error("the port can't be queried")]
    QueryPort(Errno),
    #[error("the port's state is {state}")]
    PortState { state: String },
    #[error("the device sends messages of at most {max} bytes")]
    MessageTooLong { max: u32 },
    #[error("no GID {}", .index.map_or("at all".to_owned(), |index| format!("at index {index}")))]
    NoGid { index: Option<u8> },
    #[error("no protection domain")]
    AllocPd(Errno),
    #[error("{bytes} bytes can't be registered")]
    RegMr { bytes: u64, errno: Errno },
    #[error("the MR can't be deregistered")]
    DeregMr(Errno),
    #[error("no completion queue")]
    CreateCq(Errno),
    #[error("no queue pair")]
    CreateQp(Errno),
    #[error("the queue pair can't be brought to {to}")]
    ModifyQp { to: &'static str, errno: Errno },
    #[error("a write can't be posted")]
    PostSend(Errno),
    #[error("the completion queue can't be polled: {code}")]
    PollCq { code: i32 },
    #[error("a write failed after {done} others: {status} (vendor's code {vendor:#x})")]
    Completion { status: String, vendor: u32, done: u64 },
    #[error("nothing more was complete after {done} writes")]
    Stalled { done: u64 },
    #[error("the device was taken away after {done} writes")]
    Gone { done: u64 },
    #[error("memory can't be taken from node {node}")]
    SetMempolicy { node: u32, errno: Errno },
    #[error("{bytes} bytes of {} pages can't be mapped", .pages.word())]
    Mmap { pages: Pages, bytes: u64, errno: Errno },
    #[error("the kernel has no transparent hugepages")]
    Madvise { errno: Errno },
    #[error("{had} of {wanted} {} pages could be had", .pages.word())]
    Unpopulated { pages: Pages, page_bytes: u64, wanted: usize, had: usize },
    #[error("{transparent} of {mapped} bytes are on transparent hugepages, {} was asked for", .pages.word())]
    OtherPages { pages: Pages, mapped: u64, transparent: u64 },
    #[error("the memory lies on node {node}, not on {wanted}")]
    OtherNode { pages: Pages, wanted: u32, node: u32 },
    #[error("the memory lies on several nodes or the kernel does not tell, {wanted} was asked for")]
    SeveralNodes { pages: Pages, wanted: u32 },
    #[error("byte {} of the {what} is of {found:#x}, not of {expected:#x}", .word * WORD)]
    DataMismatch { what: &'static str, word: usize, expected: u64, found: u64 },
    #[error("{at} took more than {ms} ms since the start")]
    Timeout { at: &'static str, ms: u64 },
}

/// What is looked at when something has failed.
#[derive(Debug)]
pub struct Surroundings<'a> {
    pub sysfs: &'a Sysfs,
    pub limits: &'a Limits,
    /// Which one the writes went to.
    pub gid: Option<&'a Gid>,
}

impl ProbeError {
    /// The call that failed.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::GetDeviceList(_) | Self::NoDevice { .. } => "ibv_get_device_list",
            Self::OpenDevice(_) | Self::Iwarp => "ibv_open_device",
            Self::QueryPort(_) | Self::PortState { .. } | Self::MessageTooLong { .. } => {
                "ibv_query_port"
            }
            Self::NoGid { .. } => "ibv_query_gid",
            Self::AllocPd(_) => "ibv_alloc_pd",
            Self::RegMr { .. } => "ibv_reg_mr",
            Self::DeregMr(_) => "ibv_dereg_mr",
            Self::CreateCq(_) => "ibv_create_cq",
            Self::CreateQp(_) => "ibv_create_qp",
            Self::ModifyQp { .. } => "ibv_modify_qp",
            Self::PostSend(_) => "ibv_post_send",
            Self::PollCq { .. }
            | Self::Completion { .. }
            | Self::Stalled { .. }
            | Self::Gone { .. } => "ibv_poll_cq",
            Self::SetMempolicy { .. } => "set_mempolicy",
            Self::Mmap { .. } => "mmap",
            Self::Madvise { .. } => "madvise",
            Self::Unpopulated { .. } => "mincore",
            Self::OtherPages { .. } => "smaps",
            Self::OtherNode { .. } | Self::SeveralNodes { .. } => "move_pages",
            Self::DataMismatch { .. } => "compare",
            Self::Timeout { at, .. } => at,
        }
    }

    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::GetDeviceList(errno)
            | Self::OpenDevice(errno)
            | Self::QueryPort(errno)
            | Self::AllocPd(errno)
            | Self::RegMr { errno, .. }
            | Self::DeregMr(errno)
            | Self::CreateCq(errno)
            | Self::CreateQp(errno)
            | Self::ModifyQp { errno, .. }
            | Self::PostSend(errno)
            | Self::SetMempolicy { errno, .. }
            | Self::Mmap { errno, .. }
            | Self::Madvise { errno } => Some(*errno),
            _ => None,
        }
    }

    /// Whether other pages than base pages could not be had.
    pub fn is_of_pages(&self) -> bool {
        match self {
            Self::Mmap { pages, .. }
            | Self::OtherNode { pages, .. }
            | Self::OtherPages { pages, .. }
            | Self::SeveralNodes { pages, .. } => *pages != Pages::Base,
            Self::Madvise { .. } | Self::Unpopulated { .. } => true,
            _ => false,
        }
    }

    /// Whether it speaks for itself: nothing around could say more.
    fn is_plain(&self) -> bool {
        matches!(
            self,
            Self::NoDevice { .. }
                | Self::GetDeviceList(_)
                | Self::Iwarp
                | Self::PortState { .. }
                | Self::MessageTooLong { .. }
                | Self::NoGid { .. }
                | Self::SetMempolicy { .. }
                | Self::Mmap { .. }
                | Self::Madvise { .. }
                | Self::Unpopulated { .. }
                | Self::OtherPages { .. }
                | Self::OtherNode { .. }
                | Self::SeveralNodes { .. }
                | Self::DataMismatch { .. }
                | Self::Timeout { .. }
        )
    }
}

fn known_devices(known: &[String]) -> String {
    if known.is_empty() {
        "there is none".to_owned()
    } else {
        format!("there is {}", known.join(", "))
    }
}

/// The reason as far as the error alone tells it.
pub fn reason_alone(error: &ProbeError) -> Reason {
    match error {
        ProbeError::NoDevice { .. } => Reason::NoDevice,
        ProbeError::PortState { .. } => Reason::PortDown,
        ProbeError::NoGid { .. } => Reason::NoGid,
        ProbeError::MessageTooLong { .. } | ProbeError::Iwarp => Reason::Invalid,
        ProbeError::SetMempolicy { errno, .. } if !is_denial(*errno) => Reason::Invalid,
        ProbeError::Gone { .. } => Reason::Gone,
        ProbeError::DataMismatch { .. } => Reason::DataMismatch,
        ProbeError::Timeout { .. } => Reason::Timeout,
        ProbeError::Madvise { .. } | ProbeError::Unpopulated { .. } => Reason::NoHugepages,
        ProbeError::Mmap { pages, .. }
        | ProbeError::OtherPages { pages, .. }
        | ProbeError::OtherNode { pages, .. }
        | ProbeError::SeveralNodes { pages, .. } => {
            if *pages == Pages::Base {
                Reason::NoMemory
            } else {
                Reason::NoHugepages
            }
        }
        ProbeError::GetDeviceList(errno) if !is_denial(*errno) => Reason::NoDevice,
        _ => match error.errno() {
            Some(errno) if is_denial(errno) => Reason::Permission,
            Some(Errno::NOMEM) => Reason::NoMemory,
            Some(Errno::INVAL | Errno::OPNOTSUPP) => Reason::Invalid,
            _ => Reason::Device,
        },
    }
}

fn is_denial(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::ACCESS)
}

/// What a failure comes from, with what is to be done.
pub fn diagnose(error: &ProbeError, options: &ProbeOptions, around: &Surroundings<'_>) -> Failure {
    let told = reason_alone(error);
    let reason = match error {
        ProbeError::Mmap { pages, bytes, .. } => cgroup(*pages, *bytes, true, around),
        // What it had is given back by now.
        ProbeError::Unpopulated { pages, page_bytes, wanted, .. } => {
            cgroup(*pages, page_bytes * *wanted as u64, false, around)
        }
        _ if error.is_plain() => None,
        _ => seen_around(error, options, around),
    };
    let mut failure = of(error, reason.as_ref().map_or(told, |(reason, _)| *reason), options);
    let more = reason.map(|(_, more)| more).or_else(|| free_pages(error, options, around.limits));
    if let Some(more) = more.filter(|more| !more.is_empty()) {
        failure.detail = format!("{}; {more}", failure.detail);
    }
    failure
}

/// The library tells ENOENT for whatever it met; so the device's file is tried.
fn cannot_open(file_name: &OsStr) -> Option<(Reason, String)> {
    let path = Path::new("/dev/infiniband").join(file_name);
    let error = OpenOptions::new().read(true).write(true).open(&path).err()?;
    let denied = matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound);
    denied.then(|| (Reason::Permission, format!("{}: {error}", path.display())))
}

fn cgroup(
    pages: Pages,
    bytes: u64,
    reserved: bool,
    around: &Surroundings<'_>,
) -> Option<(Reason, String)> {
    let (group, limit): (PathBuf, u64) = around.limits.hugepages_below(pages, bytes, reserved)?;
    let said = format!("the cgroup /{} may have {limit} bytes", group.display());
    Some((Reason::CgroupLimit, said))
}

fn free_pages(error: &ProbeError, options: &ProbeOptions, limits: &Limits) -> Option<String> {
    let (ProbeError::Mmap { pages, .. } | ProbeError::Unpopulated { pages, .. }) = error else {
        return None;
    };
    let free = limits.free_hugepages(*pages, options.numa_node)?;
    let place = options.numa_node.map(|node| format!(" on node {node}")).unwrap_or_default();
    Some(format!("{free} are free{place}"))
}

/// A device, a port or a GID that is no longer what it was explains any error; a limit explains
/// that of a call which takes locked memory.
fn seen_around(
    error: &ProbeError,
    options: &ProbeOptions,
    around: &Surroundings<'_>,
) -> Option<(Reason, String)> {
    if !around.sysfs.has_device() {
        return Some((Reason::Gone, format!("{} is no longer there", options.device)));
    }
    if let ProbeError::OpenDevice(_) = error {
        return cannot_open(around.sysfs.file_name()?);
    }
    let takes = match error {
        ProbeError::RegMr { bytes, .. } => Some(*bytes),
        ProbeError::CreateCq(_) | ProbeError::CreateQp(_) => Some(QUEUE_BYTES),
        _ => None,
    };
    if let (Some(bytes), Some(Errno::NOMEM | Errno::PERM | Errno::AGAIN)) = (takes, error.errno())
        && let Some(limit) = around.limits.memlock_below(bytes)
    {
        let said = format!("the limit on locked memory is {limit} bytes");
        return Some((Reason::Memlock, said));
    }
    let of_the_path = matches!(
        error,
        ProbeError::ModifyQp { .. }
            | ProbeError::PostSend(_)
            | ProbeError::PollCq { .. }
            | ProbeError::Completion { .. }
            | ProbeError::Stalled { .. }
    );
    if !of_the_path {
        return None;
    }
    lost_path(around.sysfs, around.gid)
}

/// What a write needs of the port and has no longer.
pub fn lost_path(sysfs: &Sysfs, gid: Option<&Gid>) -> Option<(Reason, String)> {
    match sysfs.state() {
        Some(state) if state != "ACTIVE" => {
            return Some((Reason::PortDown, format!("the port's state is {state}")));
        }
        _ => {}
    }
    let gid = gid?;
    let lost = sysfs.gid(gid.index).as_ref() != Some(gid);
    lost.then(|| (Reason::NoGid, format!("the GID {} is no longer there", gid.address)))
}

/// The failure of that reason.
pub fn of(error: &ProbeError, reason: Reason, options: &ProbeOptions) -> Failure {
    let errno = error.errno().map(Errno::raw_os_error);
    Failure {
        device: options.device.clone(),
        port: options.port,
        verb: error.verb().to_owned(),
        errno,
        errno_name: errno.map(|errno| errno_name(errno.unsigned_abs())),
        reason,
        detail: error.to_string(),
        remedy: match error {
            // As containers' default profiles do.
            ProbeError::SetMempolicy { errno, .. } if is_denial(*errno) => {
                "Allow set_mempolicy (in a container: CAP_SYS_NICE), or name no node.".to_owned()
            }
            _ => remedy(reason, options),
        },
    }
}

fn remedy(reason: Reason, options: &ProbeOptions) -> String {
    let ProbeOptions { device, port, .. } = options;
    match reason {
        Reason::NoDevice => format!(
            "Name a device that `ibv_devices` shows, and load ib_uverbs and the driver of {device}."
        ),
        Reason::Permission => {
            "Let this user open /dev/infiniband/uverbs*, in a container by giving it the device."
                .to_owned()
        }
        Reason::PortDown => {
            format!("Bring port {port} of {device} up, or leave it out if it has no cable.")
        }
        Reason::NoGid => format!(
            "Give the network interface of {device} an address, or name a GID index that its \
             table has."
        ),
        Reason::NoHugepages => format!(
            "Have more hugepages ({}) in the pool, or allow transparent ones, or fall back to base \
             pages.",
            options.pages.word()
        ),
        Reason::CgroupLimit => {
            "Raise the hugetlb limit of the cgroup, or fall back to base pages.".to_owned()
        }
        Reason::Memlock => {
            "Raise the limit on locked memory (RLIMIT_MEMLOCK), or give CAP_IPC_LOCK.".to_owned()
        }
        Reason::NoMemory => "Free memory on the host, or ask for a smaller MR.".to_owned(),
        Reason::Device => {
            format!("Look into the kernel's log for what the driver of {device} says.")
        }
        Reason::DataMismatch => format!(
            "Take {device} out of use until memory, PCIe and firmware are checked: it wrote other \
             data than it was given."
        ),
        Reason::Timeout => format!(
            "Look into the kernel's log for a hang of {device}, or give it more time if the host \
             is busy."
        ),
        Reason::Gone => format!("Wait until {device} is back, if it is to be."),
        Reason::Invalid => {
            "Ask for what the device and the host can do: a shorter message, another node."
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ProbeOptions {
        ProbeOptions::new("rxe0")
    }

    /// With nothing around.
    fn reason(error: &ProbeError) -> Reason {
        reason_alone(error)
    }

    #[test]
    fn an_error_alone_tells_its_reason() {
        let pages = Pages::Huge2M;
        for (error, expected) in [
            (ProbeError::GetDeviceList(Errno::NOSYS), Reason::NoDevice),
            (ProbeError::GetDeviceList(Errno::PERM), Reason::Permission),
            (ProbeError::OpenDevice(Errno::ACCESS), Reason::Permission),
            (ProbeError::OpenDevice(Errno::IO), Reason::Device),
            (ProbeError::RegMr { bytes: 1, errno: Errno::NOMEM }, Reason::NoMemory),
            (ProbeError::RegMr { bytes: 1, errno: Errno::INVAL }, Reason::Invalid),
            (ProbeError::Mmap { pages, bytes: 1, errno: Errno::NOMEM }, Reason::NoHugepages),
            (
                ProbeError::Mmap { pages: Pages::Base, bytes: 1, errno: Errno::NOMEM },
                Reason::NoMemory,
            ),
            (ProbeError::OtherNode { pages, wanted: 1, node: 0 }, Reason::NoHugepages),
            (ProbeError::PollCq { code: -1 }, Reason::Device),
            (ProbeError::SetMempolicy { node: 9, errno: Errno::INVAL }, Reason::Invalid),
            (ProbeError::SetMempolicy { node: 0, errno: Errno::PERM }, Reason::Permission),
        ] {
            assert_eq!(reason(&error), expected, "{error:?}");
        }
    }

    #[test]
    fn what_is_gone_explains_an_error_of_any_call_on_it() {
        let nowhere = Path::new("/nonexistent");
        let sysfs = Sysfs::at(nowhere, "rxe0", 1);
        let around = Surroundings { sysfs: &sysfs, limits: &Limits::at(nowhere), gid: None };
        let gone = diagnose(&ProbeError::PostSend(Errno::IO), &options(), &around);
        assert_eq!((gone.reason, gone.verb.as_str()), (Reason::Gone, "ibv_post_send"));
        assert_eq!(gone.errno_name.as_deref(), Some("EIO"));
        // Not one that speaks for itself.
        let down = ProbeError::PortState { state: "DOWN".to_owned() };
        let down = diagnose(&down, &options(), &around);
        assert_eq!((down.reason, down.errno), (Reason::PortDown, None));
    }

    #[test]
    fn every_reason_has_a_remedy_of_its_own() {
        let all: std::collections::BTreeSet<_> =
            Reason::ALL.iter().map(|reason| remedy(*reason, &options())).collect();
        assert_eq!(all.len(), Reason::ALL.len());
        assert!(all.iter().all(|remedy| remedy.ends_with('.')));
    }
}
