// SPDX-License-Identifier: Apache-2.0
/* Who holds what, and what came of each operation. */
#define _GNU_SOURCE
#include "random.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct account account;

uint64_t page_bytes(void)
{
	static uint64_t bytes;

	if (!bytes)
		bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	return bytes;
}

/* Pages from the first that is touched to the last. */
uint64_t span_bytes(uint64_t address, uint64_t length)
{
	uint64_t first = address / page_bytes();
	uint64_t last = (address + length - 1) / page_bytes();

	return (last - first + 1) * page_bytes();
}

struct process *process_born(pid_t pid, int socket)
{
	struct process *process = &account.processes[account.born];

	if (account.born == MOST_PROCESSES)
		fail("more than %d processes", MOST_PROCESSES);
	account.born++;
	account.alive++;
	process->pid = pid;
	process->socket = socket;
	process->alive = true;
	return process;
}

static void mr_born(const struct order *order, const struct answer *answer)
{
	struct process *owner = &account.processes[order->process];
	uint64_t length = order->command.length;
	struct mr *mr = account.mrs;

	while (mr->live && mr < account.mrs + MOST_MRS)
		mr++;
	if (mr == account.mrs + MOST_MRS)
		fail("more than %d MRs", MOST_MRS);
	*mr = (struct mr){.live = true,
			  .file = order->command.file,
			  .handle = answer->handle,
			  .owner = order->process,
			  .length = length,
			  .writable = order->command.access & 1,
			  .pinned = span_bytes(answer->address, length)};
	mr->counted = !account.room || account.rows < account.room;
	account.registered++;
	account.registered_bytes += length;
	account.live++;
	account.live_bytes += length;
	account.live_pinned += mr->pinned;
	owner->registrations++;
	owner->mrs++;
	owner->bytes += length;
	owner->pinned += mr->pinned;
	if (mr->counted) {
		account.rows++;
		owner->counted++;
		owner->counted_bytes += length;
		owner->counted_pinned += mr->pinned;
	} else {
		account.lost++;
	}
}

static void mr_ended(struct mr *mr)
{
	struct process *owner = &account.processes[mr->owner];

	mr->live = false;
	account.live--;
	account.live_bytes -= mr->length;
	account.live_pinned -= mr->pinned;
	owner->mrs--;
	owner->bytes -= mr->length;
	owner->pinned -= mr->pinned;
	if (!mr->counted)
		return;
	account.rows--;
	owner->counted--;
	owner->counted_bytes -= mr->length;
	owner->counted_pinned -= mr->pinned;
}

void file_let_go(struct process *process, uint32_t index)
{
	struct file *file = &account.files[index];

	process->holds[index] = false;
	if (--file->holders)
		return;
	file->live = false;
	for (struct mr *mr = account.mrs; mr < account.mrs + MOST_MRS; mr++)
		if (mr->live && mr->file == index)
			mr_ended(mr);
}

void process_ended(struct process *process)
{
	process->alive = false;
	account.alive--;
	close(process->socket);
	for (uint32_t i = 0; i < MOST_FILES; i++)
		if (process->holds[i])
			file_let_go(process, i);
}

static _Noreturn void surprise(const struct order *order, int error)
{
	const struct command *command = &order->command;

	fail("process %d: verb %u place %u access %#x flags %#x length %" PRIu64 ": %s",
	     account.processes[order->process].pid, command->verb, command->place, command->access,
	     command->flags, command->length, error ? strerror(error) : "succeeded");
}

static void count_failure(struct process *process, enum cause cause)
{
	process->failures[cause]++;
	account.failures[cause]++;
}

static void take_registration(const struct order *order, const struct answer *answer)
{
	struct process *process = &account.processes[order->process];
	uint64_t asked = span_bytes(answer->address, order->command.length);

	/* The core's own check comes before the pin. */
	if (order->command.access == 2 && answer->error == EINVAL)
		count_failure(process, REFUSED);
	else if (process->limited && answer->error == ENOMEM)
		/* Charged before the first page is looked for. */
		count_failure(process, MEMLOCK_LIMIT);
	else if (order->command.place != PLACE_ARENA && answer->error == EFAULT)
		count_failure(process, BAD_ADDRESS);
	else if (answer->error || order->command.place != PLACE_ARENA)
		surprise(order, answer->error);
	else
		mr_born(order, answer);
	/* Others may have released some of its MRs meanwhile, and nobody has made one. */
	if (answer->error == ENOMEM && order->pinned_before + asked <= process->limit)
		fail("process %d was refused %" PRIu64 " bytes below its limit", process->pid,
		     asked);
	if (!answer->error && process->limited && process->pinned > process->limit)
		fail("process %d pinned beyond its limit", process->pid);
}

