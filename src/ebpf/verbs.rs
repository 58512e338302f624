//! Hooks of bpf/verbs.bpf.c: whole MR registrations and deregistrations.

use super::hook::{Hook, Shape, Stem};
use super::load::object;

const UVERBS: &[&str] = &["ib_uverbs"];

pub static STEM: Stem = Stem {
    name: "verbs",
    object: object!("verbs"),
    hooks: &[
        Hook {
            name: "verbs_ioctl",
            symbol: "ib_uverbs_ioctl",
            modules: UVERBS,
            shape: Shape::Entry,
            syscall: None,
        },
        Hook {
            name: "verbs_write",
            symbol: "ib_uverbs_write",
            modules: UVERBS,
            shape: Shape::Entry,
            syscall: None,
        },
        Hook {
            name: "verbs_close",
            symbol: "ib_uverbs_close",
            modules: UVERBS,
            shape: Shape::Entry,
            syscall: None,
        },
        call("verbs_reg_mr", "ib_uverbs_reg_mr", UVERBS),
        call("verbs_rereg_mr", "ib_uverbs_rereg_mr", UVERBS),
        call("verbs_reg_dmabuf_mr", "ib_uverbs_handler_UVERBS_METHOD_REG_DMABUF_MR", UVERBS),
        // 6.18 and later: 5b2e45049dc0.
        call("verbs_reg_mr_ioctl", "ib_uverbs_handler_UVERBS_METHOD_REG_MR", UVERBS),
        call("verbs_dm_mr_reg", "ib_uverbs_handler_UVERBS_METHOD_DM_MR_REG", UVERBS),
        call("verbs_devx_umem_reg", "mlx5_ib_handler_MLX5_IB_METHOD_DEVX_UMEM_REG", &["mlx5_ib"]),
        call("verbs_dereg_mr", "ib_dereg_mr_user", &["ib_core"]),
    ],
};

const fn call(name: &'static str, symbol: &'static str, modules: &'static [&'static str]) -> Hook {
    Hook { name, symbol, modules, shape: Shape::Around, syscall: None }
}
