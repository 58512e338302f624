//! Asks the kernel. Every call waits for the kernel, which walks its tables and may ask a device
//! meanwhile: never on a thread that somebody waits for.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, netlink, recv, send,
    socket_with,
};

use super::dump::{Answer, Step};
use super::entries::{self, Entry, attribute};
use super::wire::{WireError, request};
use super::{Command, NldevError, Question};
use crate::host::{Host, has_rdma};
use crate::model::{CqEntry, CtxEntry, DeviceId, DeviceResources, MrEntry, PdEntry, QpEntry};

const NLM_F_REQUEST: u16 = 0x1;
/// NLM_F_ROOT and NLM_F_MATCH.
const NLM_F_DUMP: u16 = 0x300;

/// The kernel fills at most 32 KiB of it with one part of a dump (af_netlink.c), and the more it
/// fills the less often it counts its way through the table.
const ROOM: usize = 64 << 10;

/// How often a dump is begun whose table changes while it is read.
const ATTEMPTS: u32 = 3;

/// What a dump may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Received, all attempts together. One datagram more may come.
    pub bytes: usize,
    /// On the clock. It is looked at between datagrams: what the kernel does for one is not stopped.
    pub time: Duration,
}

impl Default for Budget {
    /// An MR is 56 bytes of soft RoCE's, more of drivers that add to it: 32 MiB are about half a
    /// million, and soft RoCE has no more. In two seconds the lab's emulated guest lists 65,000.
    fn default() -> Self {
        Self { bytes: 32 << 20, time: Duration::from_secs(2) }
    }
}

/// What was read. Also of a whole one: parts of a dump are continued by a count of entries, so that
/// one may be missing if another before it went in between, which the kernel does not tell.
/// [`Netlink::memory_region`] asks for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump<T> {
    pub entries: Vec<T>,
    pub end: End,
    /// Of all attempts.
    pub bytes: usize,
    pub datagrams: u32,
    pub attempts: u32,
    pub took: Duration,
}

/// How a dump ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Whole,
    /// There is more than what was read.
    Partial(Limit),
}

/// What kept a dump from being whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Bytes,
    Time,
    /// The kernel said at each attempt that something was lost or changed; this is the last.
    Changes,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bytes => "too many bytes",
            Self::Time => "too little time",
            Self::Changes => "it changed all the time",
        })
    }
}

/// A way to the kernel's RDMA netlink.
#[derive(Debug)]
pub struct Netlink {
    host: Host,
    /// None after an answer that was not read to its end: the next question opens another.
    socket: Option<OwnedFd>,
    sequence: u32,
    buffer: Vec<u8>,
}

/// One attempt's end.
enum Attempt {
    Whole,
    Again,
    Over(Limit),
}