static void take_reregistration(const struct order *order, const struct answer *answer)
{
	struct process *process = &account.processes[order->process];
	bool refused = order->command.flags & 1 || order->command.access == 2;

	if (!account.can_reregister) {
		if (answer->error != EOPNOTSUPP)
			surprise(order, answer->error);
		return;
	}
	if (refused && (answer->error == EOPNOTSUPP || answer->error == EINVAL)) {
		count_failure(process, REFUSED);
	} else if (order->command.access & 1 && !order->mr->writable && answer->error == EACCES) {
		/* What newer kernels ask of the pages that stay. */
		count_failure(process, REFUSED);
	} else if (!refused && !answer->error) {
		account.reregistered++;
		process->registrations++;
	} else {
		surprise(order, answer->error);
	}
}

void take_answer(const struct order *order, const struct answer *answer)
{
	switch (order->command.verb) {
	case VERB_REGISTER:
		take_registration(order, answer);
		break;
	case VERB_REREGISTER:
		order->mr->busy = false;
		take_reregistration(order, answer);
		break;
	case VERB_DEREGISTER:
		order->mr->busy = false;
		if (answer->error)
			surprise(order, answer->error);
		mr_ended(order->mr);
		break;
	default:
		if (answer->error)
			surprise(order, answer->error);
	}
}

int32_t random_process(bool (*fits)(const struct process *process))
{
	int32_t chosen = -1;
	uint64_t seen = 0;

	for (uint32_t i = 0; i < account.born; i++) {
		const struct process *process = &account.processes[i];

		if (process->alive && (!fits || fits(process)) && !chance(++seen))
			chosen = (int32_t)i;
	}
	return chosen;
}

int32_t random_file(const struct process *process)
{
	int32_t chosen = -1;
	uint64_t seen = 0;

	for (uint32_t i = 0; i < MOST_FILES; i++)
		if (process->holds[i] && !chance(++seen))
			chosen = (int32_t)i;
	return chosen;
}

/* One that this process can reach and that no other is at, whoever registered it. */
struct mr *random_mr(const struct process *process)
{
	struct mr *chosen = NULL;
	uint64_t seen = 0;

	for (struct mr *mr = account.mrs; mr < account.mrs + MOST_MRS; mr++)
		if (mr->live && !mr->busy && process->holds[mr->file] && !chance(++seen))
			chosen = mr;
	return chosen;
}

static void print_process(const struct process *process, bool first)
{
	printf("%s{\"pid\":%d,\"alive\":%s,\"mrs\":%" PRIu64 ",\"bytes\":%" PRIu64
	       ",\"pinned\":%" PRIu64 ",\"counted\":%" PRIu64 ",\"counted_bytes\":%" PRIu64
	       ",\"counted_pinned\":%" PRIu64 ",\"registrations\":%" PRIu64
	       ",\"bad_address\":%" PRIu64 ",\"memlock_limit\":%" PRIu64 ",\"refused\":%" PRIu64
	       "}",
	       first ? "" : ",", process->pid, process->alive ? "true" : "false", process->mrs,
	       process->bytes, process->pinned, process->counted, process->counted_bytes,
	       process->counted_pinned, process->registrations, process->failures[BAD_ADDRESS],
	       process->failures[MEMLOCK_LIMIT], process->failures[REFUSED]);
}

static void number(const char *key, uint64_t value)
{
	printf(",\"%s\":%" PRIu64, key, value);
}

static void note_orphans(void)
{
	uint64_t orphans = 0;

	for (uint32_t i = 0; i < account.born; i++)
		if (!account.processes[i].alive)
			orphans += account.processes[i].mrs;
	if (orphans > account.most_orphans)
		account.most_orphans = orphans;
}

/* Every process that lives, or that has ended and left MRs. */
void print_account(const char *op)
{
	bool first = true;

	note_orphans();
	printf("{\"op\":\"%s\",\"ok\":true", op);
	number("operations", account.operations);
	number("live", account.live);
	number("live_bytes", account.live_bytes);
	number("live_pinned", account.live_pinned);
	number("lost", account.lost);
	number("registered", account.registered);
	number("registered_bytes", account.registered_bytes);
	number("reregistered", account.reregistered);
	number("large_registered", account.large_registered);
	number("large_unknown", account.large_unknown);
	number("large_bytes", LARGE_BYTES);
	number("bad_address", account.failures[BAD_ADDRESS]);
	number("memlock_limit", account.failures[MEMLOCK_LIMIT]);
	number("refused", account.failures[REFUSED]);
	number("most_orphans", account.most_orphans);
	number("born", account.born);
	number("opened", account.opened);
	number("closed", account.closed);
	number("forked", account.forked);
	number("given", account.given);
	number("killed", account.killed);
	number("killed_large", account.killed_large);
	printf(",\"processes\":[");
	for (uint32_t i = 0; i < account.born; i++) {
		const struct process *process = &account.processes[i];

		if (!process->alive && !process->mrs)
			continue;
		print_process(process, first);
		first = false;
	}
	printf("]}\n");
}
