//! The kernels, and all that one of them can't do, with its reason: the one place that says so.

use crate::cases::Mode;

/// The newest package of each series is booted.
pub const KERNELS: [&str; 6] = ["5.10", "6.1", "6.12", "6.18", "7.2", "7.3"];

/// The floor, Debian's oldest kernel with BTF for modules, and the newest: booted unless
/// LAB_KERNELS names others.
pub const USUAL: [&str; 3] = ["5.10", "6.1", "7.3"];

/// One kernel is enough for them: lockdown refuses the same on all.
pub const LOCKED_KERNEL: &str = "6.1";

/// What can't be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Hooks are never attached that way: they are kprobes, whose cases are those of auto. A case
    /// proves it.
    Mode(Mode),
    /// Modules have no types to find functions by, which a case proves.
    ModuleBtf,
    /// Tracing programs can't keep anything with a thread, which a case proves.
    ThreadStorage,
    /// A trampoline on that function of the kernel itself is refused, which a case proves.
    Trampoline(&'static str),
    /// The kernel has no such function, which a case proves.
    Function(&'static str),
    /// The lab's module can't be built, so cases that need it are not run. Fails if it can.
    Module,
    /// The case is run in that mode, and has to fail.
    Case(Mode, &'static str),
}

/// A row of the table.
#[derive(Debug)]
pub struct Cannot {
    pub kernels: &'static [&'static str],
    pub what: What,
    pub why: &'static str,
}

/// The function of a system call on this architecture.
pub const MLOCK: &str =
    if cfg!(target_arch = "aarch64") { "__arm64_sys_mlock" } else { "__x64_sys_mlock" };

const NO_WALK: &str = "its modules have no types, by which an MR's pages are found";

pub const CANNOT: &[Cannot] = &[
    Cannot {
        kernels: &["5.10"],
        what: What::ModuleBtf,
        why: "it is built without BTF of modules, which came with 5.11",
    },
    Cannot {
        kernels: &["5.10"],
        what: What::Mode(Mode::Fentry),
        why: "its modules carry no BTF, by which a trampoline finds its function",
    },
    Cannot {
        kernels: &["5.10"],
        what: What::ThreadStorage,
        why: "tracing programs may use the storage of threads from 5.13 on (a10787e6d58c)",
    },
    Cannot {
        kernels: &["5.10"],
        what: What::Trampoline(MLOCK),
        why: "its BTF only announces the type of what a system call gets, so that a program may not \
              read it",
    },
    Cannot {
        kernels: &["6.1-arm64"],
        what: What::Mode(Mode::Fentry),
        why: "ftrace of arm64 has no direct calls before 6.4: a trampoline loads and is refused when \
              it is attached",
    },
    Cannot {
        kernels: &["6.18", "7.2", "7.3", "7.3-arm64"],
        what: What::Mode(Mode::Fentry),
        why: "it preempts: a trampoline's program that is interrupted keeps out all others of its CPU",
    },
    Cannot {
        kernels: &["7.2", "7.3", "7.3-arm64"],
        what: What::Function("ib_umem_get"),
        why: "it was renamed to __ib_umem_get_va (df67f15c4474)",
    },
    Cannot {
        kernels: &["5.10"],
        what: What::Case(Mode::Auto, "rdma_netlink_lists_the_contexts_that_iproute2_shows"),
        why: "its RDMA netlink lists no contexts",
    },
    Cannot {
        kernels: &["5.10", "6.1", "6.12", "6.18", "7.2"],
        what: What::Case(Mode::Auto, "rdma_netlink_tells_the_maxima_that_libibverbs_tells"),
        why: "its RDMA netlink tells no maxima",
    },
    Cannot {
        kernels: &["5.10", "6.1", "6.12"],
        what: What::Case(Mode::Auto, "an_mr_with_on_demand_paging_is_counted_and_pins_nothing"),
        why: "its soft RoCE has no on-demand paging",
    },
    Cannot {
        kernels: &["5.10", "6.1"],
        what: What::Case(Mode::Auto, "an_mr_whose_rights_or_pd_change_by_rereg_only_counts"),
        why: "its soft RoCE has no rereg",
    },
    Cannot {
        kernels: &["5.10", "6.1"],
        what: What::Case(Mode::Auto, "an_mr_that_is_moved_by_rereg_is_replaced"),
        why: "the command was disabled when soft RoCE, which has no rereg, came",
    },
    Cannot {
        kernels: &["5.10", "6.1"],
        what: What::Case(Mode::Auto, "an_mr_that_is_moved_by_rereg_lies_where_it_went"),
        why: "the command was disabled when soft RoCE, which has no rereg, came",
    },
    Cannot {
        kernels: &["5.10", "6.1"],
        what: What::Case(Mode::Auto, "a_registration_that_is_held_up_is_in_flight_and_ages"),
        why: "a pin for long may not wait for userfaultfd: EFAULT",
    },
    Cannot {
        kernels: &["5.10"],
        what: What::Case(Mode::Auto, "an_mr_that_begins_within_a_page_lies_on_all_that_it_touches"),
        why: NO_WALK,
    },
    Cannot {
        kernels: &["5.10"],
        what: What::Case(Mode::Auto, "of_a_gigabyte_of_scattered_pages_the_rest_is_unknown"),
        why: NO_WALK,
    },
    Cannot {
        kernels: &["5.10"],
        what: What::Case(Mode::Auto, "of_the_killed_no_place_is_left"),
        why: NO_WALK,
    },
    Cannot {
        kernels: &["6.18"],
        what: What::Module,
        why: "Debian's archive no longer has the headers of its last kernel of this series",
    },
];

/// Why that kernel can't, if it can't.
pub fn cannot(kernel: &str, what: What) -> Option<&'static str> {
    let row = CANNOT.iter().find(|row| row.what == what && row.kernels.contains(&kernel));
    row.map(|row| row.why)
}

/// Modes whose cases are run.
pub fn modes(kernel: &str) -> impl Iterator<Item = Mode> {
    Mode::ALL.into_iter().filter(move |mode| cannot(kernel, What::Mode(*mode)).is_none())
}

/// The hook that sees host memory being pinned.
pub fn pin_program(kernel: &str) -> &'static str {
    match cannot(kernel, What::Function("ib_umem_get")) {
        None => "umem_get",
        Some(_) => "umem_get_va",
    }
}
