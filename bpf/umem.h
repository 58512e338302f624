/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of pinned user memory: one row per live umem, and what each device holds. */
#ifndef MRSCOPE_UMEM_H
#define MRSCOPE_UMEM_H

#include "hist.h"
#include "process.h"
#include "types.h"

enum pin_use {
	USE_MR,
	USE_QUEUE, /* rings and doorbells of QPs, CQs, SRQs: pinned outside any registration */
	USE_DEVX,
	USES,
};

enum mr_kind {
	KIND_HOST,
	KIND_ODP,
	KIND_DMABUF,
	KIND_DM,
	KIND_PEER,
	KINDS,
};

/* A live umem, keyed by its kernel address. */
struct pin {
	struct process_key owner;
	__u64 device;
	__u64 born_ns; /* start of the call that made it */
	__u64 address;
	__u64 length_bytes;
	__u64 pinned_bytes; /* whole pages; 0 where nothing of the host is pinned */
	__u32 kind;
	__u32 use;
	__u32 committed; /* 0 until the call around the pin has succeeded */
	__u32 verb;	 /* of the call around it */
};

enum page_class {
	CLASS_BASE, /* smaller than 2 MiB */
	CLASS_2M,
	CLASS_1G,
	PAGE_CLASSES,
};

enum {
	PLACEMENT_NODES = 8,
	PLACES = PLACEMENT_NODES * PAGE_CLASSES,
};

/* On what a live umem of an MR lies, keyed as its pin; counted in base pages. */
struct placement {
	__u64 born_ns; /* as of its pin */
	__u32 entries; /* of its scatter list */
	__u32 unknown_pages;
	__u32 pages[PLACES]; /* by node, and there by class */
};

/*
 * How this kernel tells a page's size and node. Set before the load: where pages are not walked,
 * the walk is no part of the programs.
 */
struct placement_choice {
	__u32 walks;
	__u32 scatter_bytes;  /* of one entry */
	__u32 order_in_flags; /* of the second page of a folio (6.6 on); else beside its head */
	__u32 node_shift;     /* in the flags of a page */
	__u32 node_mask;
};

struct totals_key {
	__u64 device;
	__u32 kind;
	__u32 unused;
};

/* One device and kind of MR, since the start. */
struct totals {
	__u64 registration_ns;
	__u64 pin_ns;
	__u64 deregistration_ns;
	__u64 registered_bytes;
	__u64 repeats; /* registrations of what had been deregistered, and their time */
	__u64 repeat_ns;
	__u64 registration_slots[SLOTS];
	__u64 pin_slots[SLOTS];
	__u64 deregistration_slots[SLOTS];
	__u64 size_slots[SLOTS];
	__s64 active;
	__s64 active_bytes;
	__s64 pinned_bytes[USES];
	__u64 walk_ns;		/* of our own: looks at pinned pages, in no other time here */
	__u64 unknown_releases; /* calls that released an umem that has no row */
};

enum {
	DEVICE_NAME_BYTES = 64,
	DEVICE_SAMPLE_BYTES = 2048,
	DEVICE_SAMPLE_PIECE = 256,
};

/* A device that was seen, keyed by the id that all rows carry. */
struct device {
	__u64 pointer;
	char name[DEVICE_NAME_BYTES]; /* empty while nobody knows where ib_device keeps its name */
};

struct device_sample {
	__u32 length; /* what of the bytes could be read */
	char bytes[DEVICE_SAMPLE_BYTES];
};

#endif
