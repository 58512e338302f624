// SPDX-License-Identifier: Apache-2.0
/* The commands that register one buffer on all devices. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Memory that several workloads have in common. */
#define SHARED_FILE "/dev/shm/mrscope-lab-overlay"

/* A device that is opened for one command, and its newest MR. */
struct opened {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
};

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

/* Zeroed memory of bytes, of SHARED_FILE if that is asked for. NULL on failure. */
static char *map_overlay(uint64_t bytes, bool shared)
{
	int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	char *addr;

	if (shared) {
		fd = open(SHARED_FILE, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		flags = MAP_SHARED;
		if (fd < 0)
			return NULL;
		if (ftruncate(fd, (off_t)bytes)) {
			close(fd);
			return NULL;
		}
	}
	addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (fd >= 0)
		close(fd);
	return addr == MAP_FAILED ? NULL : addr;
}

/*
 * Count MRs on each device, each offset bytes behind the one before it in one buffer. They, their
 * memory and the devices stay until the process ends.
 */
void run_overlay(const char *op, const struct options *options)
{
	struct self_status before = read_self();
	uint64_t bytes = options->size + options->offset * (options->count - 1);
	struct tally tally = {0};
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct opened *all = calloc(count ? (size_t)count : 1, sizeof(*all));
	char *addr = map_overlay(bytes, options->share);

	if (!list || !all || !addr) {
		reply_error(op, errno, "no devices, or no memory");
	} else if (!open_all(all, list, count)) {
		reply_error(op, errno, "a device could not be opened");
	} else {
		memset(addr, 1, bytes);
		for (int i = 0; i < count; i++)
			for (uint64_t n = 0; n < options->count; n++) {
				char *start = addr + n * options->offset;

				all[i].mr = ibv_reg_mr(all[i].pd, start, options->size,
						       (int)options->access);
				if (!all[i].mr) {
					reply_error(op, errno, "an MR could not be registered");
					goto out;
				}
				tally.reg.count++;
				tally_bytes(&tally, start, options->size);
			}
		reply_open(op);
		reply_number("devices", (uint64_t)count);
		reply_number("registered", tally.reg.count);
		reply_number("address", (uintptr_t)addr);
		reply_tally(&tally, &before);
		reply_close(true);
	}
out:
	if (list)
		ibv_free_device_list(list);
	free(all);
}
