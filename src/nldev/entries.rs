//! What nldev says, entry by entry: pure over the bytes of a message. Attributes that are not known
//! are passed over; of two alike the last counts, as in the kernel.

use super::wire::{Attribute, Attributes, WireError, attributes};
use crate::model::{
    CqEntry, Creator, CtxEntry, DeviceId, DeviceResources, MrEntry, Odp, PdEntry, QpEntry,
    ResourceCount,
};

/// Of enum rdma_nldev_attr, which is ABI.
pub mod attribute {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const RES_SUMMARY: u16 = 15;
    pub const RES_SUMMARY_ENTRY: u16 = 16;
    pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub const RES_QP: u16 = 19;
    pub const RES_QP_ENTRY: u16 = 20;
    pub const RES_LQPN: u16 = 21;
    pub const RES_RQPN: u16 = 22;
    pub const RES_TYPE: u16 = 26;
    pub const RES_STATE: u16 = 27;
    pub const RES_PID: u16 = 28;
    pub const RES_KERN_NAME: u16 = 29;
    pub const RES_CQ: u16 = 35;
    pub const RES_CQ_ENTRY: u16 = 36;
    pub const RES_CQE: u16 = 37;
    pub const RES_USECNT: u16 = 38;
    pub const RES_MR: u16 = 40;
    pub const RES_MR_ENTRY: u16 = 41;
    pub const RES_RKEY: u16 = 42;
    pub const RES_LKEY: u16 = 43;
    pub const RES_MRLEN: u16 = 45;
    pub const RES_PD: u16 = 46;
    pub const RES_PD_ENTRY: u16 = 47;
    pub const DRIVER: u16 = 52;
    pub const DRIVER_STRING: u16 = 54;
    pub const RES_PDN: u16 = 60;
    pub const RES_CQN: u16 = 61;
    pub const RES_MRN: u16 = 62;
    pub const RES_CTXN: u16 = 64;
    pub const RES_CTX: u16 = 86;
    pub const RES_CTX_ENTRY: u16 = 87;
    /// Not in 6.12; in 7.3.
    pub const RES_SUMMARY_ENTRY_MAX: u16 = 118;
}

use attribute as a;

/// A resource that is dumped as a table of entries.
pub trait Entry: Sized {
    /// The attributes that a table and an entry of it have.
    const TABLE: u16;
    const ENTRY: u16;

    /// # Errors
    /// An attribute that it needs is missing, or one has another size.
    fn parse(attributes: Attributes<'_>) -> Result<Self, WireError>;
}

/// Each entry of the tables of that kind in a message.
///
/// # Errors
/// The first mistake.
pub fn entries<T: Entry>(message: &[u8], into: &mut Vec<T>) -> Result<(), WireError> {
    for table in attributes(message) {
        let table = table?;
        if table.kind != T::TABLE {
            continue;
        }
        for entry in table.nested() {
            let entry = entry?;
            // Of a context of the kernel's own, nothing but its place is told.
            if entry.kind == T::ENTRY && !entry.payload.is_empty() {
                into.push(T::parse(entry.nested())?);
            }
        }
    }
    Ok(())
}

/// # Errors
/// An attribute that it needs is missing, or one has another size.
pub fn device(message: &[u8]) -> Result<DeviceId, WireError> {
    let (mut index, mut name) = (None, None);
    for it in attributes(message) {
        let it = it?;
        match it.kind {
            a::DEV_INDEX => index = Some(it.u32()?),
            a::DEV_NAME => name = Some(it.text()),
            _ => {}
        }
    }
    Ok(DeviceId {
        index: need(index, "a device", a::DEV_INDEX, "index")?,
        name: need(name, "a device", a::DEV_NAME, "name")?,
    })
}

/// # Errors
/// An attribute that it needs is missing, or one has another size.
pub fn resources(message: &[u8]) -> Result<DeviceResources, WireError> {
    let mut counts = Vec::new();
    for table in attributes(message) {
        let table = table?;
        if table.kind != a::RES_SUMMARY {
            continue;
        }
        for entry in table.nested() {
            let entry = entry?;
            if entry.kind == a::RES_SUMMARY_ENTRY {
                counts.push(count(entry.nested())?);
            }
        }
    }
    Ok(DeviceResources { device: device(message)?, counts })
}

fn count(attributes: Attributes<'_>) -> Result<ResourceCount, WireError> {
    let (mut kind, mut in_use, mut maximum) = (None, None, None);
    for it in attributes {
        let it = it?;
        match it.kind {
            a::RES_SUMMARY_ENTRY_NAME => kind = Some(it.text()),
            a::RES_SUMMARY_ENTRY_CURR => in_use = Some(it.u64()?),
            a::RES_SUMMARY_ENTRY_MAX => maximum = Some(it.u64()?),
            _ => {}
        }
    }
    let of = "a count of resources";
    Ok(ResourceCount {
        kind: need(kind, of, a::RES_SUMMARY_ENTRY_NAME, "name")?,
        in_use: need(in_use, of, a::RES_SUMMARY_ENTRY_CURR, "in use")?,
        maximum,
    })
}

fn need<T>(
    met: Option<T>,
    of: &'static str,
    kind: u16,
    name: &'static str,
) -> Result<T, WireError> {
    met.ok_or(WireError::Missing { of, kind, name })
}

/// What entries of all kinds have.
#[derive(Default)]
struct Common {
    pid: Option<u32>,
    kernel: Option<String>,
    pdn: Option<u32>,
    ctxn: Option<u32>,
    users: Option<u64>,
}

impl Common {
    fn take(&mut self, it: &Attribute<'_>) -> Result<(), WireError> {
        match it.kind {
            a::RES_PID => self.pid = Some(it.u32()?),
            a::RES_KERN_NAME => self.kernel = Some(it.text()),
            a::RES_PDN => self.pdn = Some(it.u32()?),
            a::RES_CTXN => self.ctxn = Some(it.u32()?),
            a::RES_USECNT => self.users = Some(it.u64()?),
            _ => {}
        }
        Ok(())
    }

