/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whole MR registrations and deregistrations. Nothing is counted at entry: a figure moves when the
 * call has returned 0, a failure when it has not.
 */
#include "device.h"
#include "history.h"
#include "maps.h"

#define LAST_FAILURE_WORDS (__builtin_offsetof(struct last_failure, sum) / sizeof(__u64))

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* A global function: as slot_of(). */
__noinline __u32 process_slot(__u64 ns)
{
	if (ns <= 100000ULL)
		return 0;
	if (ns <= 1000000ULL)
		return 1;
	if (ns <= 10000000ULL)
		return 2;
	if (ns <= 100000000ULL)
		return 3;
	if (ns <= 1000000000ULL)
		return 4;
	return ns <= 10000000000ULL ? 5 : 6;
}

static __noinline int call_enter(__u64 object, __u32 verb, __u32 kind)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call call = {
	    .start_ns = bpf_ktime_get_ns(),
	    .object = object,
	    .verb = verb,
	    .kind = kind,
	};

	/* A registration is inside no other call: what is there is one whose end was missed. */
	if (bpf_map_lookup_elem(&calls, &thread))
		count_lost(LOST_CALLS_STALE);
	if (bpf_map_update_elem(&calls, &thread, &call, BPF_ANY))
		count_lost(LOST_CALLS_FULL);
	return 0;
}

/* A system call begins: what this thread was in before has ended, seen or not. */
static __noinline int syscall_enter(void)
{
	__u64 thread = bpf_get_current_pid_tgid();

	if (bpf_map_lookup_elem(&calls, &thread)) {
		bpf_map_delete_elem(&calls, &thread);
		count_lost(LOST_CALLS_STALE);
	}
	return 0;
}

/* Pins of a call that succeeded become live figures. */
static __always_inline void commit_pin(__u64 umem, struct process *process, struct totals *row)
{
	struct pin *pin = bpf_map_lookup_elem(&pins, &umem);

	/* Gone already when another thread was quicker to release it: then nothing is live. */
	if (!pin || pin->committed)
		return;
	pin->committed = 1;
	if (!pin->owner.tgid)
		process = 0;
	move_live(pin, process, row, 1);
	if (process && pin->use == USE_MR)
		raise_largest(process, pin->length_bytes);
}

/* The device of a call that never reached a pin, where BTF told the way. */
static __always_inline __u64 device_pointer_of(const struct call *call)
{
	const struct settings *set = the_settings();
	__u64 context = 0;
	__u64 device = 0;

	if (!set || set->attrs_context_offset == OFFSET_UNKNOWN ||
	    set->context_device_offset == OFFSET_UNKNOWN)
		return 0;
	bpf_probe_read_kernel(&context, sizeof(context),
			      (void *)(call->object + set->attrs_context_offset));
	if (context)
		bpf_probe_read_kernel(&device, sizeof(device),
				      (void *)(context + set->context_device_offset));
	return device;
}

typedef __u64 __attribute__((may_alias)) word;

static __noinline int note_failure(const struct call *call, __u32 error, __u32 cause)
{
	struct last_failure row = {
	    .owner = call->owner,
	    .at_ns = bpf_ktime_get_ns(),
	    .device = call->device,
	    .address = call->address,
	    .length_bytes = call->length_bytes,
	    .memlock_bytes = current_memlock_bytes(),
	    .pinned_pages = call->pin_failed ? call->pinned_pages : current_pinned_pages(),
	    .error = error,
	    .cause = cause,
	    .kind = call->kind,
	    .range_known = call->pins_tried > 0,
	    .memlock_exempt = current_may_exceed_memlock(),
	};
	const word *words = (const word *)&row;
	__u64 hash = mix(mix(mix(0, row.owner.tgid), row.device), cause);
	__u32 slot = hash >> (64 - LAST_FAILURE_SLOT_BITS);
	__u32 i;

	BPF_CORE_READ_INTO(&row.comm, current_task(), group_leader, comm);
#pragma unroll
	for (i = 0; i < LAST_FAILURE_WORDS; i++)
		row.sum = mix(row.sum, words[i]);
	if (bpf_map_update_elem(&last_failures, &slot, &row, BPF_ANY))
		count_lost(LOST_LAST_FAILURES);
	return 0;
}

