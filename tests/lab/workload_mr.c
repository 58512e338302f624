// SPDX-License-Identifier: Apache-2.0
/* The device, the timed calls, and the commands that keep, change or give back MRs. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <rdma/ib_user_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct held {
	struct ibv_mr *mr;
	void *slot;
	uint64_t slot_bytes;
};

/* One thread's share of a command. */
struct share {
	const struct options *options;
	const struct slots *slots;
	struct ibv_mr **mrs; /* by slot */
	uint64_t first, end; /* slots */
	pid_t tid;
	struct tally tally;
};

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_pd *other_pd; /* where rereg flags=pd moves an MR */
	struct held *held;	 /* oldest first */
	uint64_t held_count, held_room, held_bytes;
} lab;

struct ibv_pd *mr_pd(void)
{
	return lab.pd;
}

void mr_open(const char *device)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (!list)
		die("ibv_get_device_list");
	for (int i = 0; i < count && !lab.context; i++) {
		if (strcmp(ibv_get_device_name(list[i]), device) != 0)
			continue;
		lab.context = ibv_open_device(list[i]);
		if (!lab.context)
			die("ibv_open_device");
	}
	ibv_free_device_list(list);
	if (!lab.context) {
		errno = ENODEV;
		die(device);
	}
	lab.pd = ibv_alloc_pd(lab.context);
	if (!lab.pd)
		die("ibv_alloc_pd");
}

void calls_add(struct calls *calls, uint64_t ns)
{
	if (!calls->count || ns < calls->ns_min)
		calls->ns_min = ns;
	if (ns > calls->ns_max)
		calls->ns_max = ns;
	calls->ns_sum += ns;
	calls->count++;
}

void calls_merge(struct calls *into, const struct calls *from)
{
	if (from->count && (!into->count || from->ns_min < into->ns_min))
		into->ns_min = from->ns_min;
	if (from->ns_max > into->ns_max)
		into->ns_max = from->ns_max;
	into->ns_sum += from->ns_sum;
	into->count += from->count;
}

void tally_merge(struct tally *into, const struct tally *from)
{
	calls_merge(&into->reg, &from->reg);
	calls_merge(&into->dereg, &from->dereg);
	calls_merge(&into->reg_failed, &from->reg_failed);
	calls_merge(&into->dereg_failed, &from->dereg_failed);
	into->bytes += from->bytes;
	into->pages_bytes += from->pages_bytes;
	if (from->first_errno &&
	    (!into->first_errno || from->first_errno_at_ns < into->first_errno_at_ns)) {
		into->first_errno = from->first_errno;
		into->first_errno_at_ns = from->first_errno_at_ns;
	}
}

void tally_error(struct tally *tally, int error, uint64_t at_ns)
{
	if (tally->first_errno)
		return;
	tally->first_errno = error;
	tally->first_errno_at_ns = at_ns;
}

void tally_bytes(struct tally *tally, const void *addr, uint64_t length)
{
	uint64_t start = (uintptr_t)addr & ~(BASE_PAGE_BYTES - 1);
	uint64_t end = ((uintptr_t)addr + length + BASE_PAGE_BYTES - 1) & ~(BASE_PAGE_BYTES - 1);

	tally->bytes += length;
	tally->pages_bytes += end - start;
}

/* NULL on failure; the time of the call in *ns either way. */
struct ibv_mr *register_timed(struct tally *tally, void *addr, uint64_t length, int access,
			      uint64_t *ns)
{
	uint64_t start = now_ns();
	struct ibv_mr *mr = ibv_reg_mr(lab.pd, addr, length, access);
	int error = errno;

	*ns = now_ns() - start;
	if (!mr) {
		calls_add(&tally->reg_failed, *ns);
		tally_error(tally, error, start);
		return NULL;
	}
	calls_add(&tally->reg, *ns);
	tally_bytes(tally, addr, length);
	return mr;
}

bool deregister_timed(struct tally *tally, struct ibv_mr *mr, uint64_t *ns)
{
	uint64_t start = now_ns();
	int error = ibv_dereg_mr(mr);

	*ns = now_ns() - start;
	calls_add(error ? &tally->dereg_failed : &tally->dereg, *ns);
	if (error)
		tally_error(tally, error, start);
	return !error;
}

void reply_held(void)
{
	reply_number("active", lab.held_count);
	reply_number("active_bytes", lab.held_bytes);
}

void reply_calls(const char *call, const struct calls *calls)
{
	char key[32];

	snprintf(key, sizeof(key), "%s_ns_sum", call);
	reply_number(key, calls->ns_sum);
	snprintf(key, sizeof(key), "%s_ns_min", call);
	reply_number(key, calls->ns_min);
	snprintf(key, sizeof(key), "%s_ns_max", call);
	reply_number(key, calls->ns_max);
}

