//! Hooks of bpf/umem.bpf.c: pin and unpin of user memory by RDMA.

use super::hook::{Hook, Shape, Stem};
use super::load::object;

/// The umem code moved from ib_uverbs to ib_core in 7.1.
const UMEM: &[&str] = &["ib_uverbs", "ib_core"];

pub static STEM: Stem = Stem {
    name: "umem",
    object: object!("umem"),
    hooks: &[
        pin("umem_get", "ib_umem_get"),
        // The vendor's OFED: its mlx5 calls only this.
        pin("umem_get_peer", "ib_umem_get_peer"),
        // 7.2 and later: df67f15c4474.
        pin("umem_get_va", "__ib_umem_get_va"),
        pin("umem_odp_get", "ib_umem_odp_get"),
        pin("umem_odp_implicit", "ib_umem_odp_alloc_implicit"),
        pin("umem_dmabuf_get", "ib_umem_dmabuf_get"),
        pin("umem_dmabuf_pinned", "ib_umem_dmabuf_get_pinned"),
        pin("umem_dmabuf_pinned_dma", "ib_umem_dmabuf_get_pinned_with_dma_device"),
        pin("umem_dmabuf_revocable", "ib_umem_dmabuf_get_pinned_revocable_and_lock"),
        pin("umem_peer_get", "ib_peer_umem_get"),
        unpin("umem_release", "ib_umem_release"),
        // Implicit ODP's children, and all ODP of 5.10, are freed by this alone.
        unpin("umem_odp_release", "ib_umem_odp_release"),
    ],
};

const fn pin(name: &'static str, symbol: &'static str) -> Hook {
    Hook { name, symbol, modules: UMEM, shape: Shape::Around, syscall: None }
}

const fn unpin(name: &'static str, symbol: &'static str) -> Hook {
    Hook { name, symbol, modules: UMEM, shape: Shape::Entry, syscall: None }
}
