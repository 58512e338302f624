//! Collector `devices`: the RDMA devices that there are.

use std::time::Duration;

use crate::metrics::{Page, devices};

use super::{CollectError, Collector, Scene, SourceTimes};

pub struct DeviceInfo;

impl Collector for DeviceInfo {
    fn name(&self) -> &'static str {
        "devices"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.devices
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let found = scene.devices.map_err(Clone::clone)?;
        for device in &found.known {
            let labels = [
                &device.name,
                &device.driver,
                &device.fw,
                &device.link_layer,
                &device.netdev,
                &device.numa_node,
                &device.pci,
            ];
            page.number(&devices::INFO, &labels.map(String::as_str), 1.0)?;
        }
        if found.names.is_empty() {
            return Err(CollectError::NoData("this host has no RDMA device".into()));
        }
        if found.silent.is_empty() {
            return Ok(());
        }
        Err(CollectError::Stale(format!(
            "no answer from {} when its attributes are read (its driver may be stuck: see dmesg)",
            found.silent.join(", ")
        )))
    }
}
