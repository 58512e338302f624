// SPDX-License-Identifier: Apache-2.0
/* The commands that register the same buffers again and again. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <stdlib.h>

/* A device that is opened for one command, and its MR. */
struct opened {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
};

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

static void close_all(struct opened *all, int count)
{
	for (int i = 0; i < count; i++) {
		if (all[i].pd && ibv_dealloc_pd(all[i].pd))
			die("ibv_dealloc_pd");
		if (all[i].context && ibv_close_device(all[i].context))
			die("ibv_close_device");
	}
}

static bool open_all(struct opened *all, struct ibv_device **list, int count)
{
	for (int i = 0; i < count; i++) {
		all[i].context = ibv_open_device(list[i]);
		if (!all[i].context)
			return false;
		all[i].pd = ibv_alloc_pd(all[i].context);
		if (!all[i].pd)
			return false;
	}
	return true;
}

/* One buffer on all devices at once, in each round. Stops at a failure. */
static bool spread_round(struct opened *all, int count, char *addr, const struct options *options,
			 uint64_t *registered)
{
	bool well = true;

	for (int i = 0; i < count; i++) {
		all[i].mr = ibv_reg_mr(all[i].pd, addr, options->size, (int)options->access);
		well &= all[i].mr != NULL;
		*registered += all[i].mr != NULL;
	}
	for (int i = 0; i < count; i++)
		if (all[i].mr && ibv_dereg_mr(all[i].mr))
			die("ibv_dereg_mr");
	return well;
}

void run_spread(const char *op, const struct options *options)
{
	struct slots slots;
	uint64_t registered = 0;
	bool well = true;
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct opened *all = calloc(count ? (size_t)count : 1, sizeof(*all));

	if (!list || !all) {
		reply_error(op, errno, "no list of devices");
		goto out;
	}
	if (!open_all(all, list, count)) {
		reply_error(op, errno, "a device could not be opened");
		goto out_devices;
	}
	if (!slots_map(&slots, options->pages, options->offset + options->size, 1,
		       options->touch)) {
		reply_error(op, errno, "the buffer could not be mapped");
		goto out_devices;
	}
	for (uint64_t round = 0; well && round < options->rounds; round++)
		well = spread_round(all, count, slots.base + options->offset, options, &registered);
	unmap(slots.base, slots.slot_bytes);
	reply_open(op);
	reply_number("devices", (uint64_t)count);
	reply_number("registered", registered);
	reply_close(well);
out_devices:
	close_all(all, count);
out:
	free(all);
	if (list)
		ibv_free_device_list(list);
}
