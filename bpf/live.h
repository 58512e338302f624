/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps of registrations alone, and how live pins move the figures of devices and processes. */
#ifndef MRSCOPE_LIVE_H
#define MRSCOPE_LIVE_H

#include "maps.h"
#include "umem.h"

MAP(pins, BPF_MAP_TYPE_HASH, 131072, __u64, struct pin);
MAP(totals, BPF_MAP_TYPE_HASH, 512, struct totals_key, struct totals);
MAP(failures, BPF_MAP_TYPE_HASH, 2048, struct failure_key, __u64);
MAP(last_failures, BPF_MAP_TYPE_HASH, 1 << LAST_FAILURE_SLOT_BITS, __u32, struct last_failure);
MAP(devices, BPF_MAP_TYPE_HASH, 256, __u64, struct device);
MAP(device_samples, BPF_MAP_TYPE_HASH, 8, __u64, struct device_sample);
MAP(totals_at_birth, BPF_MAP_TYPE_ARRAY, 1, __u32, struct totals);
MAP(sample_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct device_sample);

static __always_inline struct totals *enter_totals(__u64 device, __u32 kind)
{
	struct totals_key key = {.device = device, .kind = kind};
	struct totals *row = bpf_map_lookup_elem(&totals, &key);

	if (!row) {
		__u32 zero = 0;
		void *born = bpf_map_lookup_elem(&totals_at_birth, &zero);
		__s32 error;

		if (!born)
			return 0;
		error = bpf_map_update_elem(&totals, &key, born, BPF_NOEXIST);
		if (error && error != -EEXIST) {
			count_lost(LOST_TOTALS_FULL);
			return 0;
		}
		row = bpf_map_lookup_elem(&totals, &key);
	}
	return row;
}

static __always_inline void raise_largest(struct process *row, __u64 bytes)
{
	/*
	 * Racing writers may lose a maximum, or two first MRs keep the old one: the next
	 * registration of that size, or from none, puts it right.
	 */
	if (row->active == 1 || bytes > row->largest_bytes)
		row->largest_bytes = bytes;
}

/* Takes a pin into the live figures (by = 1), or out of them (by = -1). */
static __always_inline void move_live(const struct pin *pin, struct process *process,
				      struct totals *totals_row, __s64 by)
{
	__s64 pinned = by * (__s64)pin->pinned_bytes;
	__s64 length = by * (__s64)pin->length_bytes;
	__u32 use = pin->use;

	if (totals_row && use < USES) {
		__sync_fetch_and_add(&totals_row->pinned_bytes[use], pinned);
		if (use == USE_MR) {
			__sync_fetch_and_add(&totals_row->active, by);
			__sync_fetch_and_add(&totals_row->active_bytes, length);
		}
	}
	if (process) {
		__sync_fetch_and_add(&process->pinned_bytes, pinned);
		if (use == USE_MR) {
			__sync_fetch_and_add(&process->active, by);
			__sync_fetch_and_add(&process->active_bytes, length);
		}
	}
}

#endif
