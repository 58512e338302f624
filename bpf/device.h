/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which device a call is for: an id for all rows, and its name once it is known where that is. */
#ifndef MRSCOPE_DEVICE_H
#define MRSCOPE_DEVICE_H

#include "live.h"

#define NAME_WORDS (DEVICE_NAME_BYTES / 8)

/* Copies the start of a device once, so that user space can find where its name is. */
static __always_inline void sample_device(__u64 pointer)
{
	struct device_sample *scratch;
	__u32 zero = 0;
	int at;

	if (bpf_map_lookup_elem(&device_samples, &pointer))
		return;
	scratch = bpf_map_lookup_elem(&sample_scratch, &zero);
	if (!scratch)
		return;
	scratch->length = 0;
#pragma unroll
	for (at = 0; at < DEVICE_SAMPLE_BYTES; at += DEVICE_SAMPLE_PIECE) {
		/* Piece by piece: the device may end before the sample does. */
		if (bpf_probe_read_kernel(scratch->bytes + at, DEVICE_SAMPLE_PIECE,
					  (void *)(pointer + at)))
			break;
		scratch->length = at + DEVICE_SAMPLE_PIECE;
	}
	bpf_map_update_elem(&device_samples, &pointer, scratch, BPF_NOEXIST);
}

/*
 * The id of a device: a mix of its name, so that an address reused by another device, or a rename,
 * makes another id. While the name's offset is unknown the address serves; user space joins both.
 * A global function, so that it is verified once.
 */
__noinline __u64 device_id(__u64 pointer)
{
	const struct settings *set = the_settings();
	struct device seen = {.pointer = pointer};
	__u64 *words = (__u64 *)seen.name;
	__u64 id = pointer;
	int i;

	if (!set || !pointer)
		return 0;
	if (set->device_name_offset == OFFSET_UNKNOWN) {
		sample_device(pointer);
	} else {
		/* Whole: what a rename leaves behind the NUL makes another id of the same name. */
		if (bpf_probe_read_kernel(seen.name, sizeof(seen.name),
					  (void *)(pointer + set->device_name_offset)))
			return 0;
		id = 0xcbf29ce484222325ULL;
#pragma unroll
		for (i = 0; i < NAME_WORDS; i++)
			id = mix(id, words[i]);
	}
	if (!bpf_map_lookup_elem(&devices, &id)) {
		__s32 error = bpf_map_update_elem(&devices, &id, &seen, BPF_NOEXIST);

		if (error && error != -EEXIST) {
			count_lost(LOST_DEVICES_FULL);
			return 0;
		}
	}
	return id;
}

#endif
