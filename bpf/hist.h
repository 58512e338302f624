/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Histogram slots. Slot 0 counts values up to 2^12, slot i up to 2^(12+i), the last all above 2^38:
 * 4.096 us to 275 s for nanoseconds, 4 KiB to 256 GiB for bytes. A bound belongs to its slot, as
 * Prometheus' `le` does.
 */
#ifndef MRSCOPE_HIST_H
#define MRSCOPE_HIST_H

#include "types.h"

enum {
	SLOT_FIRST_LOG2 = 12,
	SLOT_LAST_LOG2 = 38,
	SLOTS = SLOT_LAST_LOG2 - SLOT_FIRST_LOG2 + 2,
};

#ifdef __bpf__

static __always_inline __u32 log2_floor(__u64 value)
{
	__u32 log = 0;

	if (value >> 32) {
		value >>= 32;
		log += 32;
	}
	if (value >> 16) {
		value >>= 16;
		log += 16;
	}
	if (value >> 8) {
		value >>= 8;
		log += 8;
	}
	if (value >> 4) {
		value >>= 4;
		log += 4;
	}
	if (value >> 2) {
		value >>= 2;
		log += 2;
	}
	return log + (value >> 1 ? 1 : 0);
}

/*
 * A global function: the verifier checks it once, by itself. Inlined thrice into one caller its
 * branches multiply to more states than any kernel takes.
 */
__noinline __u32 slot_of(__u64 value)
{
	__u32 ceiling;

	if (value <= 1ULL << SLOT_FIRST_LOG2)
		return 0;
	ceiling = log2_floor(value - 1) + 1;
	return ceiling > SLOT_LAST_LOG2 ? SLOTS - 1 : ceiling - SLOT_FIRST_LOG2;
}

/* The bound is checked next to its use: a spilled register loses it on older verifiers. */
static __always_inline void count_slot(__u64 *slots, __u64 value)
{
	__u32 slot = slot_of(value);

	if (slot < SLOTS)
		__sync_fetch_and_add(&slots[slot], 1);
}

#endif
#endif
