/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Pin and unpin of user memory by RDMA. A pin inside a registration is provisional until that
 * call has succeeded (verbs.bpf.c commits it); a pin outside any is a queue buffer at once.
 */
#include "device.h"
#include "maps.h"
#include "placement.h"
#include "vma.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Of the user ABI. */
enum {
	IB_ACCESS_LOCAL_WRITE = 1 << 0,
	IB_ACCESS_REMOTE_WRITE = 1 << 1,
	IB_ACCESS_REMOTE_ATOMIC = 1 << 3,
	IB_ACCESS_MW_BIND = 1 << 4,
};

static __always_inline __u64 page_bytes(void)
{
	const struct settings *set = the_settings();

	return set ? set->page_bytes : 4096;
}

/* The pages that the kernel charges: from the first page touched to the last, whole. */
static __always_inline __u64 span_bytes(__u64 page_bytes, __u64 address, __u64 length)
{
	__u64 mask = page_bytes - 1;

	return ((address + length + mask) & ~mask) - (address & ~mask);
}

/* Whether the device may write to it by these rights: ib_access_writable(). */
static __always_inline int writes(__u32 access)
{
	return access & (IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC |
			 IB_ACCESS_MW_BIND);
}

/* Why a pin failed, from what the caller may pin and how much it has. */
static __always_inline __u32 pin_cause(const struct call *call, __s64 error)
{
	__u64 page = page_bytes();
	__u64 asked = span_bytes(page, call->address, call->length_bytes);
	/* Only pinned host memory is held against RLIMIT_MEMLOCK. */
	int limited = call->kind == KIND_HOST || call->kind == KIND_PEER;

	if (error == EPERM)
		return limited ? CAUSE_MEMLOCK_ZERO : CAUSE_OTHER;
	if (error == EINTR || (error >= ERESTARTSYS && error <= ERESTART_RESTARTBLOCK))
		return CAUSE_INTERRUPTED;
	if (error == EFAULT) {
		/* A mapping of the pool that is whole fails for want of a page alone. */
		if (on_hugepages(call->address, writes(call->access)) &&
		    on_hugepages(call->address + call->length_bytes - 1, writes(call->access)))
			return CAUSE_HUGEPAGE_UNAVAILABLE;
		return CAUSE_BAD_ADDRESS;
	}
	if (error == EINVAL || error == EOPNOTSUPP)
		return CAUSE_INVALID;
	if (error != ENOMEM)
		return CAUSE_OTHER;
	if (!limited || current_may_exceed_memlock())
		return CAUSE_NO_MEMORY;
	asked += (__u64)call->pinned_pages * page;
	return asked > current_memlock_bytes() ? CAUSE_MEMLOCK_LIMIT : CAUSE_NO_MEMORY;
}

static __noinline int pin_enter(__u64 device, __u64 address, __u64 length, __u32 access, __u32 kind)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *call = bpf_map_lookup_elem(&calls, &thread);

	if (!call) {
		struct call alone = {.verb = VERB_NONE};

		if (bpf_map_update_elem(&calls, &thread, &alone, BPF_ANY)) {
			count_lost(LOST_CALLS_FULL);
			return 0;
		}
		call = bpf_map_lookup_elem(&calls, &thread);
		if (!call)
			return 0;
	}
	call->pin_depth++;
	if (call->pin_depth > 1) /* one function of the ladder calls another: one pin */
		return 0;
	/* Read back from a map, the typed pointer of a trampoline is the number that is wanted. */
	call->device = device;
	barrier();
	call->device = device_id(call->device);
	call->address = address;
	call->length_bytes = length;
	call->access = access;
	call->kind = kind;
	call->pins_tried++;
	call->pinned_pages = current_pinned_pages();
	call->pin_start_ns = bpf_ktime_get_ns();
	if (call->verb == VERB_NONE)
		call->start_ns = call->pin_start_ns;
	return 0;
}

/* A pin has left the live map: its owner and its device hold that much less. */
static __always_inline void forget_pin(const struct pin *pin)
{
	struct totals_key key = {.device = pin->device, .kind = pin->kind};
	struct process *process = bpf_map_lookup_elem(&processes, &pin->owner);

	if (pin->committed)
		move_live(pin, process, bpf_map_lookup_elem(&totals, &key), -1);
	/* Last: once it is zero, user space may free the row of a process that is gone. */
	if (process)
		__sync_fetch_and_add(&process->live_pins, -1);
}