static __always_inline void count_failure(const struct call *call, struct process *process,
					  __s32 error)
{
	struct failure_key key = {.device = call->device, .error = -error};
	__u32 cause = call->pins_tried ? CAUSE_DEVICE : CAUSE_REFUSED;
	__u64 *count;

	if (call->pin_failed)
		cause = call->pin_cause;
	if (cause >= CAUSES)
		return;
	note_failure(call, -error, cause);
	if (process)
		__sync_fetch_and_add(&process->failures[cause], 1);

	key.cause = cause;
	count = bpf_map_lookup_elem(&failures, &key);
	if (!count) {
		__u64 zero = 0;
		__s32 full = bpf_map_update_elem(&failures, &key, &zero, BPF_NOEXIST);

		if (full && full != -EEXIST) {
			count_lost(LOST_FAILURES_FULL);
			return;
		}
		count = bpf_map_lookup_elem(&failures, &key);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline void count_registration(const struct call *call, struct process *process,
					       struct totals *row, __u64 ns)
{
	int repeats = came_back(call);

	if (row) {
		__sync_fetch_and_add(&row->registration_ns, ns);
		count_slot(row->registration_slots, ns);
		/* Without a pin (rereg of rights alone, device memory) no length is known. */
		if (call->pins_tried) {
			__sync_fetch_and_add(&row->registered_bytes, call->length_bytes);
			count_slot(row->size_slots, call->length_bytes);
		}
		if (call->pins_made) {
			__sync_fetch_and_add(&row->walk_ns, call->walk_ns);
			__sync_fetch_and_add(&row->pin_ns, call->pin_ns);
			count_slot(row->pin_slots, call->pin_ns);
		}
		if (repeats) {
			__sync_fetch_and_add(&row->repeats, 1);
			__sync_fetch_and_add(&row->repeat_ns, ns);
		}
	}
	if (process) {
		__u32 slot = process_slot(ns);

		/* The compiler knows what it may be, the verifier does not. */
		barrier_var(slot);
		__sync_fetch_and_add(&process->registration_ns, ns);
		if (slot < PROCESS_SLOTS)
			__sync_fetch_and_add(&process->registration_slots[slot], 1);
		if (repeats) {
			__sync_fetch_and_add(&process->repeats, 1);
			__sync_fetch_and_add(&process->repeat_ns, ns);
		}
	}
}

/* Tells user space that an MR which it found may have gone, or been made anew. */
static __always_inline void note_unknown_release(const struct call *call)
{
	struct totals *row;

	if (!call->released_unknown)
		return;
	row = enter_totals(call->device, KIND_HOST);
	if (row)
		__sync_fetch_and_add(&row->unknown_releases, 1);
}

static __always_inline void call_ended(struct call *call, __s32 result)
{
	__u64 ns = bpf_ktime_get_ns() - call->start_ns - call->walk_ns;
	struct process *process;
	struct totals *row;

	if (began_before_us(call))
		return;
	if (!call->device)
		call->device = device_id(device_pointer_of(call));
	note_unknown_release(call);
	learn_owner(call);
	process = enter_process(&call->owner);
	if (result) {
		if (call->verb != VERB_DEVX_UMEM_REG)
			count_failure(call, process, result);
		return;
	}
	row = enter_totals(call->device, call->kind);
	if (call->verb != VERB_DEVX_UMEM_REG)
		count_registration(call, process, row, ns);
	if (call->pins_made > 0)
		commit_pin(call->umems[0], process, row);
	if (call->pins_made > 1)
		commit_pin(call->umems[1], process, row);
}

static __noinline int call_exit(__s32 result, __u32 verb)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *call = bpf_map_lookup_elem(&calls, &thread);

	if (!call || call->verb != verb)
		return 0;
	call_ended(call, result);
	bpf_map_delete_elem(&calls, &thread);
	return 0;
}

/* ib_mr starts with its device on every kernel. The kind is that of the umem released meanwhile. */
static __always_inline void dereg_ended(const struct call *call)
{
	__u64 ns = bpf_ktime_get_ns() - call->start_ns;
	struct totals *row;

	if (began_before_us(call))
		return;
	note_unknown_release(call);
	row = enter_totals(call->device, call->kind);
	if (row) {
		__sync_fetch_and_add(&row->deregistration_ns, ns);
		count_slot(row->deregistration_slots, ns);
	}
	remember(call);
}

static __noinline int dereg_exit(__s32 result)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *call = bpf_map_lookup_elem(&calls, &thread);

	if (!call || call->verb != VERB_DEREG_MR)
		return 0;
	if (!result)
		dereg_ended(call);
	bpf_map_delete_elem(&calls, &thread);
	return 0;
}

