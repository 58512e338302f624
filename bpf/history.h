/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which MRs were deregistered, so that one that is registered again is known. The table is of
 * sets: what an MR is decides its set, and in a full set the one that was deregistered longest ago
 * makes way. No LRU of the kernel, which tells nobody what it drops, and drops before it is full.
 */
#ifndef MRSCOPE_HISTORY_H
#define MRSCOPE_HISTORY_H

#include "live.h"

MAP(history, BPF_MAP_TYPE_ARRAY, 8192, __u32, struct history_set);
/* Mapped by user space, which need not look it up: see rows.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct history_use);
} history_use SEC(".maps");

/* Of process, device and memory. Of 65,536 MRs two share one in 4 x 10^9 tables. */
static __always_inline __u64 print_of(const struct call *call)
{
	__u64 sum = mix(mix(0, call->owner.start_boottime_ns), call->owner.tgid);

	return mix(mix(mix(sum, call->device), call->address), call->length_bytes) | 1;
}

/* Whether its address tells which memory it is: a dmabuf's is an offset, device memory has none. */
static __always_inline int has_place(const struct call *call)
{
	return call->owner.tgid && call->length_bytes && call->kind != KIND_DMABUF;
}

static __always_inline struct history_set *history_of(__u64 print)
{
	const struct settings *set = the_settings();
	__u32 row;

	if (!set)
		return 0;
	row = ((print >> 32) * set->history_sets) >> 32;
	return bpf_map_lookup_elem(&history, &row);
}

/* Whether what was registered had been deregistered before. */
static __noinline int came_back(const struct call *call)
{
	__u64 print = print_of(call);
	struct history_set *set;
	int i;

	/* A rereg changes an MR that lives. */
	if (!call->pins_made || call->verb == VERB_REREG_MR || !has_place(call))
		return 0;
	set = history_of(print);
	if (!set)
		return 0;
#pragma unroll
	for (i = 0; i < HISTORY_PLACES; i++)
		if (set->prints[i] == print)
			return 1;
	return 0;
}

/*
 * Two CPUs that take one place at once leave one of both MRs there, uncounted: it is back with its
 * next deregistration.
 */
static __noinline int remember(const struct call *call)
{
	__u64 print = print_of(call);
	__u64 now = bpf_ktime_get_ns();
	__u64 oldest_ns = now;
	__u32 oldest = 0;
	__u32 zero = 0;
	struct history_use *use;
	struct history_set *set;
	int i;

	/* A process that is about to end comes back for none. */
	if (!has_place(call) || current_is_exiting())
		return 0;
	set = history_of(print);
	use = bpf_map_lookup_elem(&history_use, &zero);
	if (!set || !use)
		return 0;
#pragma unroll
	for (i = 0; i < HISTORY_PLACES; i++) {
		if (set->prints[i] == print) {
			set->seen_ns[i] = now;
			return 0;
		}
		if (set->seen_ns[i] < oldest_ns) {
			oldest_ns = set->seen_ns[i];
			oldest = i;
		}
	}
	oldest &= HISTORY_PLACES - 1;
	if (!set->prints[oldest]) {
		__sync_fetch_and_add(&use->taken, 1);
	} else {
		struct process_key owner = set->owners[oldest];

		/* What the dead had registered nobody misses. */
		if (bpf_map_lookup_elem(&processes, &owner))
			__sync_fetch_and_add(&use->forgotten, 1);
	}
	set->prints[oldest] = print;
	set->seen_ns[oldest] = now;
	set->owners[oldest] = call->owner;
	return 0;
}

#endif
