// SPDX-License-Identifier: Apache-2.0
/* The commands that map memory without registering it, and those that give up rights to lock it. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_MAPPINGS 64
/* Far below where the kernel places mappings, so nothing comes to lie there by itself. */
#define EMPTY_ADDRESS ((void *)(64ull << 30))

struct mapping {
	char *start;
	uint64_t bytes;
};

/* In the order in which they were made. */
static struct mapping mappings[MOST_MAPPINGS];
static size_t mapping_count;

char *newest_mapping(uint64_t *bytes)
{
	const struct mapping *newest = mapping_count ? &mappings[mapping_count - 1] : NULL;

	*bytes = newest ? newest->bytes : 0;
	return newest ? newest->start : NULL;
}

char *unmapped_address(uint64_t bytes)
{
	char *start =
	    mmap(EMPTY_ADDRESS, bytes, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (start == MAP_FAILED)
		return NULL;
	unmap(start, bytes);
	return start;
}

static bool bind_to_node(char *start, uint64_t bytes, uint64_t node)
{
	unsigned long nodes = 1ul << node;

	return !syscall(SYS_mbind, start, bytes, MPOL_BIND, &nodes, 8 * sizeof(nodes), 0);
}

static char *map_new(const struct options *options)
{
	static const int flags_of[] = {[PAGES_4K] = 0,
				       [PAGES_2M] = MAP_HUGETLB | MAP_HUGE_2MB,
				       [PAGES_1G] = MAP_HUGETLB | MAP_HUGE_1GB};
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | flags_of[options->pages] |
		    (options->lock ? MAP_LOCKED : 0);
	char *start = mmap(NULL, options->size, PROT_READ | PROT_WRITE, flags, -1, 0);
	int error;

	if (start == MAP_FAILED)
		return NULL;
	if (options->node_given && !bind_to_node(start, options->size, options->node)) {
		error = errno;
		unmap(start, options->size);
		errno = error;
		return NULL;
	}
	if (options->touch)
		touch_bytes(start, options->size);
	return start;
}

/* A size that is no multiple of a hugepage's is refused: munmap would be. */
static bool whole(const char *op, const struct options *options)
{
	static const uint64_t bytes_of[] = {[PAGES_2M] = 2ull << 20, [PAGES_1G] = 1ull << 30};
	uint64_t page = BASE_PAGE_BYTES;

	if (options->pages == PAGES_2M || options->pages == PAGES_1G)
		page = bytes_of[options->pages];
	else if (options->pages != PAGES_4K) {
		reply_error(op, 0, "pages: expected 4k, 2m or 1g");
		return false;
	}
	if (options->size % page) {
		reply_error(op, 0, "size: expected a multiple of the page size");
		return false;
	}
	return true;
}

void run_map(const char *op, const struct options *options)
{
	struct self_status self;
	char *start;

	if (!whole(op, options))
		return;
	if (mapping_count == MOST_MAPPINGS) {
		reply_error(op, 0, "expected at most %d mappings", MOST_MAPPINGS);
		return;
	}
	start = map_new(options);
	if (!start) {
		reply_error(op, errno, "the memory could not be mapped");
		return;
	}
	mappings[mapping_count++] = (struct mapping){.start = start, .bytes = options->size};
	self = read_self();
	reply_open(op);
	reply_number("bytes", options->size);
	reply_number("vmlck", self.vmlck);
	reply_number("hugetlb_bytes", self.hugetlb);
	reply_close(true);
}

/* Newest first, and never unlocked before. */
void run_unmap(const char *op, const struct options *options)
{
	uint64_t count = options->count, bytes = 0, done = 0;
	struct self_status self;

	for (; mapping_count && done < count; done++) {
		const struct mapping *newest = &mappings[--mapping_count];

		unmap(newest->start, newest->bytes);
		bytes += newest->bytes;
	}
	self = read_self();
	reply_open(op);
	reply_number("count", done);
	reply_number("bytes", bytes);
	reply_number("vmlck", self.vmlck);
	reply_number("hugetlb_bytes", self.hugetlb);
	reply_close(count == UNBOUNDED || done == count);
}

/* So many mappings more, one page each: neighbours differ in their rights, so none become one. */
void run_fragment(const char *op, const struct options *options)
{
	uint64_t bytes = options->count * BASE_PAGE_BYTES;
	char *start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (start == MAP_FAILED) {
		reply_error(op, errno, "the memory could not be mapped");
		return;
	}
	for (uint64_t at = 0; at < bytes; at += 2 * BASE_PAGE_BYTES) {
		if (mprotect(start + at, BASE_PAGE_BYTES, PROT_READ)) {
			reply_error(op, errno, "the rights could not be changed");
			return;
		}
	}
	reply_open(op);
	reply_number("count", options->count);
	reply_close(true);
}

/* In a child, as a touch that finds no page is a signal; all of it is gone when it has ended. */
void run_trial(const char *op, const struct options *options)
{
	pid_t child;
	int status;

	if (!whole(op, options))
		return;
	child = fork();
	if (child == 0)
		_exit(map_new(options) ? 0 : errno);
	if (child < 0 || waitpid(child, &status, 0) != child) {
		reply_error(op, errno, "no child");
		return;
	}
	reply_open(op);
	reply_number("signal", WIFSIGNALED(status) ? (uint64_t)WTERMSIG(status) : 0);
	reply_errno(WIFEXITED(status) ? WEXITSTATUS(status) : 0);
	reply_close(true);
}

static void reply_rights(const char *op, int error)
{
	reply_open(op);
	reply_number("uid", geteuid());
	reply_bool("cap_ipc_lock", read_self().cap_ipc_lock);
	reply_errno(error);
	reply_close(!error);
}

/* All capabilities, in a user namespace that has no power over the host's limits. */
void run_userns(const char *op, const struct options *options)
{
	(void)options;
	reply_rights(op, unshare(CLONE_NEWUSER) ? errno : 0);
}

void run_dropcap(const char *op, const struct options *options)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
	int error = 0;

	(void)options;
	if (syscall(SYS_capget, &head, sets)) {
		error = errno;
	} else {
		sets[0].effective &= ~(1u << CAP_IPC_LOCK);
		sets[0].permitted &= ~(1u << CAP_IPC_LOCK);
		sets[0].inheritable &= ~(1u << CAP_IPC_LOCK);
		error = syscall(SYS_capset, &head, sets) ? errno : 0;
	}
	reply_rights(op, error);
}
