/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of the system calls that lock memory: one row a call, and what a thread is in. */
#ifndef MRSCOPE_MLOCK_H
#define MRSCOPE_MLOCK_H

#include "hist.h"
#include "process.h"
#include "types.h"

enum mlock_syscall {
	SYSCALL_MLOCK,
	SYSCALL_MLOCK2,
	SYSCALL_MLOCKALL,
	SYSCALL_MUNLOCK,
	SYSCALL_MUNLOCKALL,
	MLOCK_SYSCALLS,
};

/* What they fail with. The order is the order of rows on the page. */
enum mlock_error {
	ERROR_EPERM,
	ERROR_EINTR,
	ERROR_EAGAIN,
	ERROR_ENOMEM,
	ERROR_EINVAL,
	ERROR_OTHER,
	MLOCK_ERRORS,
};

/* One system call, since the start. */
struct mlock_totals {
	__u64 ns;
	__u64 bytes; /* as they were asked for, of mlock and mlock2 */
	__u64 slots[SLOTS];
	__u64 failures[MLOCK_ERRORS];
};

/* A thread that has called one of them; goes with the thread. */
struct mlock_thread {
	struct process_key owner; /* tgid 0 until it was asked for */
	__u64 start_ns;		  /* 0 outside of a call */
	__u64 length_bytes;
	__u32 syscall;
	__u32 unused;
};

/* Set before the load: what is switched off is no part of the programs. */
struct mlock_choice {
	__u32 has_thread_storage;
	__u32 per_process;
};

#endif
