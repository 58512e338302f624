//! Collector `hugepages`: what the host's memory is made of, and what of it is free.

use std::io::ErrorKind;
use std::time::Duration;

use crate::host::{CgroupPages, HostError, MemInfo, NodePool, PageSize, VmEvents};
use crate::metrics::{Metric, Page, PageError, hugepages};

use super::{CollectError, Collector, Scene, SourceTimes};

pub struct Hugepages;

impl Collector for Hugepages {
    fn name(&self) -> &'static str {
        "hugepages"
    }

    fn reading(&self, took: &SourceTimes) -> Duration {
        took.memory
    }

    fn collect(&mut self, scene: &Scene<'_>, page: &mut Page) -> Result<(), CollectError> {
        let memory = scene.memory.map_err(Clone::clone)?;
        for pool in &memory.pools {
            write_pool(pool, page)?;
        }
        for size in &memory.sizes {
            write_size(size, page)?;
        }
        for cgroup in &memory.cgroups {
            write_cgroup(cgroup, page)?;
        }
        write(page, &hugepages::CGROUPS_OMITTED, &[], memory.cgroups_omitted)?;
        for setting in &memory.settings {
            for (mode, in_force) in &setting.modes {
                let value = f64::from(u8::from(*in_force));
                page.number(&hugepages::THP_MODE, &[setting.name, mode], value)?;
            }
        }
        write_events(&memory.events, page)?;
        write_info(&memory.info, page)?;
        trouble(&memory.troubles).map_or(Ok(()), Err)
    }
}

/// Nothing where there is no figure: absent is not zero.
fn write(
    page: &mut Page,
    metric: &'static Metric,
    labels: &[&str],
    figure: Option<u64>,
) -> Result<(), PageError> {
    figure.map_or(Ok(()), |figure| page.number(metric, labels, figure as f64))
}

fn write_pool(pool: &NodePool, page: &mut Page) -> Result<(), PageError> {
    let labels = &[pool.page_bytes.to_string(), pool.numa_node.to_string()];
    let labels = &labels.each_ref().map(String::as_str);
    write(page, &hugepages::POOL_BYTES, labels, pool.pool_bytes)?;
    write(page, &hugepages::FREE_BYTES, labels, pool.free_bytes)?;
    write(page, &hugepages::SURPLUS_BYTES, labels, pool.surplus_bytes)
}

fn write_size(size: &PageSize, page: &mut Page) -> Result<(), PageError> {
    let labels = &[size.page_bytes.to_string()];
    let labels = &labels.each_ref().map(String::as_str);
    write(page, &hugepages::RESERVED_BYTES, labels, size.reserved_bytes)?;
    write(page, &hugepages::OVERCOMMIT_LIMIT_BYTES, labels, size.overcommit_limit_bytes)
}

fn write_cgroup(it: &CgroupPages, page: &mut Page) -> Result<(), PageError> {
    let size = it.page_bytes.to_string();
    let labels = &[it.cgroup.as_str(), size.as_str()];
    write(page, &hugepages::CGROUP_USAGE_BYTES, labels, it.usage_bytes)?;
    write(page, &hugepages::CGROUP_LIMIT_BYTES, labels, it.limit_bytes)?;
    write(page, &hugepages::CGROUP_RESERVED_BYTES, labels, it.reserved_bytes)?;
    write(page, &hugepages::CGROUP_RESERVED_LIMIT_BYTES, labels, it.reserved_limit_bytes)?;
    write(page, &hugepages::CGROUP_FAILURES, labels, it.failures)
}

fn write_events(events: &VmEvents, page: &mut Page) -> Result<(), PageError> {
    let allocations = &hugepages::ALLOCATIONS;
    write(page, allocations, &["success"], events.hugepage_allocations)?;
    write(page, allocations, &["failure"], events.hugepage_allocation_failures)?;
    write(page, &hugepages::THP_EVENTS, &["fault"], events.thp_faults)?;
    write(page, &hugepages::THP_EVENTS, &["fallback"], events.thp_fallbacks)?;
    write(page, &hugepages::THP_EVENTS, &["collapse"], events.thp_collapses)?;
    write(page, &hugepages::THP_EVENTS, &["split"], events.thp_splits)?;
    write(page, &hugepages::MEMORY_PINS, &["acquired"], events.pins_acquired)?;
    write(page, &hugepages::MEMORY_PINS, &["released"], events.pins_released)?;
    write(page, &hugepages::OOM_KILLS, &[], events.oom_kills)
}

fn write_info(info: &MemInfo, page: &mut Page) -> Result<(), PageError> {
    for (metric, figure) in [
        (&hugepages::DEFAULT_PAGE_SIZE_BYTES, info.default_page_size_bytes),
        (&hugepages::MEMORY_TOTAL_BYTES, info.total_bytes),
        (&hugepages::MEMORY_AVAILABLE_BYTES, info.available_bytes),
        (&hugepages::MEMORY_HUGETLB_BYTES, info.hugetlb_bytes),
        (&hugepages::MEMORY_ANON_HUGEPAGES_BYTES, info.anon_hugepages_bytes),
        (&hugepages::MEMORY_SHMEM_HUGEPAGES_BYTES, info.shmem_hugepages_bytes),
        (&hugepages::MEMORY_FILE_HUGEPAGES_BYTES, info.file_hugepages_bytes),
        (&hugepages::MEMORY_MLOCKED_BYTES, info.mlocked_bytes),
        (&hugepages::MEMORY_UNEVICTABLE_BYTES, info.unevictable_bytes),
        (&hugepages::MEMORY_PAGE_TABLES_BYTES, info.page_tables_bytes),
        (&hugepages::MEMORY_SECONDARY_PAGE_TABLES_BYTES, info.secondary_page_tables_bytes),
    ] {
        write(page, metric, &[], figure)?;
    }
    Ok(())
}

/// The first of them, and how many more there are.
fn trouble(troubles: &[HostError]) -> Option<CollectError> {
    let first = troubles.first()?;
    let others = troubles.len() - 1;
    let more = if others > 0 { format!(" (and {others} more such)") } else { String::new() };
    let denied =
        |HostError::Read { source, .. }: &HostError| source.kind() == ErrorKind::PermissionDenied;
    Some(if troubles.iter().all(denied) {
        CollectError::Denied(format!("{first}{more}; run mrscope as root"))
    } else {
        CollectError::Failed(format!("{first}{more}"))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    fn wrong(path: &str, kind: ErrorKind) -> HostError {
        HostError::Read { path: path.into(), source: Error::new(kind, "why") }
    }

    #[test]
    fn troubles_are_denied_only_if_all_of_them_are() {
        let refused = || wrong("/a", ErrorKind::PermissionDenied);
        let strange = || wrong("/b", ErrorKind::InvalidData);
        assert_eq!(trouble(&[]), None);
        let denied = CollectError::Denied("/a: why; run mrscope as root".into());
        assert_eq!(trouble(&[refused()]), Some(denied));
        let both = CollectError::Failed("/a: why (and 1 more such)".into());
        assert_eq!(trouble(&[refused(), strange()]), Some(both));
        assert_eq!(trouble(&[strange()]), Some(CollectError::Failed("/b: why".into())));
    }
}
