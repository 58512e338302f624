// SPDX-License-Identifier: Apache-2.0
/* Mappings, threads, /proc/self, and the commands that change the process. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CAP_IPC_LOCK_BIT 14
#define PAGE_2M (2ull << 20)
#define PAGE_1G (1ull << 30)

uint64_t now_ns(void)
{
	struct timespec now;

	if (clock_gettime(CLOCK_MONOTONIC, &now))
		die("clock_gettime");
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

struct self_status read_self(void)
{
	struct self_status self = {0};
	uint64_t value;
	char line[256];
	int found = 0;
	/* Of a process whose leader has ended only its threads tell. */
	FILE *file = fopen("/proc/thread-self/status", "re");

	if (!file)
		die("/proc/thread-self/status");
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "VmPin: %" SCNu64 " kB", &value) == 1) {
			self.vmpin = value << 10;
			found++;
		} else if (sscanf(line, "VmLck: %" SCNu64 " kB", &value) == 1) {
			self.vmlck = value << 10;
			found++;
		} else if (sscanf(line, "HugetlbPages: %" SCNu64 " kB", &value) == 1) {
			self.hugetlb = value << 10;
		} else if (sscanf(line, "CapEff: %" SCNx64, &value) == 1) {
			self.cap_ipc_lock = value >> CAP_IPC_LOCK_BIT & 1;
			found++;
		}
	}
	fclose(file);
	if (found != 3) {
		errno = ENODATA;
		die("/proc/thread-self/status: VmPin, VmLck, CapEff");
	}
	return self;
}

/* Bytes of this process on transparent huge pages; false if the kernel does not tell. */
static bool read_thp_bytes(uint64_t *bytes)
{
	char line[256];
	bool found = false;
	FILE *file = fopen("/proc/self/smaps_rollup", "re");

	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file))
		found = sscanf(line, "AnonHugePages: %" SCNu64 " kB", bytes) == 1;
	fclose(file);
	*bytes <<= 10;
	return found;
}

void touch_bytes(char *start, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += BASE_PAGE_BYTES)
		((volatile char *)start)[at] = 1;
}

static void touch_backwards(char *start, uint64_t bytes)
{
	for (uint64_t at = bytes; at; at -= BASE_PAGE_BYTES)
		((volatile char *)start)[at - BASE_PAGE_BYTES] = 1;
}

int take_pages_from(const uint64_t *node)
{
	unsigned long nodes = node ? 1ul << *node : 0;

	if (!node)
		return (int)syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
	return (int)syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 8 * sizeof(nodes));
}

void unmap(void *start, uint64_t bytes)
{
	if (bytes && munmap(start, bytes))
		die("munmap");
}

