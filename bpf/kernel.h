/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel as these programs see it: only the vmlinux types and fields in use, found by CO-RE.
 * Types of modules (ib_*) are never named here: a relocation on them fails the load wherever the
 * module carries no BTF. Their offsets come from user space, through the settings map.
 */
#ifndef MRSCOPE_KERNEL_H
#define MRSCOPE_KERNEL_H

#include "types.h"

typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

/* Tells bpf_tracing.h that pt_regs has the kernel's field names. */
#define __VMLINUX_H__

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1 << 0,
};

/* Register layouts are the ABI of each architecture, so they are not relocated. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};

struct user_pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};

/* One u64 since 6.3 (f122a08b197d), whose low word is the same: read whole, not by its fields. */
struct kernel_capabilities {
	__u32 words[2];
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct user_namespace {
	int level;
};

struct cred {
	struct kernel_capabilities cap_effective;
	struct user_namespace *user_ns;
};

struct rlimit {
	unsigned long rlim_cur;
};

struct signal_struct {
	int nr_threads;
	struct rlimit rlim[16];
};

struct atomic64 {
	__s64 counter;
};

struct mm_struct {
	struct atomic64 pinned_vm; /* in base pages, as are the next two */
	unsigned long locked_vm;
	struct atomic64 hugetlb_usage; /* where the kernel has hugetlbfs */
	struct atomic64 pgtables_bytes;
	unsigned long def_flags; /* of memory mapped later; in an anonymous union on 7.3 */
};

struct task_struct {
	unsigned int flags;
	int exit_state;
	__s32 pid;
	__s32 tgid;
	__u64 start_boottime;
	struct task_struct *group_leader;
	struct mm_struct *mm;
	struct signal_struct *signal;
	const struct cred *cred;
	char comm[16];
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *key;
	void *value;
};

#pragma clang attribute pop

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define EPERM 1
#define EINTR 4
#define EAGAIN 11
#define ENOMEM 12
#define EFAULT 14
#define EEXIST 17
#define EINVAL 22
#define EOPNOTSUPP 95
#define ERESTARTSYS 512
#define ERESTART_RESTARTBLOCK 516
#define MAX_ERRNO 4095

#define PF_EXITING 0x00000004
#define PF_KTHREAD 0x00200000
#define VM_LOCKED 0x2000
#define RLIMIT_MEMLOCK 8
#define CAP_IPC_LOCK 14

/* The kernel's ERR_PTR convention. */
static __always_inline int pointer_is_error(__u64 pointer)
{
	return pointer >= (__u64)-MAX_ERRNO;
}

static __always_inline struct task_struct *current_task(void)
{
	return (struct task_struct *)bpf_get_current_task();
}

/* Whether the caller is on its way out: its files are closed after that is set. */
static __always_inline int current_is_exiting(void)
{
	return BPF_CORE_READ(current_task(), flags) & PF_EXITING;
}

/* Pages that RDMA and others pinned in the caller's memory; 0 once the memory is gone. */
static __always_inline __s64 current_pinned_pages(void)
{
	struct mm_struct *mm = BPF_CORE_READ(current_task(), mm);

	return mm ? BPF_CORE_READ(mm, pinned_vm.counter) : 0;
}

static __always_inline __u64 current_memlock_bytes(void)
{
	struct signal_struct *signal = BPF_CORE_READ(current_task(), signal);

	return BPF_CORE_READ(signal, rlim[RLIMIT_MEMLOCK].rlim_cur);
}

/* What capable(CAP_IPC_LOCK) asks: the capability, and in the initial user namespace. */
static __always_inline int current_may_exceed_memlock(void)
{
	const struct cred *cred = BPF_CORE_READ(current_task(), cred);
	struct kernel_capabilities effective = {};

	if (BPF_CORE_READ(cred, user_ns, level) != 0)
		return 0;
	bpf_core_read(&effective, sizeof(effective), &cred->cap_effective);
	return (effective.words[0] >> CAP_IPC_LOCK) & 1;
}

#endif
