/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A walk over all threads of the reader's pid namespace that writes a row for each process. All is
 * loaded through types that the verifier knows: cheaper than the probe-read functions, and not
 * refused where the kernel is locked down.
 */
#include "kernel.h"
#include "tasks.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline void copy_comm(struct task *row, const struct task_struct *leader)
{
	const __u64 *from = (const __u64 *)&leader->comm;
	__u64 *to = (__u64 *)row->comm;

	to[0] = from[0];
	to[1] = from[1];
}

static __always_inline void copy_memory(struct task *row, const struct mm_struct *mm)
{
	row->memory = (__u64)mm;
	row->pinned_pages = mm->pinned_vm.counter;
	row->locked_pages = mm->locked_vm;
	if (bpf_core_field_exists(mm->hugetlb_usage)) {
		row->has_hugetlb = 1;
		row->hugetlb_pages = mm->hugetlb_usage.counter;
	}
	row->page_table_bytes = mm->pgtables_bytes.counter;
	row->locks_future = !!(mm->def_flags & VM_LOCKED);
}

/* What capable(CAP_IPC_LOCK) would say to it. */
static __always_inline __u32 may_exceed_memlock(const struct task_struct *task)
{
	const struct cred *cred = task->cred;

	if (cred->user_ns->level)
		return 0;
	return (*(const __u32 *)&cred->cap_effective >> CAP_IPC_LOCK) & 1;
}

SEC("iter/task")
int tasks(struct bpf_iter__task *ctx)
{
	struct task row = {};
	const struct task_struct *task = ctx->task;
	const struct task_struct *leader;
	const struct mm_struct *mm;

	/* After the last task there is one call without any. */
	if (!task || task->flags & PF_KTHREAD)
		return 0;
	mm = task->mm;
	leader = task->group_leader;
	if (task->pid == task->tgid) {
		/* Dead, alone, and waiting for its parent. */
		if (task->exit_state && task->signal->nr_threads <= 1)
			return 0;
	} else if (!mm || leader->mm) {
		/* A thread speaks only for a leader that ended before it. */
		return 0;
	}
	row.key.start_boottime_ns = leader->start_boottime;
	row.key.tgid = task->tgid;
	copy_comm(&row, leader);
	row.memlock_bytes = task->signal->rlim[RLIMIT_MEMLOCK].rlim_cur;
	row.may_exceed = may_exceed_memlock(task);
	if (mm)
		copy_memory(&row, mm);
	/* The kernel comes again with a task whose row did not fit. */
	bpf_seq_write(ctx->meta->seq, &row, sizeof(row));
	return 0;
}
