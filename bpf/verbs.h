/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of whole verbs: the call that a thread is in, failures, and what user space tells us. */
#ifndef MRSCOPE_VERBS_H
#define MRSCOPE_VERBS_H

#include "process.h"
#include "types.h"

enum verb {
	VERB_NONE, /* a pin outside any registration */
	VERB_REG_MR,
	VERB_REREG_MR,
	VERB_REG_DMABUF_MR,
	VERB_REG_MR_IOCTL, /* 6.18 and later: 5b2e45049dc0 */
	VERB_DM_MR_REG,
	VERB_DEVX_UMEM_REG,
	VERB_DEREG_MR,
	VERB_MLOCK, /* or one of its kin */
};

enum {
	PINS_PER_CALL = 2,
};

/* Where in a scatter list the walk over pinned pages is. */
struct walk {
	__u64 entry;   /* that comes next */
	__u64 page;    /* its struct page, of the entry before */
	__u32 entries; /* left, with the next */
	__u32 pages;   /* left of the entry before */
	/* The last frame that held pages smaller than itself, or 0, and their place in the row. */
	__u64 base_frame;
	__u32 base_place;
	__u32 unused;
};

/* What one thread is in the middle of, keyed by pid_tgid. */
struct call {
	/* tgid 0 until it was asked for; of a deregistration, who had registered */
	struct process_key owner;
	__u64 start_ns;
	__u64 object; /* uverbs_attr_bundle of a registration, ib_mr of a deregistration */
	__u64 device;
	__u64 pin_start_ns;
	__u64 pin_ns;
	__u64 walk_ns; /* of our own: what it took to look at the pinned pages */
	__u64 address;
	__u64 length_bytes;
	__u64 umems[PINS_PER_CALL];
	struct walk walk;
	/* Of the memory as the pin began; of one that failed, as it ended if that is more. */
	__s64 pinned_pages;
	__u32 verb;
	__u32 kind;
	__u32 pin_depth; /* pin functions of the ladder that the thread is inside of */
	__u32 pins_tried;
	__u32 pins_made;
	__u32 pin_cause; /* of the last pin that failed */
	__u32 pin_failed;
	__u32 released_unknown; /* an umem without a row: from before the start, or lost */
	__u32 access;		/* rights that the pin was asked for */
	__u32 unused;
};

struct failure_key {
	__u64 device;
	__u32 error; /* errno as the kernel returned it */
	__u32 cause;
};

/*
 * A registration that failed, for people to read: the newest of each process, device and cause, or
 * of those that share a slot. What is replaced may be read still, in part old and in part new: then
 * its sum is wrong.
 */
struct last_failure {
	struct process_key owner;
	char comm[COMM_BYTES]; /* the leader's, at the failure */
	__u64 at_ns;	       /* monotonic */
	__u64 device;
	__u64 address;
	__u64 length_bytes;
	__u64 memlock_bytes; /* soft limit; all ones where there is none */
	__s64 pinned_pages;
	__u32 error;
	__u32 cause;
	__u32 kind;
	__u32 range_known;    /* a pin was tried, with address and length */
	__u32 memlock_exempt; /* CAP_IPC_LOCK, in the initial user namespace */
	__u32 unused;
	__u64 sum; /* of all words before */
};

enum {
	LAST_FAILURE_SLOT_BITS = 8,
	HISTORY_PLACES = 8, /* of a set; a power of two */
};

/* MRs that were deregistered, as many as there are places. */
struct history_set {
	__u64 prints[HISTORY_PLACES];  /* a hash of what each was; 0: the place is free */
	__u64 seen_ns[HISTORY_PLACES]; /* when it was last deregistered */
	struct process_key owners[HISTORY_PLACES];
};

/* Of all sets together. */
struct history_use {
	__u64 taken;	 /* places that are free no more */
	__u64 forgotten; /* MRs of living processes that made way for others */
};

/* One row, written by user space before the programs are attached and when it has learned more. */
struct settings {
	__u64
	    counting_since_ns; /* 0 until every probe is attached; what began earlier is not ours */
	__u32 page_bytes;
	__u32 device_name_offset;    /* in ib_device; OFFSET_UNKNOWN where no BTF tells */
	__u32 attrs_context_offset;  /* in uverbs_attr_bundle */
	__u32 context_device_offset; /* in ib_ucontext */
	__u32 history_sets;	     /* rows of the history */
	__u32 umem_list_offset;	     /* of the scatter list's address, in ib_umem */
	__u32 umem_entries_offset;   /* of the number of its entries */
	__u32 unused;
};

enum {
	OFFSET_UNKNOWN = 0xffffffff,
};

/* Updates that could not be made. Each is a row of the lost map. */
enum lost_reason {
	LOST_CALLS_FULL,
	LOST_CALLS_STALE, /* a call whose end was never seen */
	LOST_PINS_FULL,
	LOST_PINS_REPLACED, /* a umem whose release was never seen */
	LOST_PINS_PER_CALL,
	LOST_PINS_NOT_REMOVED, /* a release whose row the map would not give up */
	LOST_PROCESSES_FULL,
	LOST_TOTALS_FULL,
	LOST_DEVICES_FULL,
	LOST_FAILURES_FULL,
	LOST_LAST_FAILURES,   /* the map would not take one */
	LOST_THREADS_REFUSED, /* storage that a thread could not be given or asked for */
	LOST_PLACEMENTS_NO_MEMORY,
	LOST_REASONS,
};

#endif
