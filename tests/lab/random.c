// SPDX-License-Identifier: Apache-2.0
/* Arguments, the operations by chance, stops. */
#define _GNU_SOURCE
#include "random.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { MOST_OF_A_PROCESS = 120, MOST_AT_ONCE = 64 };

const char *device_name = "rxe0";
static uint64_t state, seed;

_Noreturn void fail(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "random: seed %" PRIu64 ", operation %" PRIu64 ": ", seed,
		account.operations);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	_Exit(1);
}

uint64_t chance(uint64_t below)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (state * 2685821657736338717ull >> 11) % below;
}

/* As many of each magnitude as of any other, from one byte to a mebibyte. */
static uint64_t random_length(void)
{
	return 1 + chance(1ull << chance(21));
}

static void plan_registration(const struct process *process, struct command *command)
{
	/* The last may write from afar and not from here: no driver is asked. */
	static const uint32_t rights[] = {0, 1, 7, 4, 2};
	uint64_t kind = chance(100);

	command->verb = VERB_REGISTER;
	command->file = (uint32_t)random_file(process);
	command->pd = account.files[command->file].pds[chance(PDS)];
	command->length = random_length();
	command->offset = chance(ARENA_BYTES - command->length + 1);
	command->access = rights[kind < 3 ? 4 : chance(4)];
	if (kind >= 3 && kind < 9) {
		static const uint32_t bad[] = {PLACE_GUARD, PLACE_ACROSS, PLACE_NOWHERE};

		/* To be read alone it would be forced, on kernels before 6.2. */
		command->access = 1;
		command->place = bad[chance(3)];
		command->length += command->place == PLACE_ACROSS;
	}
}

static void plan_reregistration(struct order *order)
{
	static const uint32_t rights[] = {0, 1, 7, 2};
	struct command *command = &order->command;
	const struct mr *mr = order->mr;

	command->verb = VERB_REREGISTER;
	command->flags = 1 + (uint32_t)chance(7);
	command->pd = account.files[mr->file].pds[chance(PDS)];
	command->access = command->flags & 4 ? rights[chance(4)] : 0;
	command->length = random_length();
	command->offset = chance(ARENA_BYTES - command->length + 1);
}

static void plan(uint32_t index, struct order *order)
{
	struct process *process = &account.processes[index];
	uint64_t kind = chance(100);
	bool full = process->mrs >= MOST_OF_A_PROCESS;

	*order = (struct order){.process = index, .pinned_before = process->pinned};
	if (random_file(process) < 0) {
		/* All that it can do is to be given one, or to end. */
		order->process = UINT32_MAX;
		return;
	}
	order->mr = random_mr(process);
	if (!order->mr || (kind < 55 && !full)) {
		order->mr = NULL;
		plan_registration(process, &order->command);
		return;
	}
	order->mr->busy = true;
	if (kind >= 92)
		plan_reregistration(order);
	else
		order->command.verb = VERB_DEREGISTER;
	order->command.file = order->mr->file;
	order->command.handle = order->mr->handle;
}

/* One operation of each of some processes, at the same time. */
static void together(uint64_t most)
{
	struct order orders[MOST_AT_ONCE];
	struct answer answers[MOST_AT_ONCE];
	uint64_t count = 0;
	int came;

	for (uint32_t i = 0; i < account.born && count < most; i++) {
		if (!account.processes[i].alive || !chance(8))
			continue;
		plan(i, &orders[count]);
		count += orders[count].process == i;
	}
	for (uint64_t i = 0; i < count; i++)
		send_message(account.processes[orders[i].process].socket, &orders[i].command,
			     sizeof(orders[i].command), -1);
	for (uint64_t i = 0; i < count; i++) {
		int socket = account.processes[orders[i].process].socket;

		if (!receive_message(socket, &answers[i], sizeof(answers[i]), &came))
			fail("process %d ended by itself",
			     account.processes[orders[i].process].pid);
	}
	/* What was released meanwhile may have made the room that a registration needed. */
	for (uint64_t i = 0; i < count; i++)
		if (orders[i].command.verb == VERB_DEREGISTER)
			take_answer(&orders[i], &answers[i]);
	for (uint64_t i = 0; i < count; i++)
		if (orders[i].command.verb != VERB_DEREGISTER)
			take_answer(&orders[i], &answers[i]);
	account.operations += count;
}

/* Whether this driver has the command at all: where it has not, nobody is asked. */
static void learn_reregistration(void)
{
	struct order order = {.command = {.verb = VERB_REGISTER, .length = 1, .access = 1}};
	struct process *process = &account.processes[0];
	struct answer answer;
	int came;

	for (int step = 0; step < 3; step++) {
		order.command.file = (uint32_t)random_file(process);
		order.command.pd = account.files[order.command.file].pds[0];
		send_message(process->socket, &order.command, sizeof(order.command), -1);
		if (!receive_message(process->socket, &answer, sizeof(answer), &came))
			fail("process %d ended by itself", process->pid);
		if (step == 1)
			account.can_reregister = !answer.error;
		take_answer(&order, &answer);
		order.mr = account.mrs;
		order.command.handle = account.mrs[0].handle;
		order.command.flags = 4;
		order.command.verb = step ? VERB_DEREGISTER : VERB_REREGISTER;
	}
}

static uint64_t whole_number(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);

	if (!*text || *end) {
		fprintf(stderr, "random: %s: expected a number\n", text);
		exit(2);
	}
	return value;
}

/* What is read as a line lets it go on. */
static void await_line(void)
{
	char line[16];

	if (fflush(stdout))
		fail("nobody reads: %s", strerror(errno));
	if (!fgets(line, sizeof(line), stdin))
		exit(0);
}

static void stop(const char *op)
{
	print_account(op);
	await_line();
}

int main(int argc, char **argv)
{
	const char *given = getenv("MRSCOPE_SEED");
	uint64_t operations, every, most = MOST_AT_ONCE;

	if (argc < 3 || argc > 4) {
		fputs(
		    "usage: random OPERATIONS EVERY [ROWS]\n"
		    "Stops every so many operations. With ROWS, one at a time, and with an account "
		    "of what finds\na row in a map of that size. MRSCOPE_SEED is the seed.\n",
		    stderr);
		return 2;
	}
	operations = whole_number(argv[1]);
	every = whole_number(argv[2]);
	if (argc == 4) {
		account.room = whole_number(argv[3]);
		most = 1;
	}
	if (given && *given)
		seed = whole_number(given);
	else if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		fail("no seed: %s", strerror(errno));
	seed = seed % 1000000000 ? seed % 1000000000 : 1;
	state = seed * 0x9e3779b97f4a7c15ull;
	printf("{\"op\":\"ready\",\"ok\":true,\"seed\":%" PRIu64 "}\n", seed);
	await_line();

	start_process();
	learn_reregistration();
	while (account.operations < operations) {
		uint64_t next = (account.operations / every + 1) * every;
		uint64_t left = next - account.operations;

		if (!chance(most == 1 ? 24 : 6))
			solo();
		else
			together(left < most ? left : most);
		if (account.operations == next)
			stop("stop");
	}
	release_all();
	stop("released");
	return 0;
}
