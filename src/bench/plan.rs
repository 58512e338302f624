//! Which rows there are to be, and what is left out and why: of facts of the host, pure.

use serde::Serialize;

use super::units::bytes;
use crate::host::{HostMemory, Node, NodePool, PageSize};
use crate::probe::Pages;

/// What a plan is made of.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub base_page_bytes: u64,
    /// Of the whole host, with what caches would give back.
    pub available_bytes: Option<u64>,
    /// The mode of transparent hugepages; None where the kernel has none.
    pub thp: Option<String>,
    pub sizes: Vec<PageSize>,
    pub pools: Vec<NodePool>,
    /// Those with memory; none on a kernel without NUMA.
    pub nodes: Vec<Node>,
    /// None: the device does not tell.
    pub device_node: Option<u32>,
}

impl Facts {
    #[must_use]
    pub fn of(memory: &HostMemory, nodes: Vec<Node>, device_node: Option<u32>) -> Self {
        let enabled = memory.settings.iter().find(|setting| setting.name == "enabled");
        let in_force = enabled.and_then(|it| it.modes.iter().find(|(_, chosen)| *chosen));
        Self {
            base_page_bytes: rustix::param::page_size() as u64,
            available_bytes: memory.info.available_bytes,
            thp: in_force.map(|(mode, _)| mode.clone()),
            sizes: memory.sizes.clone(),
            pools: memory.pools.clone(),
            nodes,
            device_node,
        }
    }
}

/// Where memory lies, seen from the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    Near,
    Far,
}

/// Something to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub pages: Pages,
    /// None on a kernel without NUMA.
    pub node: Option<u32>,
    /// None where the device's node is not known.
    pub place: Option<Place>,
    pub touched: bool,
}

/// Something that is not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub what: String,
    pub why: String,
}

/// Rows in the order of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub rows: Vec<Row>,
    pub left_out: Vec<LeftOut>,
}

/// How pages are called in a table.
#[must_use]
pub fn pages_name(pages: Pages, base_page_bytes: u64) -> String {
    match pages {
        Pages::Base => format!("{}K", base_page_bytes >> 10),
        Pages::Transparent => "THP".to_owned(),
        Pages::Huge2M => "2M".to_owned(),
        Pages::Huge1G => "1G".to_owned(),
    }
}

/// Bytes of a page of a pool.
#[must_use]
pub fn pooled_bytes(pages: Pages) -> Option<u64> {
    match pages {
        Pages::Base | Pages::Transparent => None,
        Pages::Huge2M => Some(2 << 20),
        Pages::Huge1G => Some(1 << 30),
    }
}

/// Chooses the rows for MRs of `size` bytes.
#[must_use]
pub fn choose(facts: &Facts, size: u64) -> Plan {
    let mut plan = Plan::default();
    let nodes = nodes(facts, &mut plan.left_out);
    for pages in Pages::ALL {
        let name = pages_name(pages, facts.base_page_bytes);
        if let Some(why) = absent(facts, pages) {
            plan.left_out.push(LeftOut { what: name, why });
            continue;
        }
        let before = plan.rows.len();
        for &(node, place) in &nodes {
            let what = node.map_or(name.clone(), |node| format!("{name} on node {node}"));
            let short = match pooled_bytes(pages) {
                Some(page) => short_of_pages(facts, page, size, node),
                None => short_of_memory(facts, size, node),
            };
            if let Some(why) = short {
                plan.left_out.push(LeftOut { what, why });
                continue;
            }
            let touched: &[bool] = if pages.pooled() { &[true] } else { &[true, false] };
            plan.rows.extend(touched.iter().map(|&touched| Row { pages, node, place, touched }));
        }
        if pages.pooled() && plan.rows.len() > before {
            plan.left_out.push(LeftOut {
                what: format!("{name} untouched"),
                why: "pages of a pool are filled before they are registered: touching one that \
                      can't be had ends a process"
                    .to_owned(),
            });
        }
    }
    plan
}