impl Netlink {
    /// None where the kernel has no RDMA, or its modules are not loaded.
    ///
    /// # Errors
    /// The kernel gives no socket, for another reason.
    pub fn open(host: &Host) -> Result<Option<Self>, NldevError> {
        match connected(host) {
            Ok(socket) => {
                let (host, buffer) = (host.clone(), vec![0; ROOM]);
                Ok(Some(Self { host, socket: Some(socket), sequence: 0, buffer }))
            }
            Err(NldevError::Socket { errno, .. }) if errno == number(Errno::PROTONOSUPPORT) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The devices.
    ///
    /// # Errors
    /// The kernel refuses, or its answer can't be read.
    pub fn devices(&mut self, budget: &Budget) -> Result<Dump<DeviceId>, NldevError> {
        let all = Question { command: Command::Devices, device: None, mrn: None };
        self.dump(all, budget, |message, into| {
            into.push(entries::device(message)?);
            Ok(())
        })
    }

    /// How many resources each device has. The kernel counts them one by one, and keeps others from
    /// making some meanwhile: cheaper than a list by far, but not for nothing.
    ///
    /// # Errors
    /// The kernel refuses, or its answer can't be read.
    pub fn resources(&mut self, budget: &Budget) -> Result<Dump<DeviceResources>, NldevError> {
        let all = Question { command: Command::Resources, device: None, mrn: None };
        self.dump(all, budget, |message, into| {
            into.push(entries::resources(message)?);
            Ok(())
        })
    }

    /// The MRs of a device. Costs the kernel the square of their number.
    ///
    /// # Errors
    /// The device is gone, the kernel refuses, or its answer can't be read.
    pub fn memory_regions(
        &mut self,
        device: u32,
        budget: &Budget,
    ) -> Result<Dump<MrEntry>, NldevError> {
        self.table(Command::MemoryRegions, device, budget)
    }

    /// One MR. Cheap. None if it is not there.
    ///
    /// # Errors
    /// The device is gone, the kernel refuses, or its answer can't be read.
    pub fn memory_region(&mut self, device: u32, mrn: u32) -> Result<Option<MrEntry>, NldevError> {
        let command = Command::MemoryRegions;
        let one = Question { command, device: Some(device), mrn: Some(mrn) };
        let dump = self.dump(one, &Budget::default(), |message, into| {
            into.push(MrEntry::parse(super::wire::attributes(message))?);
            Ok(())
        });
        match dump {
            Ok(Dump { mut entries, end: End::Whole, .. }) => Ok(entries.pop()),
            Ok(_) => Err(NldevError::NoAnswer { question: one }),
            Err(NldevError::Refused { errno, .. }) if errno == number(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.explained(error)),
        }
    }

    /// The PDs of a device.
    ///
    /// # Errors
    /// The device is gone, the kernel refuses, or its answer can't be read.
    pub fn protection_domains(
        &mut self,
        device: u32,
        budget: &Budget,
    ) -> Result<Dump<PdEntry>, NldevError> {
        self.table(Command::ProtectionDomains, device, budget)
    }

    /// The contexts of a device. None where the kernel can't list them.
    ///
    /// # Errors
    /// The device is gone, the kernel refuses, or its answer can't be read.
    pub fn contexts(
        &mut self,
        device: u32,
        budget: &Budget,
    ) -> Result<Option<Dump<CtxEntry>>, NldevError> {
        match self.table(Command::Contexts, device, budget) {
            Ok(dump) => Ok(Some(dump)),
            // With the device there it is the command that it does not know.
            Err(NldevError::Refused { errno, .. }) if errno == number(Errno::INVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The CQs of a device.
    ///
    /// # Errors
    /// The device is gone, the kernel refuses, or its answer can't be read.
    pub fn completion_queues(
        &mut self,
        device: u32,
        budget: &Budget,
    ) -> Result<Dump<CqEntry>, NldevError> {
        self.table(Command::CompletionQueues, device, budget)
    }

    /// The QPs of a device, only where somebody asks for them: each is a command to its firmware.
    ///
    /// # Errors
    /// The device is gone, the kernel refuses, or its answer can't be read.
    pub fn queue_pairs(
        &mut self,
        device: u32,
        budget: &Budget,
    ) -> Result<Dump<QpEntry>, NldevError> {
        self.table(Command::QueuePairs, device, budget)
    }

    /// The datagrams of a whole answer as they come, for tests to read again.
    ///
    /// # Errors
    /// The kernel refuses, or its answer can't be read.
    pub fn datagrams(&mut self, question: Question) -> Result<Vec<Vec<u8>>, NldevError> {
        let mut all = Vec::new();
        let (mut bytes, mut datagrams) = (0, 0);
        let limits = Limits { begun: Instant::now(), budget: Budget::default() };
        let counts = (&mut bytes, &mut datagrams);
        let attempt = self.attempt(question, &limits, counts, |answer, datagram| {
            all.push(datagram.to_vec());
            answer.take(datagram, |_| Ok(()))
        })?;
        match attempt {
            Attempt::Whole => Ok(all),
            Attempt::Again | Attempt::Over(_) => Err(NldevError::NoAnswer { question }),
        }
    }

    fn table<T: Entry>(
        &mut self,
        command: Command,
        device: u32,
        budget: &Budget,
    ) -> Result<Dump<T>, NldevError> {
        let question = Question { command, device: Some(device), mrn: None };
        self.dump(question, budget, entries::entries).map_err(|error| self.explained(error))
    }

    /// EINVAL is what the kernel says of a device that is gone, and of what it does not know.
    fn explained(&mut self, error: NldevError) -> NldevError {
        let NldevError::Refused { question: Question { device: Some(index), .. }, errno } = error
        else {
            return error;
        };
        let budget = Budget::default();
        match self.devices(&budget) {
            Ok(Dump { entries, end: End::Whole, .. })
                if errno == number(Errno::INVAL) && entries.iter().all(|it| it.index != index) =>
            {
                NldevError::NoDevice { index }
            }
            _ => error,
        }
    }

    fn dump<T>(
        &mut self,
        question: Question,
        budget: &Budget,
        mut parse: impl FnMut(&[u8], &mut Vec<T>) -> Result<(), WireError>,
    ) -> Result<Dump<T>, NldevError> {
        let limits = Limits { begun: Instant::now(), budget: *budget };
        let (mut entries, mut bytes, mut datagrams) = (Vec::new(), 0, 0);
        let mut attempts = 0;
        let end = loop {
            attempts += 1;
            entries.clear();
            let counts = (&mut bytes, &mut datagrams);
            let attempt = self.attempt(question, &limits, counts, |answer, datagram| {
                answer.take(datagram, |message| parse(message, &mut entries))
            })?;
            match attempt {
                Attempt::Whole => break End::Whole,
                Attempt::Over(limit) => break End::Partial(limit),
                Attempt::Again if attempts == ATTEMPTS => break End::Partial(Limit::Changes),
                Attempt::Again => {}
            }
        };
        Ok(Dump { entries, end, bytes, datagrams, attempts, took: limits.begun.elapsed() })
    }

    /// Asks once; the socket is only kept if the answer was read to its end.
    fn attempt(
        &mut self,
        question: Question,
        limits: &Limits,
        (bytes, datagrams): (&mut usize, &mut u32),
        mut take: impl FnMut(&mut Answer, &[u8]) -> Result<Step, NldevError>,
    ) -> Result<Attempt, NldevError> {
        let socket = self.socket.take().map_or_else(|| connected(&self.host), Ok)?;
        self.sequence = self.sequence.wrapping_add(1);
        let mut answer = Answer::to(question, self.sequence);
        if limits.left().is_none() {
            return Ok(Attempt::Over(Limit::Time));
        }
        match ask(&socket, question, self.sequence) {
            Err(Errno::NOBUFS) => return Ok(Attempt::Again),
            asked => asked.map_err(|errno| failed("send", errno))?,
        }
        loop {
            let Some(left) = limits.left() else {
                return Ok(Attempt::Over(Limit::Time));
            };
            if *bytes >= limits.budget.bytes {
                return Ok(Attempt::Over(Limit::Bytes));
            }
            let timeout = set_socket_timeout(&socket, Timeout::Recv, Some(left));
            timeout.map_err(|errno| failed("setsockopt", errno))?;
            let met = match recv(&socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC) {
                Ok((_, met)) => met,
                // The time that is left is looked at above.
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(Errno::NOBUFS) => return Ok(Attempt::Again),
                Err(errno) => return Err(failed("recv", errno)),
            };
            *bytes += met;
            *datagrams += 1;
            let room = self.buffer.len();
            let datagram = self.buffer.get(..met).ok_or(NldevError::Cut { met, room })?;
            match take(&mut answer, datagram)? {
                Step::More => {}
                Step::Whole => {
                    self.socket = Some(socket);
                    return Ok(Attempt::Whole);
                }
                Step::Torn => {
                    self.socket = Some(socket);
                    return Ok(Attempt::Again);
                }
            }
        }
    }
}

/// When a dump began, and what it may take from then on.
struct Limits {
    begun: Instant,
    budget: Budget,
}

impl Limits {
    /// None: nothing. A timeout of nothing would be none.
    fn left(&self) -> Option<Duration> {
        let left = self.budget.time.checked_sub(self.begun.elapsed())?;
        (!left.is_zero()).then(|| left.max(Duration::from_millis(1)))
    }
}

/// Connected to the kernel, so that nobody else can send to it.
fn connected(host: &Host) -> Result<OwnedFd, NldevError> {
    // Asked for such a socket, the kernel would load ib_core.
    if !has_rdma(host) {
        return Err(failed("socket", Errno::PROTONOSUPPORT));
    }
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::RDMA),
    )
    .map_err(|errno| failed("socket", errno))?;
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    connect(&socket, &kernel).map_err(|errno| failed("connect", errno))?;
    Ok(socket)
}

fn ask(socket: &OwnedFd, question: Question, sequence: u32) -> Result<(), Errno> {
    let numbers: Vec<_> = question
        .device
        .map(|device| (attribute::DEV_INDEX, device))
        .into_iter()
        .chain(question.mrn.map(|mrn| (attribute::RES_MRN, mrn)))
        .collect();
    let dump = if question.mrn.is_none() { NLM_F_DUMP } else { 0 };
    let bytes = request(question.command.kind(), NLM_F_REQUEST | dump, sequence, &numbers);
    rustix::io::retry_on_intr(|| send(socket, &bytes, SendFlags::empty())).map(|_| ())
}

fn failed(call: &'static str, errno: Errno) -> NldevError {
    NldevError::Socket { call, errno: number(errno) }
}

fn number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}