/* Puts a pin into the live map; a row in its place is a second hook of it, or a lost release. */
static __always_inline int insert_pin(__u64 umem, const struct pin *pin)
{
	struct pin *stale;
	struct pin old;
	__s32 error = bpf_map_update_elem(&pins, &umem, pin, BPF_NOEXIST);

	if (!error)
		return 1;
	if (error != -EEXIST) {
		count_lost(LOST_PINS_FULL);
		return 0;
	}
	stale = bpf_map_lookup_elem(&pins, &umem);
	if (!stale || stale->born_ns >= pin->born_ns)
		return 0;
	old = *stale;
	if (bpf_map_update_elem(&pins, &umem, pin, BPF_ANY))
		return 0;
	count_lost(LOST_PINS_REPLACED);
	forget_pin(&old);
	forget_placement(umem, &old);
	return 1;
}

/* The pages that it was placed on are to be looked at: 0 for none. */
static __always_inline __u64 pin_made(struct call *call, __u64 umem)
{
	struct process *process;
	struct pin pin = {
	    .device = call->device,
	    .born_ns = call->start_ns,
	    .address = call->address,
	    .length_bytes = call->length_bytes,
	    .kind = call->kind,
	    .use = USE_QUEUE,
	    .committed = call->verb == VERB_NONE,
	    .verb = call->verb,
	};

	learn_owner(call);
	process = enter_process(&call->owner);
	/* Without a row now, none may be lowered later. */
	if (process)
		pin.owner = call->owner;
	if (pin.kind == KIND_HOST || pin.kind == KIND_PEER)
		pin.pinned_bytes = span_bytes(page_bytes(), call->address, call->length_bytes);
	if (call->verb == VERB_DEVX_UMEM_REG)
		pin.use = USE_DEVX;
	else if (call->verb != VERB_NONE)
		pin.use = USE_MR;

	if (!insert_pin(umem, &pin))
		return 0;
	if (process)
		__sync_fetch_and_add(&process->live_pins, 1);
	if (pin.committed)
		move_live(&pin, process, enter_totals(pin.device, pin.kind), 1);
	if (call->pins_made == 0)
		call->umems[0] = umem;
	else if (call->pins_made == 1)
		call->umems[1] = umem;
	else
		count_lost(LOST_PINS_PER_CALL);
	call->pins_made++;
	return has_placement(&pin) ? pin.pinned_bytes / page_bytes() : 0;
}

static __noinline int pin_exit(__u64 umem, __u32 kind)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *call = bpf_map_lookup_elem(&calls, &thread);
	__u64 now = bpf_ktime_get_ns();
	int pages = 0;

	/* No call: from before the start, or its entry was lost and counted. */
	if (!call || !call->pin_depth)
		return 0;
	call->pin_depth--;
	if (call->pin_depth) {
		/* The vendor's fallback to peer memory succeeds inside a pin function. */
		if (kind == KIND_PEER && umem && !pointer_is_error(umem))
			call->kind = KIND_PEER;
		return 0;
	}
	if (pointer_is_error(umem)) {
		__s64 pinned_pages = current_pinned_pages();

		/*
		 * The kernel adds first, compares, and takes back: what it compared with was at
		 * least the larger of both readings, unless a concurrent failure was in between.
		 */
		if (pinned_pages > call->pinned_pages)
			call->pinned_pages = pinned_pages;
		call->pin_failed = 1;
		call->pin_cause = pin_cause(call, -(__s64)umem);
	} else if (umem && !began_before_us(call)) {
		call->pin_failed = 0;
		call->pin_ns += now - call->pin_start_ns;
		pages = pin_made(call, umem);
		/* Read back from the map it is a number, as the device at entry. */
		call->walk.entry = umem;
	}
	if (call->verb == VERB_NONE)
		bpf_map_delete_elem(&calls, &thread);
	return pages;
}

/* To verify the walk takes long in each program: those that pin no host memory are without. */
static __always_inline int pin_ended(__u64 umem, __u32 kind)
{
	int pages = pin_exit(umem, kind);

	if (kind == KIND_HOST && pages)
		place((__u32)pages);
	return 0;
}

