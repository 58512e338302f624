/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps that all objects share, each named by what a row is, and how a row is found or made.
 * Hashes are preallocated: an allocation inside a probe warns on kernels before 6.1 and can fail
 * on all (placements, which may lack a row, are made on demand from 6.1 on). User space may change
 * max_entries before the load. None is an LRU: a full map is counted in `lost`, never healed by
 * forgetting a live row.
 *
 * Results of map helpers are taken as 32 bits: before 6.4 (d7ba4cc900bf) the verifier calls the
 * map's own function, whose int leaves the upper half of the register as it was.
 */
#ifndef MRSCOPE_MAPS_H
#define MRSCOPE_MAPS_H

#include "kernel.h"
#include "process.h"
#include "verbs.h"

#define MAP(name_, type_, entries_, key_, value_)                                                  \
	struct {                                                                                   \
		__uint(type, type_);                                                               \
		__uint(max_entries, entries_);                                                     \
		__type(key, key_);                                                                 \
		__type(value, value_);                                                             \
	} name_ SEC(".maps")

MAP(settings, BPF_MAP_TYPE_ARRAY, 1, __u32, struct settings);
/* Mapped by user space, which need not look it up: see rows.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LOST_REASONS);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");
/* Each return probe follows 4096 calls at most; more threads than that inside are counted lost. */
MAP(calls, BPF_MAP_TYPE_HASH, 4096, __u64, struct call);
MAP(processes, BPF_MAP_TYPE_HASH, 8192, struct process_key, struct process);
/* Zeros to make rows from, which are too large for the stack. */
MAP(process_at_birth, BPF_MAP_TYPE_ARRAY, 1, __u32, struct process);

static __always_inline void count_lost(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&lost, &reason);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline const struct settings *the_settings(void)
{
	__u32 row = 0;

	return bpf_map_lookup_elem(&settings, &row);
}

/* A call that began before all probes were attached was seen in part only. */
static __always_inline int began_before_us(const struct call *call)
{
	const struct settings *set = the_settings();

	return !set || !set->counting_since_ns || call->start_ns < set->counting_since_ns;
}

static __always_inline __u64 mix(__u64 sum, __u64 word)
{
	return (sum ^ word ^ (word >> 29)) * 0x9e3779b97f4a7c15ULL;
}

static __always_inline void current_owner(struct process_key *owner)
{
	struct task_struct *leader = BPF_CORE_READ(current_task(), group_leader);

	owner->start_boottime_ns = BPF_CORE_READ(leader, start_boottime);
	owner->tgid = bpf_get_current_pid_tgid() >> 32;
}

/* Fills in whose call it is, once. */
static __always_inline void learn_owner(struct call *call)
{
	if (!call->owner.tgid)
		current_owner(&call->owner);
}

/* The caller's row, made at its first event with the name that its leader had then. */
static __always_inline struct process *enter_process(const struct process_key *key)
{
	struct process *row = bpf_map_lookup_elem(&processes, key);
	__u32 zero = 0;
	void *born;
	__s32 error;

	if (row)
		return row;
	born = bpf_map_lookup_elem(&process_at_birth, &zero);
	if (!born)
		return 0;
	error = bpf_map_update_elem(&processes, key, born, BPF_NOEXIST);
	if (error && error != -EEXIST) {
		count_lost(LOST_PROCESSES_FULL);
		return 0;
	}
	row = bpf_map_lookup_elem(&processes, key);
	if (row && !error) {
		BPF_CORE_READ_INTO(&row->comm, current_task(), group_leader, comm);
		row->cgroup_id = bpf_get_current_cgroup_id();
		row->named = 1;
	}
	return row;
}

#endif
