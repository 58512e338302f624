// SPDX-License-Identifier: Apache-2.0
/* The commands that keep a registration in flight: its first page is this program's to bring in. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
	char *addr;
	uint64_t bytes;
	int faults;   /* userfaultfd; tells of what is missing */
	int ended[2]; /* a pipe that is closed when the call has returned */
	pthread_t thread;
	bool running;
	uint64_t begun_ns, fault_ns;
	struct tally tally;
	struct ibv_mr *mr;
} stall;

static void *register_stalled(void *unused)
{
	uint64_t ns;

	(void)unused;
	__atomic_store_n(&stall.begun_ns, now_ns(), __ATOMIC_RELEASE);
	stall.mr =
	    register_timed(&stall.tally, stall.addr, stall.bytes, IBV_ACCESS_LOCAL_WRITE, &ns);
	close(stall.ended[1]);
	return NULL;
}

static int watch_faults(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register watch = {.mode = UFFDIO_REGISTER_MODE_MISSING};

	/* Without O_NONBLOCK poll() would not wait. */
	stall.faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (stall.faults < 0 || ioctl(stall.faults, UFFDIO_API, &api))
		return errno;
	stall.addr =
	    mmap(NULL, stall.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stall.addr == MAP_FAILED)
		return errno;
	/* Or one fault could be for two megabytes. */
	madvise(stall.addr, stall.bytes, MADV_NOHUGEPAGE);
	watch.range.start = (uintptr_t)stall.addr;
	watch.range.len = stall.bytes;
	return ioctl(stall.faults, UFFDIO_REGISTER, &watch) ? errno : 0;
}

/* The address that is waited for; 0 when the call has returned. */
static uint64_t await_fault(void)
{
	struct pollfd either[] = {{.fd = stall.faults, .events = POLLIN},
				  {.fd = stall.ended[0], .events = POLLIN}};
	struct uffd_msg message;

	if (poll(either, 2, -1) < 0)
		die("poll");
	if (!(either[0].revents & POLLIN))
		return 0;
	if (read(stall.faults, &message, sizeof(message)) != sizeof(message))
		die("userfaultfd");
	return message.arg.pagefault.address;
}

static void join_stalled(void)
{
	errno = pthread_join(stall.thread, NULL);
	if (errno)
		die("pthread_join");
	stall.running = false;
	close(stall.ended[0]);
	close(stall.faults);
}

void run_stall(const char *op, const struct options *options)
{
	int error;

	if (stall.running) {
		reply_error(op, 0, "one is in flight");
		return;
	}
	memset(&stall, 0, sizeof(stall));
	stall.bytes = (options->size + BASE_PAGE_BYTES - 1) & ~(BASE_PAGE_BYTES - 1);
	error = watch_faults();
	if (!error && pipe2(stall.ended, O_CLOEXEC))
		error = errno;
	if (!error)
		error = pthread_create(&stall.thread, NULL, register_stalled, NULL);
	if (error) {
		reply_error(op, error, "faults can't be held up");
		return;
	}
	stall.running = true;
	if (!await_fault()) {
		join_stalled();
		reply_error(op, stall.tally.first_errno, "the call has not waited");
		return;
	}
	stall.fault_ns = now_ns();
	reply_open(op);
	reply_close(true);
}

/* How long the call has lasted at least, and at most. */
void run_stalled(const char *op, const struct options *options)
{
	uint64_t now = now_ns();

	(void)options;
	reply_open(op);
	reply_number("least_ns", now - stall.fault_ns);
	reply_number("most_ns", now - __atomic_load_n(&stall.begun_ns, __ATOMIC_ACQUIRE));
	reply_close(stall.running);
}

/* Lets it have its pages. Its MR lives for as long as this process. */
void run_resume(const char *op, const struct options *options)
{
	struct self_status before = read_self();
	uint64_t at = (uintptr_t)stall.addr;

	(void)options;
	if (!stall.running) {
		reply_error(op, 0, "none is in flight");
		return;
	}
	do {
		struct uffdio_zeropage page = {
		    .range = {.start = at & ~(BASE_PAGE_BYTES - 1), .len = BASE_PAGE_BYTES}};

		if (ioctl(stall.faults, UFFDIO_ZEROPAGE, &page) && errno != EEXIST)
			die("UFFDIO_ZEROPAGE");
		at = await_fault();
	} while (at);
	join_stalled();
	reply_open(op);
	reply_number("registered", stall.tally.reg.count);
	reply_calls("reg", &stall.tally.reg);
	reply_tally(&stall.tally, &before);
	reply_close(stall.mr);
}
