/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The system calls that lock memory. What a thread is in is kept in its own storage where tracing
 * programs may use that (5.13, a10787e6d58c), else in `calls`, beside registrations: a thread is in
 * one system call at a time. MAP_LOCKED, MCL_FUTURE and calls of 32-bit programs do not come here.
 */
#include "maps.h"
#include "mlock.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct mlock_choice choice = {1, 1};

/* Mapped by user space, which need not look it up: see rows.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MLOCK_SYSCALLS);
	__type(key, __u32);
	__type(value, struct mlock_totals);
} mlocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct mlock_thread);
} mlock_threads SEC(".maps");

static __always_inline __u32 error_of(__s64 result)
{
	switch (-result) {
	case EPERM:
		return ERROR_EPERM;
	case EAGAIN:
		return ERROR_EAGAIN;
	case ENOMEM:
		return ERROR_ENOMEM;
	case EINVAL:
		return ERROR_EINVAL;
	case EINTR:
	case ERESTARTSYS ... ERESTART_RESTARTBLOCK:
		return ERROR_EINTR;
	default:
		return ERROR_OTHER;
	}
}

static __always_inline void lock_ended(const struct process_key *owner, __u64 start_ns,
				       __u64 length_bytes, __u32 syscall, __s64 result)
{
	__u64 ns = bpf_ktime_get_ns() - start_ns;
	struct mlock_totals *row = bpf_map_lookup_elem(&mlocks, &syscall);
	struct process *process;

	if (!row)
		return;
	if (result) {
		__sync_fetch_and_add(&row->failures[error_of(result)], 1);
		return;
	}
	__sync_fetch_and_add(&row->ns, ns);
	__sync_fetch_and_add(&row->bytes, length_bytes);
	count_slot(row->slots, ns);
	if (!choice.per_process)
		return;
	process = enter_process(owner);
	if (process) {
		__sync_fetch_and_add(&process->lock_calls, 1);
		__sync_fetch_and_add(&process->lock_ns, ns);
	}
}

/* The thread's storage, made at its first call; none is counted as lost. */
static __always_inline struct mlock_thread *the_thread(void)
{
	struct mlock_thread *thread = bpf_task_storage_get(
	    &mlock_threads, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!thread)
		count_lost(LOST_THREADS_REFUSED);
	return thread;
}

static __always_inline void enter_by_thread(__u32 syscall, __u64 length_bytes)
{
	struct mlock_thread *thread = the_thread();

	if (!thread)
		return;
	/* Once in the thread's life: an exec keeps pid and start. */
	if (choice.per_process && !thread->owner.tgid)
		current_owner(&thread->owner);
	thread->syscall = syscall;
	thread->length_bytes = length_bytes;
	thread->start_ns = bpf_ktime_get_ns();
}

static __always_inline void exit_by_thread(__u32 syscall, __s64 result)
{
	struct mlock_thread *thread = the_thread();

	if (!thread || !thread->start_ns || thread->syscall != syscall)
		return;
	lock_ended(&thread->owner, thread->start_ns, thread->length_bytes, syscall, result);
	thread->start_ns = 0;
}

/* `object` tells which system call it is. */
static __always_inline void enter_by_pid(__u32 syscall, __u64 length_bytes)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call call = {
	    .verb = VERB_MLOCK,
	    .object = syscall,
	    .length_bytes = length_bytes,
	};

	if (bpf_map_lookup_elem(&calls, &thread))
		count_lost(LOST_CALLS_STALE);
	call.start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&calls, &thread, &call, BPF_ANY))
		count_lost(LOST_CALLS_FULL);
}

static __always_inline void exit_by_pid(__u32 syscall, __s64 result)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *call = bpf_map_lookup_elem(&calls, &thread);

	if (!call || call->verb != VERB_MLOCK || call->object != syscall)
		return;
	if (choice.per_process)
		learn_owner(call);
	lock_ended(&call->owner, call->start_ns, call->length_bytes, syscall, result);
	bpf_map_delete_elem(&calls, &thread);
}

static __noinline int lock_enter(__u32 syscall, __u64 length_bytes)
{
	if (choice.has_thread_storage)
		enter_by_thread(syscall, length_bytes);
	else
		enter_by_pid(syscall, length_bytes);
	return 0;
}

static __noinline int lock_exit(__u32 syscall, __s64 result)
{
	if (choice.has_thread_storage)
		exit_by_thread(syscall, result);
	else
		exit_by_pid(syscall, result);
	return 0;
}

/* The length is the second argument of those that have one. */
static __always_inline __u64 length_of(__u32 syscall, __u64 registers)
{
	__u64 length_bytes = 0;

	if (syscall == SYSCALL_MLOCK || syscall == SYSCALL_MLOCK2)
		bpf_probe_read_kernel(&length_bytes, sizeof(length_bytes),
				      &PT_REGS_PARM2((struct pt_regs *)registers));
	return length_bytes;
}

/* What the tracepoints of system calls hand over, by their format files. */
struct syscall_entered {
	__u64 common;
	__u64 number;
	__u64 arguments[6];
};

struct syscall_left {
	__u64 common;
	__u64 number;
	__s64 result;
};

static __always_inline __u64 length_told(__u32 syscall, const struct syscall_entered *entered)
{
	return syscall == SYSCALL_MLOCK || syscall == SYSCALL_MLOCK2 ? entered->arguments[1] : 0;
}

/* The kernel's function has the caller's registers as its only argument. */
#define SYSCALL_HOOK(what, syscall)                                                                \
	SEC("kprobe")                                                                              \
	int mlock_##what##_enter(struct pt_regs *ctx)                                              \
	{                                                                                          \
		return lock_enter(syscall, length_of(syscall, PT_REGS_PARM1(ctx)));                \
	}                                                                                          \
	SEC("kretprobe")                                                                           \
	int mlock_##what##_exit(struct pt_regs *ctx)                                               \
	{                                                                                          \
		return lock_exit(syscall, (__s64)PT_REGS_RC(ctx));                                 \
	}                                                                                          \
	SEC("fentry")                                                                              \
	int mlock_##what##_fentry(__u64 *ctx)                                                      \
	{                                                                                          \
		return lock_enter(syscall, length_of(syscall, ctx[0]));                            \
	}                                                                                          \
	SEC("fexit")                                                                               \
	int mlock_##what##_fexit(__u64 *ctx)                                                       \
	{                                                                                          \
		return lock_exit(syscall, (__s64)ctx[1]);                                          \
	}                                                                                          \
	SEC("tracepoint")                                                                          \
	int mlock_##what##_entered(struct syscall_entered *ctx)                                    \
	{                                                                                          \
		return lock_enter(syscall, length_told(syscall, ctx));                             \
	}                                                                                          \
	SEC("tracepoint")                                                                          \
	int mlock_##what##_left(struct syscall_left *ctx)                                          \
	{                                                                                          \
		return lock_exit(syscall, ctx->result);                                            \
	}

SYSCALL_HOOK(mlock, SYSCALL_MLOCK)
SYSCALL_HOOK(mlock2, SYSCALL_MLOCK2)
SYSCALL_HOOK(mlockall, SYSCALL_MLOCKALL)
SYSCALL_HOOK(munlock, SYSCALL_MUNLOCK)
SYSCALL_HOOK(munlockall, SYSCALL_MUNLOCKALL)
