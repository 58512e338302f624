//! A completion queue, and two queue pairs of one port that are connected to each other.

use std::ffi::CStr;
use std::net::Ipv6Addr;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use rdma_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_cq, ibv_create_cq, ibv_create_qp, ibv_destroy_cq,
    ibv_destroy_qp, ibv_gid, ibv_global_route, ibv_modify_qp, ibv_poll_cq, ibv_post_send, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_status, ibv_wc_status_str, ibv_wr_opcode,
};

use super::{Context, Domain, Port, Region, done};
use crate::failure::ProbeError;
use crate::guard;
use crate::memory::last_errno;

/// Completions that are taken at once.
const AT_ONCE: usize = 16;

/// Of an acknowledgement: 4.096 µs times 2 to the power of it, 67 ms.
const ACK_TIMEOUT: u8 = 14;
/// The most that there are.
const RETRIES: u8 = 7;
const HOPS: u8 = 64;
const FIRST_PSN: u32 = 0;

/// A completion queue.
#[derive(Debug)]
pub struct Completions {
    raw: NonNull<ibv_cq>,
    _context: Rc<Context>,
}

/// A write that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    pub status: String,
    pub vendor: u32,
}

impl Completions {
    /// Room for so many at once.
    pub fn new(context: &Rc<Context>, entries: u32) -> Result<Rc<Self>, ProbeError> {
        guard::at("ibv_create_cq");
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: the context is open; neither a cookie nor a channel is given.
        let raw = unsafe { ibv_create_cq(context.raw(), entries, null_mut(), null_mut(), 0) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Rc::new(Self { raw, _context: Rc::clone(context) })),
            None => Err(ProbeError::CreateCq(last_errno())),
        }
    }

    /// How many writes are complete that were not taken yet, at most some at once. Fails with the
    /// first that failed; `done` before are told with it.
    pub fn take(&self, done: u64) -> Result<u64, ProbeError> {
        // SAFETY: all of its fields are numbers, for which zero is one.
        let mut taken: [ibv_wc; AT_ONCE] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue lives, and so many entries are written at most.
        let code = unsafe { ibv_poll_cq(self.raw.as_ptr(), AT_ONCE as i32, taken.as_mut_ptr()) };
        let count = usize::try_from(code).map_err(|_| ProbeError::PollCq { code })?;
        for (good, completion) in taken.iter().take(count).enumerate() {
            if completion.status != ibv_wc_status::IBV_WC_SUCCESS {
                return Err(failed(completion).after(done + good as u64));
            }
        }
        Ok(count as u64)
    }
}

fn failed(completion: &ibv_wc) -> Completion {
    // SAFETY: the library has a text for any number, which ends with NUL and is never freed.
    let text = unsafe { CStr::from_ptr(ibv_wc_status_str(completion.status)) };
    Completion { status: text.to_string_lossy().into_owned(), vendor: completion.vendor_err }
}

impl Completion {
    fn after(self, done: u64) -> ProbeError {
        ProbeError::Completion { status: self.status, vendor: self.vendor, done }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that had it held it, so are gone.
        let _ = unsafe { ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

/// From where to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    pub number: u8,
    pub port: Port,
    /// Index and address; None where the port is addressed by its LID alone.
    pub gid: Option<(u8, Ipv6Addr)>,
}

/// Bytes of a region, from an offset to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub from: usize,
    pub to: usize,
    pub bytes: usize,
}

/// A queue pair of a reliable connection.
#[derive(Debug)]
pub struct Queue {
    raw: NonNull<ibv_qp>,
    _domain: Rc<Domain>,
    _completions: Rc<Completions>,
}

impl Queue {
    fn new(
        domain: &Rc<Domain>,
        completions: &Rc<Completions>,
        depth: u32,
    ) -> Result<Self, ProbeError> {
        guard::at("ibv_create_qp");
        // SAFETY: all of its fields are numbers and pointers, for which zero is one.
        let mut wanted: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        wanted.send_cq = completions.raw.as_ptr();
        wanted.recv_cq = completions.raw.as_ptr();
        wanted.cap.max_send_wr = depth;
        // Nothing is received; some drivers want room for one all the same.
        wanted.cap.max_recv_wr = 1;
        wanted.cap.max_send_sge = 1;
        wanted.cap.max_recv_sge = 1;
        wanted.qp_type = ibv_qp_type::IBV_QPT_RC;
        wanted.sq_sig_all = 0;
        // SAFETY: the domain and the queue live, and are held as long as the pair.
        match NonNull::new(unsafe { ibv_create_qp(domain.raw(), &raw mut wanted) }) {
            Some(raw) => {
                Ok(Self { raw, _domain: Rc::clone(domain), _completions: Rc::clone(completions) })
            }
            None => Err(ProbeError::CreateQp(last_errno())),
        }
    }