void reply_tally(const struct tally *tally, const struct self_status *before)
{
	struct self_status after = read_self();

	reply_number("bytes", tally->bytes);
	reply_number("pages_bytes", tally->pages_bytes);
	reply_number("failed", tally->reg_failed.count + tally->dereg_failed.count);
	reply_number("fail_ns_sum", tally->reg_failed.ns_sum + tally->dereg_failed.ns_sum);
	reply_errno(tally->first_errno);
	reply_number("vmpin_before", before->vmpin);
	reply_number("vmpin_after", after.vmpin);
	reply_number("vmlck_after", after.vmlck);
	reply_held();
}

static bool make_room(uint64_t count)
{
	uint64_t room = lab.held_count + count;
	struct held *held;

	if (room <= lab.held_room)
		return true;
	if (room < lab.held_room * 2)
		room = lab.held_room * 2;
	held = realloc(lab.held, room * sizeof(*held));
	if (!held)
		return false;
	lab.held = held;
	lab.held_room = room;
	return true;
}

/* Keeps the slots that became MRs and unmaps the others, run by run. */
static void keep_registered(const struct slots *slots, struct ibv_mr *const *mrs)
{
	uint64_t run = 0;

	for (uint64_t i = 0; i <= slots->count; i++) {
		if (i < slots->count && !mrs[i]) {
			run++;
			continue;
		}
		unmap(slot_at(slots, i - run), run * slots->slot_bytes);
		run = 0;
		if (i == slots->count)
			break;
		lab.held[lab.held_count++] = (struct held){
		    .mr = mrs[i], .slot = slot_at(slots, i), .slot_bytes = slots->slot_bytes};
		lab.held_bytes += mrs[i]->length;
	}
}

static void register_share(void *argument)
{
	struct share *share = argument;
	const struct options *options = share->options;
	uint64_t ns;

	share->tid = (pid_t)syscall(SYS_gettid);
	for (uint64_t i = share->first; i < share->end; i++)
		share->mrs[i] =
		    register_timed(&share->tally, slot_at(share->slots, i) + options->offset,
				   options->size, (int)options->access, &ns);
}

/* new_thread: the calls never come from the main thread, not even with threads=1. */
static int register_slots(const struct options *options, const struct slots *slots,
			  struct ibv_mr **mrs, bool new_thread, struct tally *tally, pid_t *tid)
{
	uint64_t threads = options->threads, each = slots->count / threads;
	struct share *shares = calloc(threads, sizeof(*shares));
	struct team_thread *team = calloc(threads, sizeof(*team));
	struct gate gate;
	int error = 0;

	if (!shares || !team) {
		error = ENOMEM;
		goto out;
	}
	for (uint64_t t = 0; t < threads; t++) {
		shares[t] = (struct share){.options = options,
					   .slots = slots,
					   .mrs = mrs,
					   .first = t * each,
					   .end = t + 1 == threads ? slots->count : (t + 1) * each};
		team[t].run = register_share;
		team[t].argument = &shares[t];
	}
	if (threads == 1 && !new_thread) {
		register_share(&shares[0]);
	} else {
		error = team_start(team, threads, &gate);
		if (error)
			goto out;
		team_go(&gate);
		team_join(team, threads);
	}
	for (uint64_t t = 0; t < threads; t++)
		tally_merge(tally, &shares[t].tally);
	*tid = shares[0].tid;
out:
	free(shares);
	free(team);
	return error;
}

static void register_and_keep(const char *op, const struct options *options, bool new_thread)
{
	struct self_status before = read_self();
	struct tally tally = {0};
	struct ibv_mr **mrs;
	struct slots slots;
	bool mapped;
	pid_t tid = 0;
	int error;

	if (options->threads > options->count) {
		reply_error(op, 0, "threads: expected at most count");
		return;
	}
	mrs = calloc(options->count, sizeof(struct ibv_mr *));
	if (!mrs || !make_room(options->count)) {
		reply_error(op, ENOMEM, "no memory for the list of MRs");
		free(mrs);
		return;
	}
	mapped = (!options->node_given || !take_pages_from(&options->node)) &&
		 slots_map(&slots, options->pages, options->offset + options->size, options->count,
			   options->touch);
	if (options->node_given && take_pages_from(NULL))
		die("set_mempolicy");
	if (!mapped) {
		reply_error(op, errno, "the buffers could not be mapped");
		free(mrs);
		return;
	}
	error = register_slots(options, &slots, mrs, new_thread, &tally, &tid);
	keep_registered(&slots, mrs);
	free(mrs);
	if (error) {
		reply_error(op, error, "the threads could not be started");
		return;
	}
	reply_open(op);
	reply_number("registered", tally.reg.count);
	reply_calls("reg", &tally.reg);
	reply_number("tid", (uint64_t)tid);
	reply_tally(&tally, &before);
	reply_close(!tally.reg_failed.count);
}

void run_reg(const char *op, const struct options *options)
{
	register_and_keep(op, options, false);
}

void run_thread(const char *op, const struct options *options)
{
	register_and_keep(op, options, true);
}

