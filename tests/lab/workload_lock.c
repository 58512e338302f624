// SPDX-License-Identifier: Apache-2.0
/* The commands that lock memory, each by one system call with the very numbers that were asked. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What one thread did with one of the calls. */
struct outcome {
	struct calls good, failed;
};

struct locker {
	const struct options *options;
	char *addr;
	struct outcome outcomes[CALLS];
	int first_errno;
};

static const char *const call_names[CALLS] = {[CALL_MLOCK] = "mlock",
					      [CALL_MLOCK2] = "mlock2",
					      [CALL_MUNLOCK] = "munlock",
					      [CALL_MLOCKALL] = "mlockall",
					      [CALL_MUNLOCKALL] = "munlockall"};

static long issue(enum call call, char *addr, uint64_t bytes, uint64_t mode)
{
	switch (call) {
	case CALL_MLOCK:
		return syscall(SYS_mlock, addr, bytes);
	case CALL_MLOCK2:
		return syscall(SYS_mlock2, addr, bytes, mode);
	case CALL_MUNLOCK:
		return syscall(SYS_munlock, addr, bytes);
	case CALL_MLOCKALL:
		return syscall(SYS_mlockall, mode);
	default:
		return syscall(SYS_munlockall);
	}
}

static void issue_timed(struct locker *locker, enum call call, uint64_t mode)
{
	struct outcome *outcome = &locker->outcomes[call];
	uint64_t start = now_ns();
	long result = issue(call, locker->addr, locker->options->size, mode);
	int error = result ? errno : 0;
	uint64_t ns = now_ns() - start;

	calls_add(result ? &outcome->failed : &outcome->good, ns);
	if (error && !locker->first_errno)
		locker->first_errno = error;
}

static void run_locker(void *argument)
{
	struct locker *locker = argument;
	const struct options *options = locker->options;
	uint64_t rounds = options->rounds_given ? options->rounds : 1;

	for (uint64_t i = 0; i < rounds; i++) {
		if (options->call != CALL_EACH) {
			issue_timed(locker, (enum call)options->call, options->mode);
			continue;
		}
		/* Only of what comes: else each call walks the stacks of all threads. */
		issue_timed(locker, CALL_MLOCK, 0);
		issue_timed(locker, CALL_MUNLOCK, 0);
		issue_timed(locker, CALL_MLOCK2, 0);
		issue_timed(locker, CALL_MLOCKALL, MCL_FUTURE);
		issue_timed(locker, CALL_MUNLOCKALL, 0);
	}
}

static void outcome_merge(struct outcome *into, const struct outcome *from)
{
	calls_merge(&into->good, &from->good);
	calls_merge(&into->failed, &from->failed);
}

static void reply_outcome(const char *name, const struct outcome *outcome)
{
	char key[32];

	snprintf(key, sizeof(key), "%s_count", name);
	reply_number(key, outcome->good.count);
	reply_calls(name, &outcome->good);
	snprintf(key, sizeof(key), "%s_failed", name);
	reply_number(key, outcome->failed.count);
}

/* Where the first thread locks; the next ones right behind. NULL: no such memory. */
static char *first_address(const struct options *options, uint64_t bytes)
{
	uint64_t mapped;
	char *start = newest_mapping(&mapped);

	if (options->how_given)
		return options->how == HOW_UNMAPPED ? unmapped_address(bytes) : NULL;
	if (options->call == CALL_MLOCKALL || options->call == CALL_MUNLOCKALL)
		return (char *)BASE_PAGE_BYTES;
	return options->offset + bytes <= mapped ? start + options->offset : NULL;
}

void run_lock(const char *op, const struct options *options)
{
	uint64_t threads = options->threads, good = 0, failed = 0;
	char *start = first_address(options, options->size * threads);
	struct locker *lockers = calloc(threads, sizeof(*lockers));
	struct team_thread *team = calloc(threads, sizeof(*team));
	struct locker all = {0};
	struct gate gate;
	int error = 0;

	if (!start || !lockers || !team) {
		reply_error(op, ENOMEM, "expected a mapping that large, made by map");
		goto out;
	}
	for (uint64_t t = 0; t < threads; t++) {
		lockers[t].options = options;
		lockers[t].addr = start + t * options->size;
		team[t].run = run_locker;
		team[t].argument = &lockers[t];
	}
	/* Alone it is the thread that reads commands: no other's start and end is timed or locked.
	 */
	if (threads == 1)
		run_locker(&lockers[0]);
	else
		error = team_start(team, threads, &gate);
	if (error) {
		reply_error(op, error, "the threads could not be started");
		goto out;
	}
	if (threads > 1) {
		team_go(&gate);
		team_join(team, threads);
	}
	for (uint64_t t = 0; t < threads; t++) {
		for (int call = 0; call < CALLS; call++)
			outcome_merge(&all.outcomes[call], &lockers[t].outcomes[call]);
		if (!all.first_errno)
			all.first_errno = lockers[t].first_errno;
	}
	reply_open(op);
	for (int call = 0; call < CALLS; call++) {
		const struct outcome *outcome = &all.outcomes[call];

		if (outcome->good.count || outcome->failed.count)
			reply_outcome(call_names[call], outcome);
		good += outcome->good.count;
		failed += outcome->failed.count;
	}
	reply_number("bytes", options->size * (all.outcomes[CALL_MLOCK].good.count +
					       all.outcomes[CALL_MLOCK2].good.count));
	reply_errno(all.first_errno);
	reply_number("vmlck", read_self().vmlck);
	reply_close(options->fail ? !good : !failed);
out:
	free(lockers);
	free(team);
}

void run_mlock(const char *op, const struct options *options)
{
	char *start =
	    mmap(NULL, options->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (start == MAP_FAILED || mlock(start, options->size)) {
		reply_error(op, errno, "the buffer could not be locked");
		return;
	}
	reply_open(op);
	reply_number("vmlck", read_self().vmlck);
	reply_close(true);
}

void run_mlockall(const char *op, const struct options *options)
{
	(void)options;
	if (mlockall(MCL_FUTURE)) {
		reply_error(op, errno, "mlockall failed");
		return;
	}
	reply_open(op);
	reply_number("vmlck", read_self().vmlck);
	reply_close(true);
}
