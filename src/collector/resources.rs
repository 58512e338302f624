//! Collector `resources`: what RDMA netlink lists, and how that agrees with what is counted.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::metrics::{Page, resources};

use super::{CollectError, Collector, Scene, SourceTimes};

pub struct Resources;

impl Collector for Resources {
    fn name(&self) -> &'static str {
        "resources"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.resources
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        if let Some(bytes) = scene.beyond_pins_bytes {
            page.number(&resources::PINNED_DIFFERENCE, &[], bytes as f64)?;
        }
        let listed = scene.resources.map_err(Clone::clone)?;
        let probed = scene.write_probe.map(|probed| probed.limits.as_slice()).unwrap_or_default();
        for device in &listed.devices {
            let name = device.device.name.as_str();
            let probed = probed.iter().find(|limit| limit.device == name);
            for count in &device.counts {
                let labels = [name, count.kind.as_str()];
                page.number(&resources::IN_USE, &labels, count.in_use as f64)?;
                // The older kernels' lists tell none: what the device said when it was opened.
                let of_mrs = probed.filter(|_| count.kind == "mr").map(|limit| limit.max_mr);
                if let Some(most) = count.maximum.or(of_mrs) {
                    page.number(&resources::LIMIT, &labels, most as f64)?;
                }
            }
            if let Some(limit) = probed {
                page.number(&resources::MAX_MR_BYTES, &[name], limit.max_mr_size as f64)?;
            }
        }
        let mut found: BTreeMap<&str, u64> = BTreeMap::new();
        for some in scene.found {
            *found.entry(&some.device).or_default() += some.count;
        }
        for (device, account) in &listed.accounts.devices {
            let device = device.as_str();
            let count = found.get(device).copied().unwrap_or_default();
            page.number(&resources::FOUND, &[device], count as f64)?;
            if let (Some(count), Some(bytes)) = (account.orphaned, account.orphaned_bytes) {
                page.number(&resources::ORPHANED, &[device], count as f64)?;
                page.number(&resources::ORPHANED_BYTES, &[device], bytes as f64)?;
            }
            for (against, bytes) in
                [("nldev", account.beyond_ledger_bytes), ("reg_pages", account.reg_pages_bytes)]
            {
                if let Some(bytes) = bytes {
                    let labels = [device, against];
                    page.number(&resources::LEDGER_DIFFERENCE, &labels, bytes as f64)?;
                }
            }
            page.number(&resources::COMPARED, &[device], account.at)?;
        }
        if listed.accounts.troubles.is_empty() {
            return Ok(());
        }
        Err(CollectError::Failed(listed.accounts.troubles.join("; ")))
    }
}
