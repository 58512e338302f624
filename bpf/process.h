/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who did it, and what each process did and holds. The identity that both languages share. */
#ifndef MRSCOPE_PROCESS_H
#define MRSCOPE_PROCESS_H

#include "types.h"

/* A pid alone is reused; with the leader's start time it is not. */
struct process_key {
	__u64 start_boottime_ns;
	__u32 tgid;
	__u32 unused;
};

enum {
	COMM_BYTES = 16,
	/* At most 100 us, 1 ms, 10 ms, 100 ms, 1 s, 10 s, and more. */
	PROCESS_SLOTS = 7,
};

/* Why a registration failed. The order is the order of rows on the page. */
enum failure_cause {
	CAUSE_REFUSED,	    /* no pin was attempted */
	CAUSE_DEVICE,	    /* the pin went well, what followed did not */
	CAUSE_MEMLOCK_ZERO, /* RLIMIT_MEMLOCK is 0 */
	CAUSE_MEMLOCK_LIMIT,
	CAUSE_NO_MEMORY,
	CAUSE_INTERRUPTED,
	CAUSE_BAD_ADDRESS,
	CAUSE_HUGEPAGE_UNAVAILABLE, /* the pool has no page for a mapping of it */
	CAUSE_INVALID,
	CAUSE_OTHER,
	CAUSES,
};

/*
 * One process. Counters rise by XADD from every CPU; 5.10 has no fetching atomics, so live figures
 * are signed and user space clamps. A release lowers the figures of the process that registered.
 */
struct process {
	char comm[COMM_BYTES];
	__u32 named; /* comm is written; a row is born without */
	__u32 unused;
	__u64 cgroup_id; /* of cgroup v2, at the first event */
	__u64 registration_ns;
	__u64 registration_slots[PROCESS_SLOTS];
	__u64 repeats; /* registrations of what had been deregistered, and their time */
	__u64 repeat_ns;
	__u64 failures[CAUSES];
	__u64 lock_calls; /* of mlock and its kin that succeeded */
	__u64 lock_ns;
	__s64 active;
	__s64 active_bytes;
	__s64 pinned_bytes;  /* whole pages, of queues too */
	__s64 live_pins;     /* rows of the pins map that name this process */
	__u64 largest_bytes; /* largest MR since the process last held none */
};

#endif
