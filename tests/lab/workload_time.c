// SPDX-License-Identifier: Apache-2.0
/* The commands that time system calls without a device, over and over. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* So many that the two readings of the clock around them do not count. */
#define BATCH_CALLS 1000

static bool lock_pair(void *page, uint64_t *ns)
{
	uint64_t start = now_ns();

	if (mlock(page, BASE_PAGE_BYTES) || munlock(page, BASE_PAGE_BYTES))
		return false;
	*ns = now_ns() - start;
	return true;
}

void run_lock_pairs(const char *op, const struct options *options)
{
	uint64_t *pair = calloc(options->rounds, sizeof(*pair)), done = 0, ns;
	struct slots slots;
	int error;

	if (!pair || !slots_map(&slots, PAGES_4K, BASE_PAGE_BYTES, 1, true)) {
		reply_error(op, errno, "no memory for the page or the times");
		free(pair);
		return;
	}
	for (uint64_t i = 0; i < options->warmup; i++)
		if (!lock_pair(slots.base, &ns))
			break;
	while (done < options->rounds && lock_pair(slots.base, &pair[done]))
		done++;
	error = done < options->rounds ? errno : 0;
	reply_open(op);
	reply_errno(error);
	reply_number("pairs", done);
	reply_quantiles("pair", pair, done);
	reply_close(done == options->rounds);
	unmap(slots.base, slots.slot_bytes);
	free(pair);
}

/* One system call that has to do with nothing: what all of them pay. */
void run_batches(const char *op, const struct options *options)
{
	uint64_t *batch = calloc(options->rounds, sizeof(*batch));

	if (!batch) {
		reply_error(op, ENOMEM, "no memory for the times");
		return;
	}
	for (uint64_t i = 0; i < options->rounds; i++) {
		uint64_t start = now_ns();

		for (int call = 0; call < BATCH_CALLS; call++)
			syscall(SYS_getppid);
		batch[i] = now_ns() - start;
	}
	reply_open(op);
	reply_number("calls", BATCH_CALLS);
	reply_quantiles("batch", batch, options->rounds);
	reply_close(true);
	free(batch);
}
