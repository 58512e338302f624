/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A process as the walk over all tasks shows it. */
#ifndef MRSCOPE_TASKS_H
#define MRSCOPE_TASKS_H

#include "process.h"
#include "types.h"

/*
 * Pages are base pages, whatever backs them. The kernel's own counters are signed, and its bugs can
 * take them below zero.
 */
struct task {
	struct process_key key;
	char comm[COMM_BYTES]; /* of the leader; bytes behind the NUL mean nothing */
	__u64 memory;	       /* address of the mm, to tell who shares one; 0 once it has none */
	__s64 pinned_pages;
	__s64 locked_pages;
	__s64 hugetlb_pages;
	__s64 page_table_bytes;
	__u64 memlock_bytes; /* soft RLIMIT_MEMLOCK; all ones is no limit */
	__u32 locks_future;  /* mlockall(MCL_FUTURE) is in force */
	__u32 has_hugetlb;   /* the kernel has hugetlbfs */
	__u32 may_exceed;    /* CAP_IPC_LOCK in the initial user namespace: no limit holds */
	__u32 unused;
};

#endif
