//! The running kernel as a source of resources, which other sources can stand in for.

use std::time::Duration;

use super::socket::{Budget, Dump, Netlink};
use super::{Command, End, NldevError, Question};
use crate::host::Host;
use crate::model::{CtxEntry, DeviceResources, MrEntry, PdEntry};

/// Who lists resources: the kernel, or a recording.
pub trait ListsResources: Send {
    /// How many resources each device has. None where the kernel has no RDMA now.
    ///
    /// # Errors
    /// The kernel refuses, or its answer can't be read.
    fn resources(&mut self) -> Result<Option<Vec<DeviceResources>>, NldevError>;

    /// As [`Netlink::memory_regions`].
    ///
    /// # Errors
    /// See there.
    fn memory_regions(&mut self, device: u32) -> Result<Dump<MrEntry>, NldevError>;

    /// As [`Netlink::memory_region`].
    ///
    /// # Errors
    /// See there.
    fn memory_region(&mut self, device: u32, mrn: u32) -> Result<Option<MrEntry>, NldevError>;

    /// As [`Netlink::protection_domains`].
    ///
    /// # Errors
    /// See there.
    fn protection_domains(&mut self, device: u32) -> Result<Dump<PdEntry>, NldevError>;

    /// As [`Netlink::contexts`].
    ///
    /// # Errors
    /// See there.
    fn contexts(&mut self, device: u32) -> Result<Option<Dump<CtxEntry>>, NldevError>;

    /// Nothing is asked for a while: what the kernel's modules are held by is given back.
    fn rest(&mut self);
}

/// For lists of MRs, PDs and contexts: a million MRs, which a machine's own CPU lists in a second or
/// two, and an emulated one 200,000 of.
const BUDGET: Budget = Budget { bytes: 64 << 20, time: Duration::from_secs(10) };

/// The running kernel. It is asked for a socket where it has RDMA.
#[derive(Debug)]
pub struct LiveResources {
    host: Host,
    netlink: Option<Netlink>,
}

impl LiveResources {
    #[must_use]
    pub fn of(host: Host) -> Self {
        Self { host, netlink: None }
    }

    fn netlink(&mut self) -> Result<Option<&mut Netlink>, NldevError> {
        if self.netlink.is_none() {
            self.netlink = Netlink::open(&self.host)?;
        }
        Ok(self.netlink.as_mut())
    }

    fn ask<T>(
        &mut self,
        device: u32,
        ask: impl FnOnce(&mut Netlink) -> Result<T, NldevError>,
    ) -> Result<T, NldevError> {
        let gone = NldevError::NoDevice { index: device };
        self.netlink()?.map_or(Err(gone), ask)
    }
}

impl ListsResources for LiveResources {
    fn resources(&mut self) -> Result<Option<Vec<DeviceResources>>, NldevError> {
        let Some(netlink) = self.netlink()? else { return Ok(None) };
        let list = netlink.resources(&Budget::default())?;
        if list.end != End::Whole {
            let question = Question { command: Command::Resources, device: None, mrn: None };
            return Err(NldevError::NoAnswer { question });
        }
        Ok(Some(list.entries))
    }

    fn memory_regions(&mut self, device: u32) -> Result<Dump<MrEntry>, NldevError> {
        self.ask(device, |netlink| netlink.memory_regions(device, &BUDGET))
    }

    fn memory_region(&mut self, device: u32, mrn: u32) -> Result<Option<MrEntry>, NldevError> {
        self.ask(device, |netlink| netlink.memory_region(device, mrn))
    }

    fn protection_domains(&mut self, device: u32) -> Result<Dump<PdEntry>, NldevError> {
        self.ask(device, |netlink| netlink.protection_domains(device, &BUDGET))
    }

    fn contexts(&mut self, device: u32) -> Result<Option<Dump<CtxEntry>>, NldevError> {
        self.ask(device, |netlink| netlink.contexts(device, &BUDGET))
    }

    fn rest(&mut self) {
        // A socket of RDMA netlink keeps ib_core from being unloaded.
        self.netlink = None;
    }
}
