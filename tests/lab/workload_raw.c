// SPDX-License-Identifier: Apache-2.0
/* The commands that register without the library: by write(), or by the ioctl of 6.18 and later. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* This machine's headers may be older than the method: 5b2e45049dc0. */
enum {
	METHOD_REG_MR = 5,
	REG_MR_HANDLE = 0,
	REG_MR_PD_HANDLE = 1,
	REG_MR_IOVA = 3,
	REG_MR_ADDR = 4,
	REG_MR_LENGTH = 5,
	REG_MR_ACCESS_FLAGS = 6,
	REG_MR_RESP_LKEY = 9,
	REG_MR_RESP_RKEY = 10,
	MOST_ATTRS = 8,
};

struct ioctl_command {
	struct ib_uverbs_ioctl_hdr header;
	struct ib_uverbs_attr attrs[MOST_ATTRS];
};

static struct {
	struct slots slots;
	uint32_t *handles;
	uint64_t size, held;
} raw;

static uint64_t *add_attr(struct ioctl_command *command, uint16_t id, uint16_t len, uint64_t data)
{
	struct ib_uverbs_attr *attr = &command->attrs[command->header.num_attrs++];

	*attr = (struct ib_uverbs_attr){
	    .attr_id = id, .len = len, .flags = UVERBS_ATTR_F_MANDATORY, .data = data};
	return (uint64_t *)&attr->data;
}

static int call_ioctl(struct ioctl_command *command, uint16_t method)
{
	struct ib_uverbs_ioctl_hdr *header = &command->header;

	header->object_id = UVERBS_OBJECT_MR;
	header->method_id = method;
	header->driver_id = RDMA_DRIVER_RXE;
	header->length =
	    (uint16_t)(sizeof(*header) + header->num_attrs * sizeof(command->attrs[0]));
	return ioctl(mr_pd()->context->cmd_fd, RDMA_VERBS_IOCTL, command) ? errno : 0;
}

static int register_by_ioctl(char *addr, uint64_t length, int access, uint32_t *handle)
{
	struct ioctl_command command = {0};
	uint32_t lkey, rkey;
	uint64_t *made = add_attr(&command, REG_MR_HANDLE, 0, 0);
	int error;

	add_attr(&command, REG_MR_PD_HANDLE, 0, mr_pd()->handle);
	add_attr(&command, REG_MR_IOVA, sizeof(uint64_t), (uintptr_t)addr);
	add_attr(&command, REG_MR_ADDR, sizeof(uint64_t), (uintptr_t)addr);
	add_attr(&command, REG_MR_LENGTH, sizeof(uint64_t), length);
	add_attr(&command, REG_MR_ACCESS_FLAGS, sizeof(uint32_t), (uint64_t)access);
	add_attr(&command, REG_MR_RESP_LKEY, sizeof(lkey), (uintptr_t)&lkey);
	add_attr(&command, REG_MR_RESP_RKEY, sizeof(rkey), (uintptr_t)&rkey);
	error = call_ioctl(&command, METHOD_REG_MR);
	*handle = (uint32_t)*made;
	return error;
}

static int deregister_by_ioctl(uint32_t handle)
{
	struct ioctl_command command = {0};

	add_attr(&command, UVERBS_ATTR_DESTROY_MR_HANDLE, 0, handle);
	return call_ioctl(&command, UVERBS_METHOD_MR_DESTROY);
}

static int register_by_write(char *addr, uint64_t length, int access, uint32_t *handle)
{
	struct ib_uverbs_reg_mr_resp response = {0};
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_reg_mr body;
	} command = {
	    .header = {.command = IB_USER_VERBS_CMD_REG_MR,
		       .in_words = sizeof(command) / 4,
		       .out_words = sizeof(response) / 4},
	    .body = {.response = (uintptr_t)&response,
		     .start = (uintptr_t)addr,
		     .length = length,
		     .hca_va = (uintptr_t)addr,
		     .pd_handle = mr_pd()->handle,
		     .access_flags = (uint32_t)access},
	};

	if (write(mr_pd()->context->cmd_fd, &command, sizeof(command)) != (ssize_t)sizeof(command))
		return errno;
	*handle = response.mr_handle;
	return 0;
}

static int deregister_by_write(uint32_t handle)
{
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_dereg_mr body;
	} command = {
	    .header = {.command = IB_USER_VERBS_CMD_DEREG_MR, .in_words = sizeof(command) / 4},
	    .body = {.mr_handle = handle},
	};
	ssize_t wrote = write(mr_pd()->context->cmd_fd, &command, sizeof(command));

	return wrote == (ssize_t)sizeof(command) ? 0 : errno;
}

void run_rawreg(const char *op, const struct options *options)
{
	struct self_status before = read_self();
	struct tally tally = {0};

	if (raw.held) {
		reply_error(op, 0, "MRs of an earlier rawreg are held");
		return;
	}
	raw.size = options->size;
	raw.handles = calloc(options->count, sizeof(*raw.handles));
	if (!raw.handles || !slots_map(&raw.slots, PAGES_4K, raw.size, options->count, true)) {
		reply_error(op, ENOMEM, "no memory for the MRs");
		free(raw.handles);
		return;
	}
	for (uint64_t i = 0; i < options->count; i++) {
		char *addr = slot_at(&raw.slots, i);
		uint64_t start = now_ns(), ns;
		int error = (options->by == BY_IOCTL ? register_by_ioctl : register_by_write)(
		    addr, raw.size, (int)options->access, &raw.handles[raw.held]);

		ns = now_ns() - start;
		calls_add(error ? &tally.reg_failed : &tally.reg, ns);
		if (error) {
			tally_error(&tally, error, start);
			continue;
		}
		tally_bytes(&tally, addr, raw.size);
		raw.held++;
	}
	reply_open(op);
	reply_number("registered", tally.reg.count);
	reply_calls("reg", &tally.reg);
	reply_tally(&tally, &before);
	reply_close(!tally.reg_failed.count);
}

/* All that rawreg made. */
void run_rawdereg(const char *op, const struct options *options)
{
	struct self_status before = read_self();
	struct tally tally = {0};

	while (raw.held) {
		uint32_t handle = raw.handles[raw.held - 1];
		uint64_t start = now_ns();
		int error =
		    (options->by == BY_IOCTL ? deregister_by_ioctl : deregister_by_write)(handle);

		calls_add(error ? &tally.dereg_failed : &tally.dereg, now_ns() - start);
		if (error) {
			tally_error(&tally, error, start);
			break;
		}
		raw.held--;
	}
	if (!raw.held) {
		unmap(raw.slots.base, raw.slots.slot_bytes * raw.slots.count);
		free(raw.handles);
		raw.slots = (struct slots){0};
		raw.handles = NULL;
	}
	reply_open(op);
	reply_number("deregistered", tally.dereg.count);
	reply_calls("dereg", &tally.dereg);
	reply_tally(&tally, &before);
	reply_close(!raw.held);
}
