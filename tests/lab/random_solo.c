// SPDX-License-Identifier: Apache-2.0
/* Operations that no other may run beside: births, deaths, open files. */
#define _GNU_SOURCE
#include "random.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FEWEST_ALIVE = 3, MOST_ALIVE = 12, MOST_HELD = 4 };

/* Shared with all processes; at most one is in its large registration. */
static struct traces *traces;

static uint32_t index_of(const struct process *process)
{
	return (uint32_t)(process - account.processes);
}

/* The file that came is the caller's. */
static struct answer tell_with(struct process *process, const struct command *command, int fd,
			       int *came)
{
	struct order order = {.command = *command, .process = index_of(process)};
	struct answer answer;

	send_message(process->socket, command, sizeof(*command), fd);
	if (!receive_message(process->socket, &answer, sizeof(answer), came))
		fail("process %d ended by itself", process->pid);
	take_answer(&order, &answer);
	return answer;
}

static struct answer tell(struct process *process, const struct command *command)
{
	int came;

	return tell_with(process, command, -1, &came);
}

static void open_file(struct process *process)
{
	struct command command = {.verb = VERB_OPEN};
	struct answer answer;

	while (account.files[command.file].live)
		command.file++;
	if (command.file == MOST_FILES)
		fail("more than %d files", MOST_FILES);
	answer = tell(process, &command);
	account.files[command.file] = (struct file){.live = true, .holders = 1};
	memcpy(account.files[command.file].pds, answer.pds, sizeof(answer.pds));
	process->holds[command.file] = true;
	account.opened++;
}

static void pair(int sockets[2])
{
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets))
		fail("socketpair: %s", strerror(errno));
}

static void limit(struct process *process)
{
	struct command command = {.verb = VERB_LIMIT, .length = (16 + chance(240)) * page_bytes()};

	tell(process, &command);
	process->limited = true;
	process->limit = command.length;
}

void start_process(void)
{
	struct process *process;
	int sockets[2];
	pid_t pid;

	if (!traces) {
		traces = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (traces == MAP_FAILED)
			fail("no shared page: %s", strerror(errno));
	}
	pair(sockets);
	pid = fork();
	if (pid < 0)
		fail("fork: %s", strerror(errno));
	if (pid == 0) {
		close(sockets[0]);
		process_main(sockets[1], traces);
	}
	close(sockets[1]);
	process = process_born(pid, sockets[0]);
	open_file(process);
	if (!chance(4))
		limit(process);
}

static void fork_process(struct process *parent)
{
	struct command command = {.verb = VERB_FORK};
	struct process *child;
	struct answer answer;
	int sockets[2], came;

	pair(sockets);
	answer = tell_with(parent, &command, sockets[1], &came);
	close(sockets[1]);
	child = process_born(answer.pid, sockets[0]);
	child->limited = parent->limited;
	child->limit = parent->limit;
	for (uint32_t i = 0; i < MOST_FILES; i++) {
		child->holds[i] = parent->holds[i];
		account.files[i].holders += parent->holds[i];
	}
	account.forked++;
}

static void give_file(struct process *giver, struct process *taker)
{
	int32_t file = random_file(giver);
	struct command command = {.verb = VERB_GIVE, .file = (uint32_t)file};
	int fd, none;

	if (file < 0 || taker->holds[file])
		return;
	tell_with(giver, &command, -1, &fd);
	command.verb = VERB_TAKE;
	tell_with(taker, &command, fd, &none);
	/* Or no MR of it would ever end. */
	close(fd);
	taker->holds[file] = true;
	account.files[file].holders++;
	account.given++;
}

static void close_file(struct process *process)
{
	int32_t file = random_file(process);
	struct command command = {.verb = VERB_CLOSE, .file = (uint32_t)file};

	if (file < 0)
		return;
	tell(process, &command);
	file_let_go(process, command.file);
	account.closed++;
}

/* When it returns, the files of that process are closed. */
static void kill_process(struct process *process)
{
	int status;

	if (kill(process->pid, SIGKILL) || waitpid(process->pid, &status, 0) != process->pid)
		fail("process %d can't be killed: %s", process->pid, strerror(errno));
	process_ended(process);
	account.killed++;
}

/* VmPin; the kernel charges it before it looks for the first page. */
static uint64_t pinned_by(pid_t pid)
{
	char path[64], line[256];
	uint64_t kilobytes = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file) &&
	       sscanf(line, "VmPin: %" SCNu64, &kilobytes) != 1)
		;
	if (file)
		fclose(file);
	return kilobytes << 10;
}

/* In the middle of a registration, unless that was faster. */
static void kill_in_large(struct process *process)
{
	struct command command = {.verb = VERB_LARGE};
	uint64_t more = chance(4);

	*traces = (struct traces){0};
	send_message(process->socket, &command, sizeof(command), -1);
	while (!__atomic_load_n(&traces->ended, __ATOMIC_ACQUIRE) &&
	       pinned_by(process->pid) < process->pinned + LARGE_BYTES)
		sched_yield();
	for (; more; more--)
		sched_yield();
	kill_process(process);
	account.killed_large++;
	if (!traces->ended)
		account.large_unknown++;
	else if (!traces->error)
		account.large_registered++;
	else
		fail("a large registration failed: %s", strerror(traces->error));
}

static bool has_no_limit(const struct process *process)
{
	return !process->limited;
}

static bool has_room(const struct process *process)
{
	uint32_t held = 0;

	for (uint32_t i = 0; i < MOST_FILES; i++)
		held += process->holds[i];
	return held < MOST_HELD;
}

void solo(void)
{
	struct process *one = &account.processes[random_process(NULL)];
	uint64_t kind = chance(100);
	int32_t index;

	account.operations++;
	if (account.alive <= FEWEST_ALIVE)
		kind = kind % 30;
	else if (account.alive >= MOST_ALIVE && kind < 30)
		kind = 30;
	if (kind < 10) {
		start_process();
	} else if (kind < 30) {
		fork_process(one);
	} else if (kind < 46) {
		kill_process(one);
	} else if (kind < 52) {
		index = account.room ? -1 : random_process(has_no_limit);
		if (index >= 0)
			kill_in_large(&account.processes[index]);
	} else if (kind < 66) {
		index = random_process(has_room);
		if (index >= 0)
			open_file(&account.processes[index]);
	} else if (kind < 80) {
		close_file(one);
	} else {
		index = random_process(has_room);
		if (index >= 0)
			give_file(one, &account.processes[index]);
	}
}

/* All that is left, in turn by its owner, by others, by closing and by the end. */
void release_all(void)
{
	for (uint32_t i = 0; i < account.born; i++) {
		struct process *process = &account.processes[i];
		struct mr *mr;

		if (!process->alive)
			continue;
		for (int some = 0; some < 20 && (mr = random_mr(process)); some++) {
			struct order order = {.command = {.verb = VERB_DEREGISTER,
							  .file = mr->file,
							  .handle = mr->handle},
					      .process = i,
					      .mr = mr};
			struct answer answer;
			int came;

			send_message(process->socket, &order.command, sizeof(order.command), -1);
			if (!receive_message(process->socket, &answer, sizeof(answer), &came))
				fail("process %d ended by itself", process->pid);
			take_answer(&order, &answer);
		}
		while (random_file(process) >= 0 && i % 2)
			close_file(process);
	}
	for (uint32_t i = 0; i < account.born; i++)
		if (account.processes[i].alive)
			kill_process(&account.processes[i]);
}