    fn creator(self) -> Creator {
        match (self.kernel, self.pid) {
            (Some(name), _) => Creator::Kernel(name),
            // Kernels of 4.17's time send 0 for the dead.
            (None, None | Some(0)) => Creator::Gone,
            (None, Some(tid)) => Creator::Thread(tid),
        }
    }
}

impl Entry for MrEntry {
    const TABLE: u16 = a::RES_MR;
    const ENTRY: u16 = a::RES_MR_ENTRY;

    fn parse(attributes: Attributes<'_>) -> Result<Self, WireError> {
        let mut common = Common::default();
        let (mut mrn, mut length, mut rkey, mut lkey, mut odp) = (None, None, None, None, None);
        for it in attributes {
            let it = it?;
            match it.kind {
                a::RES_MRN => mrn = Some(it.u32()?),
                a::RES_MRLEN => length = Some(it.u64()?),
                a::RES_RKEY => rkey = Some(it.u32()?),
                a::RES_LKEY => lkey = Some(it.u32()?),
                a::DRIVER => odp = on_demand(it.nested())?,
                _ => common.take(&it)?,
            }
        }
        Ok(Self {
            mrn: need(mrn, "an MR", a::RES_MRN, "number")?,
            pdn: common.pdn,
            length: length.filter(|length| *length != u64::MAX),
            rkey,
            lkey,
            odp,
            creator: common.creator(),
        })
    }
}

/// A driver's words come in pairs: a name, and then its value. mlx5 tells `odp` so.
fn on_demand(attributes: Attributes<'_>) -> Result<Option<Odp>, WireError> {
    let mut named = false;
    for it in attributes {
        let it = it?;
        if it.kind != a::DRIVER_STRING {
            continue;
        }
        match (named, it.text().as_str()) {
            (true, "explicit") => return Ok(Some(Odp::Explicit)),
            (true, "implicit") => return Ok(Some(Odp::Implicit)),
            (_, text) => named = text == "odp",
        }
    }
    Ok(None)
}

impl Entry for PdEntry {
    const TABLE: u16 = a::RES_PD;
    const ENTRY: u16 = a::RES_PD_ENTRY;

    fn parse(attributes: Attributes<'_>) -> Result<Self, WireError> {
        let mut common = Common::default();
        for it in attributes {
            common.take(&it?)?;
        }
        Ok(Self {
            pdn: need(common.pdn, "a PD", a::RES_PDN, "number")?,
            ctxn: common.ctxn,
            users: need(common.users, "a PD", a::RES_USECNT, "users")?,
            creator: common.creator(),
        })
    }
}

impl Entry for CtxEntry {
    const TABLE: u16 = a::RES_CTX;
    const ENTRY: u16 = a::RES_CTX_ENTRY;

    fn parse(attributes: Attributes<'_>) -> Result<Self, WireError> {
        let mut common = Common::default();
        for it in attributes {
            common.take(&it?)?;
        }
        let ctxn = need(common.ctxn, "a context", a::RES_CTXN, "number")?;
        Ok(Self { ctxn, creator: common.creator() })
    }
}

impl Entry for CqEntry {
    const TABLE: u16 = a::RES_CQ;
    const ENTRY: u16 = a::RES_CQ_ENTRY;

    fn parse(attributes: Attributes<'_>) -> Result<Self, WireError> {
        let mut common = Common::default();
        let (mut cqn, mut capacity) = (None, None);
        for it in attributes {
            let it = it?;
            match it.kind {
                a::RES_CQN => cqn = Some(it.u32()?),
                a::RES_CQE => capacity = Some(it.u32()?),
                _ => common.take(&it)?,
            }
        }
        Ok(Self {
            cqn: need(cqn, "a CQ", a::RES_CQN, "number")?,
            ctxn: common.ctxn,
            capacity: need(capacity, "a CQ", a::RES_CQE, "capacity")?,
            users: need(common.users, "a CQ", a::RES_USECNT, "users")?,
            creator: common.creator(),
        })
    }
}

impl Entry for QpEntry {
    const TABLE: u16 = a::RES_QP;
    const ENTRY: u16 = a::RES_QP_ENTRY;

    fn parse(attributes: Attributes<'_>) -> Result<Self, WireError> {
        let mut common = Common::default();
        let (mut lqpn, mut port, mut kind) = (None, None, None);
        let (mut state, mut remote_qpn) = (None, None);
        for it in attributes {
            let it = it?;
            match it.kind {
                a::RES_LQPN => lqpn = Some(it.u32()?),
                a::PORT_INDEX => port = Some(it.u32()?),
                a::RES_TYPE => kind = Some(it.u8()?),
                a::RES_STATE => state = Some(it.u8()?),
                a::RES_RQPN => remote_qpn = Some(it.u32()?),
                _ => common.take(&it)?,
            }
        }
        Ok(Self {
            lqpn: need(lqpn, "a QP", a::RES_LQPN, "number")?,
            pdn: common.pdn,
            port,
            kind,
            state,
            remote_qpn,
            creator: common.creator(),
        })
    }
}