    fn number(&self) -> u32 {
        // SAFETY: it lives; its number never changes.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Connects it to that number, on the same port.
    fn connect(&self, path: &Path, to: u32) -> Result<(), ProbeError> {
        use ibv_qp_attr_mask as mask;
        let mut wanted = attributes(ibv_qp_state::IBV_QPS_INIT);
        wanted.port_num = path.number;
        wanted.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(wanted, what, "INIT")?;

        let mut wanted = attributes(ibv_qp_state::IBV_QPS_RTR);
        wanted.path_mtu = path.port.mtu;
        wanted.dest_qp_num = to;
        wanted.rq_psn = FIRST_PSN;
        wanted.max_dest_rd_atomic = 1;
        wanted.min_rnr_timer = 12;
        wanted.ah_attr = address(path);
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(wanted, what, "RTR")?;

        let mut wanted = attributes(ibv_qp_state::IBV_QPS_RTS);
        wanted.sq_psn = FIRST_PSN;
        wanted.timeout = ACK_TIMEOUT;
        wanted.retry_cnt = RETRIES;
        wanted.rnr_retry = RETRIES;
        wanted.max_rd_atomic = 1;
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(wanted, what, "RTS")
    }

    fn modify(
        &self,
        mut wanted: ibv_qp_attr,
        what: ibv_qp_attr_mask,
        to: &'static str,
    ) -> Result<(), ProbeError> {
        guard::at("ibv_modify_qp");
        // SAFETY: the pair lives, and the attributes are read during the call.
        let code = unsafe { ibv_modify_qp(self.raw.as_ptr(), &raw mut wanted, what.0 as i32) };
        done(code).map_err(|errno| ProbeError::ModifyQp { to, errno })
    }

    /// Begins a write within the region.
    fn post(&self, region: &Region<'_>, span: Span) -> Result<(), ProbeError> {
        let start = region.buffer().address();
        let mut from = ibv_sge {
            addr: (start + span.from) as u64,
            length: span.bytes as u32,
            lkey: region.lkey,
        };
        // SAFETY: all of its fields are numbers and pointers, for which zero is one.
        let mut write: ibv_send_wr = unsafe { std::mem::zeroed() };
        write.sg_list = &raw mut from;
        write.num_sge = 1;
        write.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        write.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        write.wr.rdma.remote_addr = (start + span.to) as u64;
        write.wr.rdma.rkey = region.rkey;
        let mut bad = null_mut();
        // SAFETY: the pair lives; the request is copied during the call. The device refuses what is
        // not in the region.
        let code = unsafe { ibv_post_send(self.raw.as_ptr(), &raw mut write, &raw mut bad) };
        done(code).map_err(ProbeError::PostSend)
    }
}

fn attributes(state: ibv_qp_state::Type) -> ibv_qp_attr {
    // SAFETY: all of its fields are numbers, for which zero is one.
    let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

/// The port itself.
fn address(path: &Path) -> ibv_ah_attr {
    let (sgid_index, gid) = path.gid.unwrap_or((0, Ipv6Addr::UNSPECIFIED));
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: gid.octets() },
            flow_label: 0,
            sgid_index,
            hop_limit: HOPS,
            traffic_class: 0,
        },
        dlid: path.port.lid,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(path.gid.is_some()),
        port_num: path.number,
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: it is this value's own.
        let _ = unsafe { ibv_destroy_qp(self.raw.as_ptr()) };
    }
}

/// Two queue pairs, one of which writes, and what is complete.
#[derive(Debug)]
pub struct Pair {
    writer: Queue,
    _target: Queue,
    completions: Rc<Completions>,
}

impl Pair {
    pub fn connect(domain: &Rc<Domain>, depth: u32, path: &Path) -> Result<Self, ProbeError> {
        let completions = Completions::new(domain.context(), depth)?;
        let writer = Queue::new(domain, &completions, depth)?;
        let target = Queue::new(domain, &completions, 1)?;
        target.connect(path, writer.number())?;
        writer.connect(path, target.number())?;
        Ok(Self { writer, _target: target, completions })
    }

    /// Begins a write; at most as many as the depth may be outstanding.
    pub fn post(&self, region: &Region<'_>, span: Span) -> Result<(), ProbeError> {
        self.writer.post(region, span)
    }

    /// How many more are complete, where `done` were.
    pub fn take(&self, done: u64) -> Result<u64, ProbeError> {
        self.completions.take(done)
    }
}