/* Newest first: munmap then only trims mappings and never splits one. Stops at a failure. */
static void deregister_newest(struct tally *tally, uint64_t count)
{
	uint64_t ns;

	for (; count && lab.held_count; count--) {
		struct held *newest = &lab.held[lab.held_count - 1];
		void *addr = newest->mr->addr;
		uint64_t length = newest->mr->length;

		if (!deregister_timed(tally, newest->mr, &ns))
			return;
		tally_bytes(tally, addr, length);
		unmap(newest->slot, newest->slot_bytes);
		lab.held_bytes -= length;
		lab.held_count--;
	}
}

void run_dereg(const char *op, const struct options *options)
{
	struct self_status before = read_self();
	struct tally tally = {0};

	deregister_newest(&tally, options->count);
	reply_open(op);
	reply_number("deregistered", tally.dereg.count);
	reply_calls("dereg", &tally.dereg);
	reply_tally(&tally, &before);
	reply_close(options->count == UNBOUNDED ? !lab.held_count
						: tally.dereg.count == options->count);
}

int mr_close(void)
{
	struct tally tally = {0};

	deregister_newest(&tally, UNBOUNDED);
	free(lab.held);
	if (lab.held_count)
		return tally.first_errno;
	if (lab.other_pd && ibv_dealloc_pd(lab.other_pd))
		return errno;
	if (ibv_dealloc_pd(lab.pd) || ibv_close_device(lab.context))
		return errno;
	return 0;
}

/*
 * The uverbs command itself: the library's provider for soft RoCE has no ibv_rereg_mr, while
 * newer kernels' drivers have the command.
 */
static int rereg_by_kernel(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
			   size_t length, int access)
{
	struct ib_uverbs_rereg_mr_resp response = {0};
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_rereg_mr body;
	} command = {
	    .header = {.command = IB_USER_VERBS_CMD_REREG_MR,
		       .in_words = sizeof(command) / 4,
		       .out_words = sizeof(response) / 4},
	    .body = {.response = (uintptr_t)&response,
		     .mr_handle = mr->handle,
		     .flags = (uint32_t)flags,
		     .start = (uintptr_t)addr,
		     .length = length,
		     .hca_va = (uintptr_t)addr,
		     .pd_handle = pd ? pd->handle : 0,
		     .access_flags = (uint32_t)access},
	};

	if (write(mr->context->cmd_fd, &command, sizeof(command)) != (ssize_t)sizeof(command))
		return IBV_REREG_MR_ERR_CMD;
	mr->lkey = response.lkey;
	mr->rkey = response.rkey;
	if (pd)
		mr->pd = pd;
	if (addr) {
		mr->addr = addr;
		mr->length = length;
	}
	return 0;
}

void run_rereg(const char *op, const struct options *options)
{
	struct self_status before = read_self();
	int (*rereg)(struct ibv_mr *, int, struct ibv_pd *, void *, size_t, int) =
	    options->via == VIA_KERNEL ? rereg_by_kernel : ibv_rereg_mr;
	bool moves = options->flags & IBV_REREG_MR_CHANGE_TRANSLATION;
	uint64_t length, old_length, start, ns;
	char *target = NULL;
	struct slots slots = {0};
	struct held *newest;
	struct ibv_pd *pd = NULL;
	int code, error, access = 0;

	if (!lab.held_count) {
		reply_error(op, 0, "no MR is held");
		return;
	}
	if (!lab.other_pd)
		lab.other_pd = ibv_alloc_pd(lab.context);
	if (!lab.other_pd) {
		reply_error(op, errno, "no second PD");
		return;
	}
	newest = &lab.held[lab.held_count - 1];
	old_length = newest->mr->length;
	length = options->size_given ? options->size : old_length;
	if (moves &&
	    !slots_map(&slots, options->pages, options->offset + length, 1, options->touch)) {
		reply_error(op, errno, "the new buffer could not be mapped");
		return;
	}
	if (moves)
		target =
		    options->how_given ? unmapped_address(length) : slots.base + options->offset;
	/* The library refuses arguments whose flag is not set. */
	if (options->flags & IBV_REREG_MR_CHANGE_PD)
		pd = newest->mr->pd == lab.pd ? lab.other_pd : lab.pd;
	if (options->flags & IBV_REREG_MR_CHANGE_ACCESS)
		access = (int)options->access;
	errno = 0;
	start = now_ns();
	code = rereg(newest->mr, (int)options->flags, pd, target, moves ? length : 0, access);
	error = errno;
	ns = now_ns() - start;
	if (moves && !code) {
		unmap(newest->slot, newest->slot_bytes);
		newest->slot = slots.base;
		newest->slot_bytes = slots.slot_bytes;
		lab.held_bytes += newest->mr->length - old_length;
	} else if (moves) {
		unmap(slots.base, slots.slot_bytes);
	}
	reply_open(op);
	reply_signed("code", code);
	reply_number("rereg_ns", ns);
	reply_number("bytes", newest->mr->length);
	reply_errno(code ? error : 0);
	reply_number("vmpin_before", before.vmpin);
	reply_number("vmpin_after", read_self().vmpin);
	reply_held();
	reply_close(!code);
}