/* At entry: once the function has returned, another CPU may have the address again. */
static __noinline int release_enter(__u64 umem)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *call;
	struct pin *row;
	struct pin pin;

	/* After a failed registration it is called with NULL (7.2 on: with an error). */
	if (!umem || pointer_is_error(umem))
		return 0;
	call = bpf_map_lookup_elem(&calls, &thread);
	row = bpf_map_lookup_elem(&pins, &umem);
	if (!row) { /* from before the start */
		if (call)
			call->released_unknown = 1;
		return 0;
	}
	pin = *row;
	if (bpf_map_delete_elem(&pins, &umem)) {
		count_lost(LOST_PINS_NOT_REMOVED);
		return 0;
	}
	forget_pin(&pin);
	forget_placement(umem, &pin);
	/* Only the umem tells a deregistration which MR it ended. */
	if (call && call->verb == VERB_DEREG_MR) {
		call->kind = pin.kind;
		call->owner = pin.owner;
		call->address = pin.address;
		call->length_bytes = pin.length_bytes;
	}
	return 0;
}

#define PIN_HOOK(what, args, kind, K_DEVICE, K_ADDRESS, K_LENGTH, K_ACCESS, F_ADDRESS, F_LENGTH,   \
		 F_ACCESS)                                                                         \
	SEC("kprobe")                                                                              \
	int umem_##what##_enter(struct pt_regs *ctx)                                               \
	{                                                                                          \
		return pin_enter(K_DEVICE, K_ADDRESS, K_LENGTH, K_ACCESS, kind);                   \
	}                                                                                          \
	SEC("kretprobe")                                                                           \
	int umem_##what##_exit(struct pt_regs *ctx)                                                \
	{                                                                                          \
		return pin_ended(PT_REGS_RC(ctx), kind);                                           \
	}                                                                                          \
	SEC("fentry")                                                                              \
	int umem_##what##_fentry(__u64 *ctx)                                                       \
	{                                                                                          \
		return pin_enter(ctx[0], F_ADDRESS, F_LENGTH, F_ACCESS, kind);                     \
	}                                                                                          \
	SEC("fexit")                                                                               \
	int umem_##what##_fexit(__u64 *ctx)                                                        \
	{                                                                                          \
		return pin_ended(ctx[args], kind);                                                 \
	}

/* Arguments: (device, address, length, access, ...) */
#define PIN_HOOK_234(what, args, kind)                                                             \
	PIN_HOOK(what, args, kind, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx),     \
		 PT_REGS_PARM4(ctx), ctx[1], ctx[2], ctx[3])
/* Arguments: (device, offset, length, ...) */
#define PIN_HOOK_23(what, args, kind)                                                              \
	PIN_HOOK(what, args, kind, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx), 0,  \
		 ctx[1], ctx[2], 0)
/* Arguments: (device, dma device, offset, length, ...) */
#define PIN_HOOK_34(what, args, kind)                                                              \
	PIN_HOOK(what, args, kind, PT_REGS_PARM1(ctx), PT_REGS_PARM3(ctx), PT_REGS_PARM4(ctx), 0,  \
		 ctx[2], ctx[3], 0)

PIN_HOOK_234(get, 4, KIND_HOST)
PIN_HOOK_234(get_peer, 5, KIND_HOST)
PIN_HOOK_234(get_va, 4, KIND_HOST)
PIN_HOOK_234(odp_get, 5, KIND_ODP)
PIN_HOOK(odp_implicit, 2, KIND_ODP, PT_REGS_PARM1(ctx), 0, 0, 0, 0, 0, 0)
PIN_HOOK_23(dmabuf_get, 6, KIND_DMABUF)
PIN_HOOK_23(dmabuf_pinned, 5, KIND_DMABUF)
PIN_HOOK_34(dmabuf_pinned_dma, 6, KIND_DMABUF)
PIN_HOOK_23(dmabuf_revocable, 5, KIND_DMABUF)

/* The vendor's (umem, ...) or (context, addr, ...) forms differ: only its result is used. */
PIN_HOOK(peer_get, 3, KIND_PEER, 0, 0, 0, 0, 0, 0, 0)

#define RELEASE_HOOK(what)                                                                         \
	SEC("kprobe")                                                                              \
	int umem_##what##_enter(struct pt_regs *ctx)                                               \
	{                                                                                          \
		return release_enter(PT_REGS_PARM1(ctx));                                          \
	}                                                                                          \
	SEC("fentry")                                                                              \
	int umem_##what##_fentry(__u64 *ctx)                                                       \
	{                                                                                          \
		return release_enter(ctx[0]);                                                      \
	}

RELEASE_HOOK(release)
RELEASE_HOOK(odp_release)
