// SPDX-License-Identifier: Apache-2.0
/* The kernel's commands, by the ioctl: write() is refused to whoever did not open the file. */
#define _GNU_SOURCE
#include "random.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct written {
	struct ib_uverbs_ioctl_hdr header;
	struct ib_uverbs_attr attrs[3];
};

/* A command of the old interface, in and out as write() has them. */
static int invoke(int fd, uint32_t number, const void *in, uint16_t in_length, void *out,
		  uint16_t out_length)
{
	struct written call = {
	    .header = {.length = sizeof(call),
		       .object_id = UVERBS_OBJECT_DEVICE,
		       .method_id = UVERBS_METHOD_INVOKE_WRITE,
		       .num_attrs = 3,
		       .driver_id = RDMA_DRIVER_RXE},
	    .attrs = {{.attr_id = UVERBS_ATTR_CORE_IN,
		       .len = in_length,
		       .flags = UVERBS_ATTR_F_MANDATORY,
		       .data = (uintptr_t)in},
		      {.attr_id = UVERBS_ATTR_WRITE_CMD,
		       .len = sizeof(uint64_t),
		       .flags = UVERBS_ATTR_F_MANDATORY,
		       .data = number},
		      {.attr_id = UVERBS_ATTR_CORE_OUT,
		       .len = out_length,
		       .flags = UVERBS_ATTR_F_MANDATORY,
		       .data = (uintptr_t)out}},
	};

	/* What fits is not pointed at. */
	if (in_length <= sizeof(call.attrs[0].data)) {
		call.attrs[0].data = 0;
		memcpy(&call.attrs[0].data, in, in_length);
	}
	if (!out_length) {
		call.header.num_attrs = 2;
		call.header.length = sizeof(call) - sizeof(call.attrs[2]);
	}
	return ioctl(fd, RDMA_VERBS_IOCTL, &call) ? errno : 0;
}

/* The number of the file below /dev/infiniband; -1: none. */
static int device_number(const char *device)
{
	DIR *folder = opendir("/sys/class/infiniband_verbs");
	struct dirent *entry;
	int number = -1;

	while (folder && number < 0 && (entry = readdir(folder))) {
		char path[320], name[64] = "";
		FILE *file;
		int found;

		if (sscanf(entry->d_name, "uverbs%d", &found) != 1)
			continue;
		snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/%s/ibdev", entry->d_name);
		file = fopen(path, "re");
		if (!file)
			continue;
		if (fscanf(file, "%63s", name) == 1 && strcmp(name, device) == 0)
			number = found;
		fclose(file);
	}
	if (folder)
		closedir(folder);
	return number;
}

/* The one command that the ioctl does not take. Events are nobody's here. */
static int get_context(int fd)
{
	struct ib_uverbs_get_context_resp response = {0};
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_get_context body;
	} command = {
	    .header = {.command = IB_USER_VERBS_CMD_GET_CONTEXT,
		       .in_words = sizeof(command) / 4,
		       .out_words = sizeof(response) / 4},
	    .body = {.response = (uintptr_t)&response},
	};

	if (write(fd, &command, sizeof(command)) != (ssize_t)sizeof(command))
		return errno;
	return close((int)response.async_fd) ? errno : 0;
}

int verbs_open(const char *device, int *fd, uint32_t pds[PDS])
{
	int number = device_number(device), error;
	char path[64];

	if (number < 0)
		return ENODEV;
	snprintf(path, sizeof(path), "/dev/infiniband/uverbs%d", number);
	*fd = open(path, O_RDWR | O_CLOEXEC);
	if (*fd < 0)
		return errno;
	error = get_context(*fd);
	for (int i = 0; i < PDS && !error; i++) {
		struct ib_uverbs_alloc_pd ask = {0};
		struct ib_uverbs_alloc_pd_resp response = {0};

		error = invoke(*fd, IB_USER_VERBS_CMD_ALLOC_PD, &ask, sizeof(ask), &response,
			       sizeof(response));
		pds[i] = response.pd_handle;
	}
	if (error)
		close(*fd);
	return error;
}

int verbs_register(int fd, uint32_t pd, uint64_t address, uint64_t length, uint32_t access,
		   uint32_t *handle)
{
	struct ib_uverbs_reg_mr_resp response = {0};
	struct ib_uverbs_reg_mr ask = {.start = address,
				       .length = length,
				       .hca_va = address,
				       .pd_handle = pd,
				       .access_flags = access};
	int error =
	    invoke(fd, IB_USER_VERBS_CMD_REG_MR, &ask, sizeof(ask), &response, sizeof(response));

	*handle = response.mr_handle;
	return error;
}

int verbs_deregister(int fd, uint32_t handle)
{
	struct ib_uverbs_dereg_mr ask = {.mr_handle = handle};

	return invoke(fd, IB_USER_VERBS_CMD_DEREG_MR, &ask, sizeof(ask), NULL, 0);
}

int verbs_reregister(int fd, uint32_t handle, uint32_t flags, uint32_t pd, uint64_t address,
		     uint64_t length, uint32_t access)
{
	struct ib_uverbs_rereg_mr_resp response = {0};
	struct ib_uverbs_rereg_mr ask = {.mr_handle = handle,
					 .flags = flags,
					 .start = address,
					 .length = length,
					 .hca_va = address,
					 .pd_handle = pd,
					 .access_flags = access};

	return invoke(fd, IB_USER_VERBS_CMD_REREG_MR, &ask, sizeof(ask), &response,
		      sizeof(response));
}