static char *map_aligned(uint64_t bytes, uint64_t alignment)
{
	uint64_t head;
	char *start = mmap(NULL, bytes + alignment, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (start == MAP_FAILED)
		return start;
	head = -(uintptr_t)start & (alignment - 1);
	unmap(start, head);
	unmap(start + head + bytes, alignment - head);
	return start + head;
}

/* To be registered, never to be touched. */
static char *map_peer(uint64_t bytes)
{
	int fd = open("/dev/mrscope_vendor", O_RDWR | O_CLOEXEC);
	char *start;

	if (fd < 0)
		return MAP_FAILED;
	start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return start;
}

/* Which pages a part of a mapping is to have; whether that could be asked for. */
static bool ask_for(enum pages pages, char *start, uint64_t bytes)
{
	/* Where transparent huge pages are "always", 4k has to be asked for as well. */
	if (pages == PAGES_4K)
		return !madvise(start, bytes, MADV_NOHUGEPAGE) || errno == EINVAL;
	if (pages == PAGES_THP)
		return !madvise(start, bytes, MADV_HUGEPAGE);
	if (pages == PAGES_MIXED)
		return ask_for(PAGES_4K, start, bytes / 2) &&
		       ask_for(PAGES_THP, start + bytes / 2, bytes / 2);
	return true;
}

static bool touch_mixed(char *start, uint64_t bytes)
{
	static const uint64_t upper = 1;

	touch_bytes(start, bytes / 2);
	if (take_pages_from(&upper))
		return false;
	touch_bytes(start + bytes / 2, bytes / 2);
	return !take_pages_from(NULL);
}

bool slots_map(struct slots *slots, enum pages pages, uint64_t bytes, uint64_t count,
	       enum touch touch)
{
	static const int huge_flags[] = {
	    [PAGES_2M] = MAP_HUGETLB | MAP_HUGE_2MB, [PAGES_1G] = MAP_HUGETLB | MAP_HUGE_1GB};
	uint64_t page = pages == PAGES_4K ? BASE_PAGE_BYTES : pages == PAGES_1G ? PAGE_1G : PAGE_2M;
	uint64_t all;
	int error;

	if (pages == PAGES_PEER)
		page = BASE_PAGE_BYTES;
	slots->count = count;
	slots->slot_bytes = (bytes + page - 1) & ~(page - 1);
	if (__builtin_mul_overflow(slots->slot_bytes, count, &all) || all > INT64_MAX / 2) {
		errno = ENOMEM;
		return false;
	}
	if (pages == PAGES_PEER) {
		slots->base = map_peer(all);
		return slots->base != MAP_FAILED;
	}
	if (pages == PAGES_4K || pages == PAGES_THP || pages == PAGES_MIXED)
		slots->base = map_aligned(all, page);
	else
		slots->base = mmap(NULL, all, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | huge_flags[pages], -1, 0);
	if (slots->base == MAP_FAILED)
		return false;
	if (!ask_for(pages, slots->base, all) ||
	    (pages == PAGES_MIXED && !touch_mixed(slots->base, all))) {
		error = errno;
		unmap(slots->base, all);
		errno = error;
		return false;
	}
	if (touch == TOUCH_BACKWARDS)
		touch_backwards(slots->base, all);
	else if (touch || pages == PAGES_THP)
		touch_bytes(slots->base, all);
	return true;
}

char *slot_at(const struct slots *slots, uint64_t index)
{
	return slots->base + index * slots->slot_bytes;
}

static void *team_main(void *argument)
{
	struct team_thread *thread = argument;
	bool go;

	pthread_mutex_lock(&thread->gate->lock);
	while (thread->gate->state == GATE_SHUT)
		pthread_cond_wait(&thread->gate->moved, &thread->gate->lock);
	go = thread->gate->state == GATE_OPEN;
	pthread_mutex_unlock(&thread->gate->lock);
	if (go)
		thread->run(thread->argument);
	return NULL;
}

static void gate_move(struct gate *gate, int state)
{
	pthread_mutex_lock(&gate->lock);
	gate->state = state;
	pthread_cond_broadcast(&gate->moved);
	pthread_mutex_unlock(&gate->lock);
}

int team_start(struct team_thread *threads, size_t count, struct gate *gate)
{
	*gate = (struct gate){.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
	for (size_t i = 0; i < count; i++) {
		int error;

		threads[i].gate = gate;
		error = pthread_create(&threads[i].id, NULL, team_main, &threads[i]);
		if (error) {
			gate_move(gate, GATE_CANCELLED);
			team_join(threads, i);
			return error;
		}
	}
	return 0;
}

void team_go(struct gate *gate)
{
	gate_move(gate, GATE_OPEN);
}

void team_join(struct team_thread *threads, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		errno = pthread_join(threads[i].id, NULL);
		if (errno)
			die("pthread_join");
	}
}

void run_status(const char *op, const struct options *options)
{
	struct self_status self = read_self();
	uint64_t thp_bytes = 0;
	char comm[17] = "";

	(void)options;
	prctl(PR_GET_NAME, comm);
	reply_open(op);
	reply_number("pid", (uint64_t)getpid());
	reply_text("comm", comm);
	reply_number("uid", geteuid());
	reply_bool("cap_ipc_lock", self.cap_ipc_lock);
	reply_held();
	reply_number("vmpin", self.vmpin);
	reply_number("vmlck", self.vmlck);
	reply_number("hugetlb_bytes", self.hugetlb);
	if (read_thp_bytes(&thp_bytes))
		reply_number("thp_bytes", thp_bytes);
	else
		reply_null("thp_bytes");
	reply_close(true);
}

void run_rlimit(const char *op, const struct options *options)
{
	rlim_t wanted = options->memlock == UNBOUNDED ? RLIM_INFINITY : (rlim_t)options->memlock;
	struct rlimit limit = {.rlim_cur = wanted, .rlim_max = wanted};
	int error = setrlimit(RLIMIT_MEMLOCK, &limit) ? errno : 0;

	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		die("getrlimit");
	reply_open(op);
	if (limit.rlim_cur == RLIM_INFINITY)
		reply_null("memlock_bytes");
	else
		reply_number("memlock_bytes", limit.rlim_cur);
	reply_errno(error);
	reply_close(!error);
}

void run_setuid(const char *op, const struct options *options)
{
	uid_t id = (uid_t)options->uid;
	int error = 0;

	/* Groups first: the uid is what allows to change the rest. */
	if ((geteuid() == 0 && setgroups(0, NULL)) || setresgid(id, id, id) ||
	    setresuid(id, id, id))
		error = errno;
	reply_open(op);
	reply_number("uid", geteuid());
	reply_number("gid", getegid());
	reply_bool("cap_ipc_lock", read_self().cap_ipc_lock);
	reply_errno(error);
	reply_close(!error);
}

/*
 * The child holds the uverbs file and none of the parent's stdin, stdout and stderr, leaves the
 * session so that no hangup reaches it, and has no tie to the parent's life: it ends by a signal.
 */
static _Noreturn void hold_files(int ready)
{
	int null = open("/dev/null", O_RDWR);

	if (null < 0 || setsid() < 0)
		_exit(1);
	for (int fd = 0; fd < 3; fd++)
		if (dup2(null, fd) < 0)
			_exit(1);
	if (null > 2)
		close(null);
	if (write(ready, "", 1) != 1)
		_exit(1);
	close(ready);
	for (;;)
		pause();
}

void run_fork(const char *op, const struct options *options)
{
	int ready[2];
	ssize_t got;
	char byte;
	pid_t child;

	(void)options;
	/* A child that was ended leaves no zombie behind. */
	if (signal(SIGCHLD, SIG_IGN) == SIG_ERR || pipe2(ready, O_CLOEXEC)) {
		reply_error(op, errno, "no pipe to the child");
		return;
	}
	child = fork();
	if (child == 0) {
		close(ready[0]);
		hold_files(ready[1]);
	}
	if (child < 0) {
		reply_error(op, errno, "fork failed");
		close(ready[0]);
		close(ready[1]);
		return;
	}
	close(ready[1]);
	do {
		got = read(ready[0], &byte, 1);
	} while (got < 0 && errno == EINTR);
	close(ready[0]);
	if (got != 1) {
		reply_error(op, 0, "the child ended before it was ready");
		return;
	}
	reply_open(op);
	reply_number("child_pid", (uint64_t)child);
	reply_close(true);
}

void run_name(const char *op, const struct options *options)
{
	char comm[17] = "";

	if (prctl(PR_SET_NAME, options->comm) || prctl(PR_GET_NAME, comm)) {
		reply_error(op, errno, "prctl failed");
		return;
	}
	reply_open(op);
	reply_text("comm", comm);
	reply_close(true);
}

/* Another program, another copy of this one, whose first line is the reply. */
void run_become(const char *op, const struct options *options)
{
	execl(options->comm, options->comm, (char *)NULL);
	reply_error(op, errno, "execl failed");
}
