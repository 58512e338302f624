//! On which pages and NUMA nodes MRs lie: whether this kernel lets programs walk pinned pages, and
//! what the walk of bpf/placement.h has written.

use crate::model::{EbpfOptions, Place, Placed, Placement};

use super::btf::{Btf, Types};
use super::facts::KernelFacts;
use super::records;

/// The map with a row for each MR.
pub const ROWS: &str = "placements";

/// What bpf/placement.h takes for granted.
const BASE_PAGE_BYTES: u64 = 4096;
const STRUCT_PAGE_BYTES: u32 = 64;
const SCATTER_ENTRY: [u32; 3] = [0, 8, 12];

/// Bytes of the pages of a class.
const CLASS_BYTES: [u64; records::PAGE_CLASSES as usize] = [BASE_PAGE_BYTES, 2 << 20, 1 << 30];

/// Modules that have ib_umem.
const MODULES: [&str; 2] = ["ib_core", "ib_uverbs"];

/// How this kernel describes its pages, by its BTF; None for what that does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageFacts {
    pub base_page_bytes: u64,
    pub struct_page_bytes: Option<u32>,
    /// Offsets of the flags and of the word that tells a tail from other pages.
    pub flags: Option<u32>,
    pub head: Option<u32>,
    /// The struct pages of all memory are one array.
    pub one_array: bool,
    pub order: Option<OrderIn>,
    /// Bits of a page's flags that hold its node.
    pub node_bits: Option<u32>,
    /// Offsets of page, offset and length in an entry of a scatter list, and its bytes.
    pub scatter_entry: [Option<u32>; 3],
    pub scatter_bytes: Option<u32>,
    /// Rows of a hash can be made in any program (6.1: fba1a1c6c912): none need be there before.
    pub rows_on_demand: bool,
}

/// Where the order of a folio is: in its second struct page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderIn {
    Byte17,
    Flags,
}

/// Why pages are not walked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotWalked {
    /// Nobody asked for it.
    Off,
    Because(&'static str),
}

impl PageFacts {
    #[must_use]
    pub fn read(types: &Types) -> Self {
        let base_page_bytes = rustix::param::page_size() as u64;
        types.kernel().map_or_else(
            || Self { base_page_bytes, ..Self::default() },
            |types| Self::of(types, base_page_bytes),
        )
    }

    fn of(types: &Btf, base_page_bytes: u64) -> Self {
        let at = |record, field| types.field_offset(record, field);
        let order = if at("page", "compound_order") == Some(17)
            || at("folio", "_folio_order") == Some(81)
        {
            Some(OrderIn::Byte17)
        } else {
            // 6.6 and later: ebc1baf5c9b4.
            at("folio", "_flags_1").filter(|at| *at == 64).map(|_| OrderIn::Flags)
        };
        Self {
            base_page_bytes,
            struct_page_bytes: types.bytes("page"),
            flags: at("page", "flags"),
            head: at("page", "compound_head").or_else(|| at("page", "compound_info")),
            // It is there with CONFIG_SPARSEMEM_VMEMMAP alone.
            one_array: at("mem_section_usage", "subsection_map").is_some(),
            order,
            node_bits: node_bits(types),
            scatter_entry: ["page_link", "offset", "length"].map(|field| at("scatterlist", field)),
            scatter_bytes: types.bytes("scatterlist"),
            rows_on_demand: at("bpf_htab", "ma").is_some(),
        }
    }
}

/// NODES_SHIFT is in no type; a list of zones has an entry for each zone of each node, and one more.
fn node_bits(types: &Btf) -> Option<u32> {
    let entries = types.bytes("zonelist")?.checked_div(types.bytes("zoneref")?)?;
    let nodes =
        entries.checked_sub(1)?.checked_div(types.enum_value("zone_type", "__MAX_NR_ZONES")?)?;
    nodes.is_power_of_two().then(|| nodes.trailing_zeros())
}

