//! RDMA netlink as a test has it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mrscope::model::{
    Creator, CtxEntry, DeviceId, DeviceResources, MrEntry, PdEntry, ResourceCount,
};
use mrscope::nldev::{Command, Dump, End, Limit, ListsResources, NldevError, Question};

/// What the kernel lists, by the device's index, and what it was asked.
#[derive(Default)]
pub struct Kernel {
    pub devices: Vec<DeviceResources>,
    pub mrs: BTreeMap<u32, Vec<MrEntry>>,
    pub pds: Vec<PdEntry>,
    pub asked: Vec<u32>,
    /// It refuses to count.
    pub fails: bool,
    /// Lists of MRs end before their end.
    pub cut: bool,
}

/// It, shared with the test.
#[derive(Clone, Default)]
pub struct Listing(pub Arc<Mutex<Kernel>>);

pub fn device(index: u32, name: &str) -> DeviceResources {
    let count = |kind: &str, in_use, maximum| ResourceCount { kind: kind.into(), in_use, maximum };
    DeviceResources {
        device: DeviceId { index, name: name.into() },
        counts: vec![count("pd", 3, Some(8_388_608)), count("mr", 5, None)],
    }
}

pub fn mr(mrn: u32, length: u64, creator: Creator) -> MrEntry {
    let length = Some(length);
    MrEntry { mrn, pdn: Some(1), length, rkey: None, lkey: None, odp: None, creator }
}

fn whole<T>(entries: Vec<T>) -> Dump<T> {
    Dump { entries, end: End::Whole, bytes: 0, datagrams: 2, attempts: 1, took: Duration::ZERO }
}

impl Listing {
    /// One device with two MRs whose makers have ended.
    pub fn of_ended() -> Self {
        let listing = Self::default();
        let mut kernel = listing.0.lock().unwrap();
        kernel.devices = vec![device(3, "mlx5_0")];
        kernel.mrs.insert(3, vec![mr(7, 4097, Creator::Gone), mr(9, 1 << 20, Creator::Gone)]);
        drop(kernel);
        listing
    }
}

impl ListsResources for Listing {
    fn resources(&mut self) -> Result<Option<Vec<DeviceResources>>, NldevError> {
        let kernel = self.0.lock().unwrap();
        let question = Question { command: Command::Resources, device: None, mrn: None };
        let counted = Some(kernel.devices.clone());
        if kernel.fails { Err(NldevError::NoAnswer { question }) } else { Ok(counted) }
    }

    fn memory_regions(&mut self, device: u32) -> Result<Dump<MrEntry>, NldevError> {
        let mut kernel = self.0.lock().unwrap();
        kernel.asked.push(device);
        let list = whole(kernel.mrs.get(&device).cloned().unwrap_or_default());
        let end = if kernel.cut { End::Partial(Limit::Time) } else { End::Whole };
        Ok(Dump { end, ..list })
    }

    fn memory_region(&mut self, device: u32, mrn: u32) -> Result<Option<MrEntry>, NldevError> {
        let list = self.memory_regions(device)?;
        Ok(list.entries.into_iter().find(|mr| mr.mrn == mrn))
    }

    fn protection_domains(&mut self, device: u32) -> Result<Dump<PdEntry>, NldevError> {
        let mut kernel = self.0.lock().unwrap();
        kernel.asked.push(device);
        Ok(whole(kernel.pds.clone()))
    }

    fn contexts(&mut self, device: u32) -> Result<Option<Dump<CtxEntry>>, NldevError> {
        self.0.lock().unwrap().asked.push(device);
        Ok(None)
    }

    fn rest(&mut self) {}
}
