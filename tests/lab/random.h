/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random registrations by several processes, with an account of what each of them holds. It talks
 * to the kernel alone: no library, and nothing of the exporter's.
 *
 * random.c          arguments, the operations by chance, stops
 * random_account.c  who holds what, and what came of each operation
 * random_solo.c     operations that no other may run beside: births, deaths, open files
 * random_process.c  what one of the processes does on command
 * random_verbs.c    the kernel's commands
 */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	MOST_FILES = 64,
	MOST_PROCESSES = 4096, /* in all of a run */
	MOST_MRS = 8192,       /* at once */
	PDS = 2,
};

#define ARENA_BYTES (4ull << 20)
/* Behind the arena: may neither be read nor written. */
#define GUARD_BYTES (4ull << 20)
#define LARGE_BYTES (32ull << 20)

enum verb {
	VERB_OPEN,
	VERB_CLOSE,
	VERB_REGISTER,
	VERB_DEREGISTER,
	VERB_REREGISTER,
	VERB_FORK,
	VERB_GIVE, /* its answer carries the file */
	VERB_TAKE, /* the command carries the file */
	VERB_LIMIT,
	VERB_LARGE, /* through a file of its own */
};

/* Of a registration that has to fail, or not. */
enum place { PLACE_ARENA, PLACE_GUARD, PLACE_ACROSS, PLACE_NOWHERE };

struct command {
	uint32_t verb, file;
	uint32_t pd, handle;
	uint32_t access, flags;
	uint32_t place, unused;
	uint64_t offset, length;
};

struct answer {
	int32_t error;
	int32_t pid; /* of a fork */
	uint32_t handle;
	uint32_t pds[PDS];
	uint32_t unused;
	uint64_t address; /* of what was registered */
};

/* What a killed process leaves to be read. */
struct traces {
	int32_t ended; /* its large registration, as it saw it */
	int32_t error;
};

struct file {
	bool live;
	uint32_t holders;
	uint32_t pds[PDS];
};

enum cause { BAD_ADDRESS, MEMLOCK_LIMIT, REFUSED, CAUSES };

struct process {
	pid_t pid;
	int socket;
	bool alive, limited;
	bool holds[MOST_FILES];
	uint64_t limit; /* bytes */
	/* What it registered and what of that lives, whoever holds it. */
	uint64_t mrs, bytes, pinned;
	/* Of these, what had a row in the exporter's map. */
	uint64_t counted, counted_bytes, counted_pinned;
	uint64_t registrations, failures[CAUSES];
};

struct mr {
	bool live, busy, counted;
	bool writable; /* its pages were pinned to be written */
	uint32_t file, handle;
	uint32_t owner; /* index of a process */
	uint64_t length, pinned;
};

/* What a process was told to do. */
struct order {
	struct command command;
	uint32_t process;
	struct mr *mr; /* NULL for registrations */
	uint64_t pinned_before;
};

struct account {
	struct process processes[MOST_PROCESSES];
	struct file files[MOST_FILES];
	struct mr mrs[MOST_MRS];
	uint32_t born, alive;
	uint64_t room; /* rows of the exporter's map; 0: enough */
	uint64_t rows, lost;
	bool can_reregister;
	uint64_t operations, live, live_bytes, live_pinned;
	uint64_t registered, registered_bytes, reregistered;
	uint64_t large_registered, large_unknown; /* by processes that were killed in it */
	uint64_t most_orphans;			  /* MRs of processes that had ended, at a stop */
	uint64_t opened, closed, forked, given, killed, killed_large;
	uint64_t failures[CAUSES];
};

extern struct account account;

_Noreturn __attribute__((format(printf, 1, 2))) void fail(const char *format, ...);

/* random.c: xorshift64*, so that a seed means the same everywhere. */
uint64_t chance(uint64_t below);

/* random_account.c */
uint64_t page_bytes(void);
uint64_t span_bytes(uint64_t address, uint64_t length);
struct process *process_born(pid_t pid, int socket);
void take_answer(const struct order *order, const struct answer *answer);
void file_let_go(struct process *process, uint32_t file);
void process_ended(struct process *process);
/* -1: none. */
int32_t random_process(bool (*fits)(const struct process *process));
int32_t random_file(const struct process *process);
struct mr *random_mr(const struct process *process);
void print_account(const char *op);

/* random_solo.c */
void start_process(void);
void solo(void);
void release_all(void);

/* random_process.c */
void send_message(int socket, const void *bytes, size_t length, int fd);
/* False at the end of the other side; the file that came, or -1, in *fd. */
bool receive_message(int socket, void *bytes, size_t length, int *fd);
_Noreturn void process_main(int socket, struct traces *traces);

/* random_verbs.c: 0 or the error number. */
int verbs_open(const char *device, int *fd, uint32_t pds[PDS]);
int verbs_register(int fd, uint32_t pd, uint64_t address, uint64_t length, uint32_t access,
		   uint32_t *handle);
int verbs_deregister(int fd, uint32_t handle);
int verbs_reregister(int fd, uint32_t handle, uint32_t flags, uint32_t pd, uint64_t address,
		     uint64_t length, uint32_t access);
extern const char *device_name;

#endif
