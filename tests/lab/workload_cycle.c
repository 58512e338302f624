// SPDX-License-Identifier: Apache-2.0
/* The commands that register the same buffers again and again. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>

/* Registers and deregisters each of count buffers in turn; the first round and the others apart. */
void run_cycle(const char *op, const struct options *options)
{
	struct self_status before = read_self();
	struct tally first = {0}, later = {0};
	struct slots slots;
	uint64_t ns, deregistered;

	if (!slots_map(&slots, options->pages, options->offset + options->size, options->count,
		       options->touch)) {
		reply_error(op, errno, "the buffers could not be mapped");
		return;
	}
	for (uint64_t round = 0; round < options->rounds; round++) {
		struct tally *tally = round ? &later : &first;

		for (uint64_t i = 0; i < options->count; i++) {
			struct ibv_mr *mr =
			    register_timed(tally, slot_at(&slots, i) + options->offset,
					   options->size, (int)options->access, &ns);

			if (mr)
				deregister_timed(tally, mr, &ns);
		}
	}
	unmap(slots.base, slots.slot_bytes * slots.count);
	deregistered = first.dereg.count + later.dereg.count;
	reply_open(op);
	reply_number("address", (uintptr_t)slots.base);
	reply_number("later", later.reg.count);
	reply_calls("later", &later.reg);
	tally_merge(&first, &later);
	reply_number("registered", first.reg.count);
	reply_number("deregistered", deregistered);
	reply_calls("reg", &first.reg);
	reply_tally(&first, &before);
	reply_close(deregistered == options->rounds * options->count);
}
