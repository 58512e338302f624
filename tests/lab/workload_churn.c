// SPDX-License-Identifier: Apache-2.0
/* The commands that end with as many MRs as they began with. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <linux/mman.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MAPPER_BYTES (256ull << 10)

/* One thread of a churn. */
struct share {
	const struct options *options;
	char *addr;
	uint64_t deadline_ns;
	uint64_t mapped;
	struct tally tally;
};

static atomic_bool churn_is_over;

static void churn_share(void *argument)
{
	struct share *share = argument;
	const struct options *options = share->options;
	uint64_t ns;

	for (uint64_t i = 0; i < options->rounds; i++) {
		struct ibv_mr *mr = register_timed(&share->tally, share->addr, options->size,
						   (int)options->access, &ns);

		if (mr && !deregister_timed(&share->tally, mr, &ns))
			return;
		if (now_ns() >= share->deadline_ns)
			return;
	}
}

static void map_share(void *argument)
{
	struct share *share = argument;

	while (!atomic_load(&churn_is_over)) {
		char *start = mmap(NULL, MAPPER_BYTES, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (start == MAP_FAILED)
			continue;
		touch_bytes(start, MAPPER_BYTES);
		unmap(start, MAPPER_BYTES);
		share->mapped++;
	}
}

void run_churn(const char *op, const struct options *given)
{
	struct self_status before = read_self();
	struct options options = *given;
	uint64_t all = options.threads + options.mappers, start, wall_ns, mapped = 0;
	struct share *shares = calloc(all, sizeof(*shares));
	struct team_thread *team = calloc(all, sizeof(*team));
	struct tally tally = {0};
	struct slots slots;
	struct gate gate;
	int error;

	if (options.seconds_given && !options.rounds_given)
		options.rounds = UNBOUNDED;
	if (!shares || !team) {
		reply_error(op, ENOMEM, "no memory for the threads");
		goto out;
	}
	if (!slots_map(&slots, options.pages, options.offset + options.size, options.threads,
		       options.touch)) {
		reply_error(op, errno, "the buffers could not be mapped");
		goto out;
	}
	atomic_store(&churn_is_over, false);
	for (uint64_t t = 0; t < all; t++) {
		shares[t].options = &options;
		if (t < options.threads)
			shares[t].addr = slot_at(&slots, t) + options.offset;
		team[t].run = t < options.threads ? churn_share : map_share;
		team[t].argument = &shares[t];
	}
	error = team_start(team, all, &gate);
	if (error) {
		reply_error(op, error, "the threads could not be started");
		goto out_slots;
	}
	start = now_ns();
	for (uint64_t t = 0; t < all; t++)
		shares[t].deadline_ns =
		    options.seconds_given ? start + options.seconds * 1000000000ull : UINT64_MAX;
	team_go(&gate);
	team_join(team, options.threads);
	wall_ns = now_ns() - start;
	atomic_store(&churn_is_over, true);
	team_join(team + options.threads, options.mappers);
	for (uint64_t t = 0; t < all; t++) {
		tally_merge(&tally, &shares[t].tally);
		mapped += shares[t].mapped;
	}
	reply_open(op);
	reply_number("registered", tally.reg.count);
	reply_number("deregistered", tally.dereg.count);
	reply_calls("reg", &tally.reg);
	reply_calls("dereg", &tally.dereg);
	reply_number("wall_ns", wall_ns);
	reply_number("mapped", mapped);
	reply_tally(&tally, &before);
	reply_close(!tally.reg_failed.count && tally.dereg.count == tally.reg.count);
out_slots:
	unmap(slots.base, slots.slot_bytes * slots.count);
out:
	free(shares);
	free(team);
}

static int compare_ns(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

void reply_quantiles(const char *what, uint64_t *ns, uint64_t count)
{
	uint64_t sum = 0;
	char key[32];

	qsort(ns, count, sizeof(*ns), compare_ns);
	for (uint64_t i = 0; i < count; i++)
		sum += ns[i];
	snprintf(key, sizeof(key), "%s_p10_ns", what);
	reply_number(key, count ? ns[(count - 1) / 10] : 0);
	snprintf(key, sizeof(key), "%s_median_ns", what);
	reply_number(key, count ? ns[(count - 1) / 2] : 0);
	snprintf(key, sizeof(key), "%s_mean_ns", what);
	reply_number(key, count ? sum / count : 0);
}

/* Stops at the first failure. The warm-up is in no figure. */
static void measure_pairs(const struct options *options, char *addr, uint64_t *reg, uint64_t *dereg,
			  struct tally *tally)
{
	struct tally warm = {0};
	struct ibv_mr *mr;
	uint64_t ns;

	for (uint64_t i = 0; i < options->warmup; i++) {
		mr = register_timed(&warm, addr, options->size, (int)options->access, &ns);
		if (!mr || !deregister_timed(&warm, mr, &ns)) {
			warm.reg = warm.dereg = (struct calls){0};
			warm.bytes = warm.pages_bytes = 0;
			*tally = warm;
			return;
		}
	}
	for (uint64_t i = 0; i < options->rounds; i++) {
		mr = register_timed(tally, addr, options->size, (int)options->access, &reg[i]);
		if (!mr || !deregister_timed(tally, mr, &dereg[i]))
			return;
	}
}

void run_pairs(const char *op, const struct options *options)
{
	struct self_status before = read_self();
	uint64_t *reg = calloc(options->rounds, sizeof(*reg));
	uint64_t *dereg = calloc(options->rounds, sizeof(*dereg));
	uint64_t *pair = calloc(options->rounds, sizeof(*pair));
	struct tally tally = {0};
	struct slots slots;
	uint64_t done;

	if (!reg || !dereg || !pair) {
		reply_error(op, ENOMEM, "no memory for the times");
		goto out;
	}
	if (!slots_map(&slots, options->pages, options->offset + options->size, 1,
		       options->touch)) {
		reply_error(op, errno, "the buffer could not be mapped");
		goto out;
	}
	measure_pairs(options, slots.base + options->offset, reg, dereg, &tally);
	unmap(slots.base, slots.slot_bytes);
	done = tally.dereg.count;
	for (uint64_t i = 0; i < done; i++)
		pair[i] = reg[i] + dereg[i];
	reply_open(op);
	reply_number("registered", tally.reg.count);
	reply_number("deregistered", done);
	reply_calls("reg", &tally.reg);
	reply_calls("dereg", &tally.dereg);
	reply_quantiles("reg", reg, done);
	reply_quantiles("dereg", dereg, done);
	reply_quantiles("pair", pair, done);
	reply_tally(&tally, &before);
	reply_close(done == options->rounds);
out:
	free(reg);
	free(dereg);
	free(pair);
}

/* A buffer whose registration must fail, the access flags and the length to ask for. */
static char *map_bad(const struct options *options, uint64_t *bytes, int *access, uint64_t *length)
{
	static const int reserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	bool huge = options->how == HOW_HUGEPAGE || options->how == HOW_READONLY;
	uint64_t page = huge ? 2ull << 20 : BASE_PAGE_BYTES;
	int rights = options->how == HOW_READONLY ? PROT_READ : PROT_READ | PROT_WRITE;
	char *start;

	*bytes = (options->size + page - 1) & ~(page - 1);
	*access = (int)options->access;
	*length = options->size;
	switch ((enum how)options->how) {
	case HOW_PROTNONE:
		return mmap(NULL, *bytes, PROT_NONE, reserve, -1, 0);
	case HOW_UNMAPPED:
		start = unmapped_address(*bytes);
		*bytes = 0;
		return start ? start : MAP_FAILED;
	case HOW_HUGEPAGE:
	case HOW_READONLY:
		/* Without a reservation mmap succeeds and the pool is asked at the pin. */
		return mmap(NULL, *bytes, rights, reserve | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
	case HOW_SOUND:
		return mmap(NULL, *bytes, rights, reserve, -1, 0);
	case HOW_IMPLICIT:
		/* All that there is, now and later. */
		*access |= IBV_ACCESS_ON_DEMAND;
		*length = SIZE_MAX;
		*bytes = 0;
		return NULL;
	case HOW_ACCESS:
		break;
	}
	*access = IBV_ACCESS_REMOTE_WRITE;
	return mmap(NULL, *bytes, PROT_READ | PROT_WRITE, reserve | MAP_POPULATE, -1, 0);
}

void run_fail(const char *op, const struct options *options)
{
	struct self_status before = read_self();
	struct tally tally = {0};
	uint64_t bytes, length, ns;
	int access;
	char *start = map_bad(options, &bytes, &access, &length);

	if (start == MAP_FAILED) {
		reply_error(op, errno, "the buffer could not be mapped");
		return;
	}
	for (uint64_t i = 0; i < options->count; i++) {
		struct ibv_mr *mr = register_timed(&tally, start, length, access, &ns);

		if (mr)
			deregister_timed(&tally, mr, &ns);
	}
	unmap(start, bytes);
	reply_open(op);
	reply_number("registered", tally.reg.count);
	reply_number("address", (uintptr_t)start);
	reply_number("size", options->size);
	reply_tally(&tally, &before);
	reply_close(tally.reg_failed.count == options->count);
}
