// SPDX-License-Identifier: Apache-2.0
/* The commands that make other processes. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (64ull << 10)

/* What one life does. It ends with 0 if all went as asked. */
struct life {
	const struct options *options;
	char *addr; /* NULL: a buffer of its own */
};

static char *life_buffer(const struct options *options)
{
	int rights = options->fail ? PROT_NONE : PROT_READ | PROT_WRITE;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (options->fail ? 0 : MAP_POPULATE);

	return mmap(NULL, options->size, rights, flags, -1, 0);
}

static int live(void *argument)
{
	const struct life *life = argument;
	const struct options *options = life->options;
	char *addr = life->addr ? life->addr : life_buffer(options);
	struct tally tally = {0};
	struct ibv_mr *mr;
	uint64_t ns;

	if (addr == MAP_FAILED)
		_exit(1);
	mr = register_timed(&tally, addr, options->size, IBV_ACCESS_LOCAL_WRITE, &ns);
	if (options->fail)
		_exit(mr || tally.first_errno != EFAULT);
	if (!mr)
		_exit(1);
	_exit(!options->hold && !deregister_timed(&tally, mr, &ns));
}

/* Waits for one; false when it did not do as asked. */
static bool life_ended(void)
{
	int status;

	if (wait(&status) < 0)
		die("wait");
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

/* Until the time at which life number `index` is due. */
static void wait_for_turn(const struct options *options, uint64_t start, uint64_t index)
{
	uint64_t due = options->rate ? start + index * 1000000000ull / options->rate : 0;
	struct timespec at = {.tv_sec = (time_t)(due / 1000000000ull),
			      .tv_nsec = (long)(due % 1000000000ull)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

/*
 * With share the lives run in this process's memory, one after another: nothing is copied, so they
 * are the cheapest there are. Each is a process all the same.
 */
void run_lives(const char *op, const struct options *options)
{
	struct life life = {.options = options};
	uint64_t started = 0, ended = 0, good = 0, running = 0, start = now_ns();
	char *stack = NULL;
	int error = 0;

	if (options->share) {
		stack = malloc(STACK_BYTES);
		life.addr = life_buffer(options);
		if (!stack || life.addr == MAP_FAILED) {
			reply_error(op, ENOMEM, "no memory for the lives");
			free(stack);
			return;
		}
	}
	while (ended < options->count) {
		pid_t pid;

		if (running == (options->share ? 1 : options->parallel) ||
		    started == options->count) {
			good += life_ended();
			running--;
			ended++;
			continue;
		}
		wait_for_turn(options, start, started);
		pid = options->share ? clone(live, stack + STACK_BYTES,
					     CLONE_VM | CLONE_VFORK | SIGCHLD, &life)
				     : fork();
		if (pid == 0)
			live(&life);
		if (pid < 0) {
			error = errno;
			break;
		}
		started++;
		running++;
	}
	for (; running; running--)
		good += life_ended();
	if (options->share)
		unmap(life.addr, options->size);
	free(stack);
	reply_open(op);
	reply_number("lives", good);
	reply_number("bytes", good * options->size);
	reply_number("wall_ns", now_ns() - start);
	reply_errno(error);
	reply_close(good == options->count);
}

static _Noreturn void wait_for_signal(void)
{
	/* Ends with its maker. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
}

static int stay(void *argument)
{
	(void)argument;
	wait_for_signal();
}

/* A process that shares this one's memory, and stays until a signal ends it. */
void run_share(const char *op, const struct options *options)
{
	char *stack = malloc(STACK_BYTES);
	pid_t child = -1;

	(void)options;
	if (stack)
		child = clone(stay, stack + STACK_BYTES, CLONE_VM | SIGCHLD, NULL);
	if (child < 0) {
		reply_error(op, errno, "clone failed");
		free(stack);
		return;
	}
	/* The stack is the child's for as long as this process lives. */
	reply_open(op);
	reply_number("child_pid", (uint64_t)child);
	reply_close(true);
}