static __noinline int dereg_enter(__u64 mr, __u64 udata)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *outer = bpf_map_lookup_elem(&calls, &thread);
	struct call call = {.object = mr, .verb = VERB_DEREG_MR, .kind = KIND_HOST};
	__u64 device = 0;

	/* The kernel's own MRs (NVMe, NFS) go through here without user data. */
	if (!udata)
		return 0;
	if (outer && outer->verb != VERB_NONE && outer->verb != VERB_DEREG_MR)
		return 0; /* a part of a rereg, or of a registration that fails */
	if (outer)
		count_lost(LOST_CALLS_STALE);
	bpf_probe_read_kernel(&device, sizeof(device), (void *)mr);
	call.device = device_id(device);
	call.start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&calls, &thread, &call, BPF_ANY))
		count_lost(LOST_CALLS_FULL);
	return 0;
}

#define CALL_HOOK(what, verb, kind)                                                                \
	SEC("kprobe")                                                                              \
	int verbs_##what##_enter(struct pt_regs *ctx)                                              \
	{                                                                                          \
		return call_enter(PT_REGS_PARM1(ctx), verb, kind);                                 \
	}                                                                                          \
	SEC("kretprobe")                                                                           \
	int verbs_##what##_exit(struct pt_regs *ctx)                                               \
	{                                                                                          \
		return call_exit(PT_REGS_RC(ctx), verb);                                           \
	}                                                                                          \
	SEC("fentry")                                                                              \
	int verbs_##what##_fentry(__u64 *ctx)                                                      \
	{                                                                                          \
		return call_enter(ctx[0], verb, kind);                                             \
	}                                                                                          \
	SEC("fexit")                                                                               \
	int verbs_##what##_fexit(__u64 *ctx)                                                       \
	{                                                                                          \
		return call_exit(ctx[1], verb);                                                    \
	}

CALL_HOOK(reg_mr, VERB_REG_MR, KIND_HOST)
CALL_HOOK(rereg_mr, VERB_REREG_MR, KIND_HOST)
CALL_HOOK(reg_dmabuf_mr, VERB_REG_DMABUF_MR, KIND_DMABUF)
CALL_HOOK(reg_mr_ioctl, VERB_REG_MR_IOCTL, KIND_HOST)
CALL_HOOK(dm_mr_reg, VERB_DM_MR_REG, KIND_DM)
CALL_HOOK(devx_umem_reg, VERB_DEVX_UMEM_REG, KIND_HOST)

SEC("kprobe")
int verbs_dereg_mr_enter(struct pt_regs *ctx)
{
	return dereg_enter(PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx));
}

SEC("kretprobe")
int verbs_dereg_mr_exit(struct pt_regs *ctx)
{
	return dereg_exit(PT_REGS_RC(ctx));
}

SEC("fentry")
int verbs_dereg_mr_fentry(__u64 *ctx)
{
	return dereg_enter(ctx[0], ctx[1]);
}

SEC("fexit")
int verbs_dereg_mr_fexit(__u64 *ctx)
{
	return dereg_exit(ctx[2]);
}

#define SYSCALL_HOOK(what)                                                                         \
	SEC("kprobe")                                                                              \
	int verbs_##what##_enter(struct pt_regs *ctx)                                              \
	{                                                                                          \
		return syscall_enter();                                                            \
	}                                                                                          \
	SEC("fentry")                                                                              \
	int verbs_##what##_fentry(__u64 *ctx)                                                      \
	{                                                                                          \
		return syscall_enter();                                                            \
	}

SYSCALL_HOOK(ioctl)
SYSCALL_HOOK(write)
SYSCALL_HOOK(close)