/// How the walk is to go.
///
/// # Errors
/// It is switched off, or this kernel's pages are none that it knows.
pub fn choose(
    facts: &KernelFacts,
    options: &EbpfOptions,
) -> Result<records::placement_choice, NotWalked> {
    if !options.placement || !options.watched.mr {
        return Err(NotWalked::Off);
    }
    let because = |why| Err(NotWalked::Because(why));
    let pages = &facts.pages;
    if !facts.vmlinux_btf {
        return because("the kernel has no BTF");
    }
    if pages.base_page_bytes != BASE_PAGE_BYTES {
        return because("base pages are not of 4 KiB");
    }
    if pages.struct_page_bytes != Some(STRUCT_PAGE_BYTES) {
        return because("struct page is not of 64 bytes");
    }
    if !pages.one_array {
        return because("the kernel is built without CONFIG_SPARSEMEM_VMEMMAP");
    }
    if (pages.flags, pages.head) != (Some(0), Some(8)) {
        return because("struct page begins otherwise than it is known to");
    }
    if pages.scatter_entry != SCATTER_ENTRY.map(Some) {
        return because("struct scatterlist is not as it is known");
    }
    let (Some(order), Some(node_bits), Some(scatter_bytes)) =
        (pages.order, pages.node_bits, pages.scatter_bytes)
    else {
        return because("the kernel's BTF does not tell sizes and nodes of pages");
    };
    let offsets = facts.offsets.umem_list.and(facts.offsets.umem_entries);
    let may_come = || facts.tells_modules && !MODULES.iter().all(|name| facts.modules.has(name));
    if offsets.is_none() && !may_come() {
        return because("the RDMA modules have no BTF");
    }
    Ok(records::placement_choice {
        walks: 1,
        scatter_bytes,
        order_in_flags: (order == OrderIn::Flags).into(),
        // The topmost, as sections have none beside one array.
        node_shift: if node_bits == 0 { 0 } else { u64::BITS - node_bits },
        node_mask: (1 << node_bits) - 1,
    })
}

/// Whether programs that walk at all know where lists are.
#[must_use]
pub fn is_walked(settings: &records::settings) -> bool {
    settings.umem_list_offset != records::OFFSET_UNKNOWN
        && settings.umem_entries_offset != records::OFFSET_UNKNOWN
}