/// The near node and one that is far, or both that there are.
fn nodes(facts: &Facts, left_out: &mut Vec<LeftOut>) -> Vec<(Option<u32>, Option<Place>)> {
    let near = facts.device_node.filter(|near| facts.nodes.iter().any(|it| it.number == *near));
    let place =
        |node: &Node| near.map(|near| if node.number == near { Place::Near } else { Place::Far });
    let first = match near {
        Some(near) => facts.nodes.iter().find(|node| node.number == near),
        None => facts.nodes.first(),
    };
    let Some(first) = first else {
        let why = "this kernel knows no NUMA nodes".to_owned();
        left_out.push(LeftOut { what: "far node".to_owned(), why });
        return vec![(None, None)];
    };
    let distance = |node: &Node| first.distances.get(&node.number).copied().unwrap_or_default();
    let others = facts.nodes.iter().filter(|node| node.number != first.number);
    // Of those that are equally far the first.
    let far = others.clone().rev().max_by_key(|node| distance(node));
    let Some(far) = far else {
        let why = "this host has memory on one NUMA node".to_owned();
        left_out.push(LeftOut { what: "far node".to_owned(), why });
        return vec![(Some(first.number), place(first))];
    };
    let more: Vec<_> = others.filter(|node| node.number != far.number).collect();
    if !more.is_empty() {
        let numbers: Vec<_> = more.iter().map(|node| node.number.to_string()).collect();
        let plural = if numbers.len() > 1 { "s" } else { "" };
        left_out.push(LeftOut {
            what: format!("node{plural} {}", numbers.join(", ")),
            why: format!("no other is farther from node {} than node {}", first.number, far.number),
        });
    }
    [first, far].map(|node| (Some(node.number), place(node))).to_vec()
}

/// Why the host has no such pages at all.
fn absent(facts: &Facts, pages: Pages) -> Option<String> {
    if pages == Pages::Transparent {
        return match facts.thp.as_deref() {
            None => Some("this kernel has no transparent hugepages".to_owned()),
            Some("never") => Some(
                "transparent hugepages are off: echo madvise \
                 >/sys/kernel/mm/transparent_hugepage/enabled"
                    .to_owned(),
            ),
            Some(_) => None,
        };
    }
    let page = pooled_bytes(pages)?;
    let known = facts.sizes.iter().any(|size| size.page_bytes == page);
    (!known).then(|| "this machine has no hugepages of that size".to_owned())
}

/// Memory that is pinned can't be taken back: the half of it stays for others.
fn short_of_memory(facts: &Facts, size: u64, node: Option<u32>) -> Option<String> {
    if let Some(available) = facts.available_bytes.filter(|available| available / 2 < size) {
        return Some(format!(
            "{} of memory are available, of which a bench takes at most the half",
            bytes(available)
        ));
    }
    let node = facts.nodes.iter().find(|it| Some(it.number) == node)?;
    let free = node.free_bytes.filter(|free| *free < size)?;
    Some(format!("{} of {} are free there, caches not counted", bytes(free), bytes(size)))
}

/// What is free and nobody else's: reserved pages are promised to somebody, on whatever node.
fn short_of_pages(facts: &Facts, page: u64, size: u64, node: Option<u32>) -> Option<String> {
    let pools = facts.pools.iter().filter(|pool| pool.page_bytes == page);
    let all: u64 = pools.clone().filter_map(|pool| pool.free_bytes).sum();
    let reserved = facts.sizes.iter().find(|size| size.page_bytes == page);
    let reserved = reserved.and_then(|size| size.reserved_bytes).unwrap_or_default();
    let on_node = |pool: &&NodePool| node.is_none_or(|node| pool.numa_node == node);
    let free: u64 = pools.filter(on_node).filter_map(|pool| pool.free_bytes).sum();
    let pages = free.min(all.saturating_sub(reserved)) / page;
    let needed = size.div_ceil(page);
    if pages >= needed {
        return None;
    }
    let kib = page >> 10;
    let place = node
        .map_or("/sys/kernel/mm".to_owned(), |node| format!("/sys/devices/system/node/node{node}"));
    Some(format!(
        "{pages} of {needed} such pages are free there; {place}/hugepages/hugepages-{kib}kB/\
         nr_hugepages makes more"
    ))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