/// What a row says.
#[must_use]
pub fn placed(row: &records::placement) -> Placed {
    let mut placement = Placement::default();
    let nodes = row.pages.chunks_exact(CLASS_BYTES.len()).zip(0..);
    for (classes, node) in nodes {
        for (pages, bytes) in classes.iter().zip(CLASS_BYTES) {
            let place = Place { page_bytes: Some(bytes), node: Some(node) };
            placement.add(place, u64::from(*pages) * BASE_PAGE_BYTES);
        }
    }
    placement.add(Place::default(), u64::from(row.unknown_pages) * BASE_PAGE_BYTES);
    Placed { born_ns: row.born_ns, scatter_entries: Some(row.entries.into()), placement }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Modules;
    use crate::model::Watched;

    /// Debian's 7.3, with its modules loaded.
    fn capable() -> KernelFacts {
        let mut facts = KernelFacts {
            vmlinux_btf: true,
            tells_modules: true,
            modules: Modules::parse("ib_uverbs 1 0 - Live 0\nib_core 1 0 - Live 0\n"),
            pages: PageFacts {
                base_page_bytes: 4096,
                struct_page_bytes: Some(64),
                flags: Some(0),
                head: Some(8),
                one_array: true,
                order: Some(OrderIn::Flags),
                node_bits: Some(10),
                scatter_entry: [Some(0), Some(8), Some(12)],
                scatter_bytes: Some(32),
                rows_on_demand: true,
            },
            ..KernelFacts::default()
        };
        facts.offsets.umem_list = Some(64);
        facts.offsets.umem_entries = Some(76);
        facts
    }

    fn with(change: impl FnOnce(&mut KernelFacts)) -> Result<records::placement_choice, NotWalked> {
        let mut facts = capable();
        change(&mut facts);
        choose(&facts, &EbpfOptions::default())
    }

    #[test]
    fn a_capable_kernel_s_pages_are_walked_as_it_describes_them() {
        let choice = with(|_| ()).unwrap();
        assert_eq!((choice.walks, choice.scatter_bytes, choice.order_in_flags), (1, 32, 1));
        assert_eq!((choice.node_shift, choice.node_mask), (54, 1023));
        let older = with(|facts| facts.pages.order = Some(OrderIn::Byte17)).unwrap();
        assert_eq!(older.order_in_flags, 0);
        let one_node = with(|facts| facts.pages.node_bits = Some(0)).unwrap();
        assert_eq!((one_node.node_shift, one_node.node_mask), (0, 0));
    }

    #[test]
    fn nothing_is_walked_that_is_switched_off() {
        let of = |options| choose(&capable(), &options).unwrap_err();
        let default = EbpfOptions::default;
        assert_eq!(of(EbpfOptions { placement: false, ..default() }), NotWalked::Off);
        let watched = Watched { mr: false, ..Watched::default() };
        assert_eq!(of(EbpfOptions { watched, ..default() }), NotWalked::Off);
    }

    #[test]
    fn each_thing_that_a_kernel_lacks_is_a_reason_of_its_own() {
        type Removed = (fn(&mut KernelFacts), &'static str);
        let removed: [Removed; 11] = [
            (|facts| facts.vmlinux_btf = false, "no BTF"),
            (|facts| facts.pages.base_page_bytes = 65_536, "4 KiB"),
            (|facts| facts.pages.struct_page_bytes = Some(56), "64 bytes"),
            (|facts| facts.pages.one_array = false, "VMEMMAP"),
            (|facts| facts.pages.flags = None, "begins"),
            (|facts| facts.pages.head = Some(16), "begins"),
            (|facts| facts.pages.scatter_entry[2] = Some(16), "scatterlist"),
            (|facts| facts.pages.order = None, "sizes and nodes"),
            (|facts| facts.pages.node_bits = None, "sizes and nodes"),
            (|facts| facts.pages.scatter_bytes = None, "sizes and nodes"),
            (|facts| facts.offsets.umem_list = None, "modules"),
        ];
        for (remove, said) in removed {
            match with(remove) {
                Err(NotWalked::Because(why)) if why.contains(said) => {}
                other => panic!("{said}: {other:?}"),
            }
        }
    }

    #[test]
    fn modules_that_may_still_come_may_bring_their_types() {
        let unloaded = |facts: &mut KernelFacts| {
            facts.modules = Modules::default();
            facts.offsets = super::super::facts::FieldOffsets::default();
        };
        assert!(with(unloaded).is_ok());
        let mute = with(|facts| {
            unloaded(facts);
            facts.tells_modules = false;
        });
        assert!(matches!(mute, Err(NotWalked::Because(_))));
    }

    #[test]
    fn a_row_is_told_by_size_and_node_and_what_is_unknown_is_so() {
        let mut row =
            records::placement { born_ns: 7, entries: 3, unknown_pages: 2, ..Default::default() };
        row.pages[records::CLASS_BASE as usize] = 1;
        row.pages[records::CLASS_1G as usize] = 1 << 18;
        row.pages[(records::PAGE_CLASSES + records::CLASS_2M) as usize] = 512;
        let Placed { born_ns, scatter_entries, placement } = placed(&row);
        assert_eq!((born_ns, scatter_entries), (7, Some(3)));
        let place = |bytes, node| Place { page_bytes: Some(bytes), node: Some(node) };
        let told: Vec<_> = placement.iter().collect();
        assert_eq!(
            told,
            [
                (Place::default(), 8192),
                (place(4096, 0), 4096),
                (place(2 << 20, 1), 2 << 20),
                (place(1 << 30, 0), 1 << 30),
            ]
        );
    }
}
