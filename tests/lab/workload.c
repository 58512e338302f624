// SPDX-License-Identifier: Apache-2.0
/* Command lines in: verb key=value ... */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

_Noreturn void die(const char *what)
{
	int error = errno;

	fprintf(stderr, "workload: %s: %s (%s)\n", what, strerror(error),
		strerrorname_np(error) ? strerrorname_np(error) : "?");
	_exit(1);
}

enum key_bits {
	COUNT = 1 << 0,
	SIZE = 1 << 1,
	OFFSET = 1 << 2,
	PAGES = 1 << 3,
	TOUCH = 1 << 4,
	ACCESS = 1 << 5,
	THREADS = 1 << 6,
	ROUNDS = 1 << 7,
	SECONDS = 1 << 8,
	MAPPERS = 1 << 9,
	WARMUP = 1 << 10,
	HOW = 1 << 11,
	MEMLOCK = 1 << 12,
	UID = 1 << 13,
	FLAGS = 1 << 14,
	COMM = 1 << 15,
	VIA = 1 << 16,
	PARALLEL = 1 << 17,
	FAIL = 1 << 18,
	HOLD = 1 << 19,
	SHARE = 1 << 20,
	RATE = 1 << 21,
	BY = 1 << 22,
	CALL = 1 << 23,
	MODE = 1 << 24,
	NODE = 1 << 25,
	LOCK = 1 << 26,
	BUFFER = SIZE | OFFSET | PAGES | ACCESS,
};

struct word {
	const char *name; /* NULL ends a list */
	uint64_t value;
};

static const struct word count_words[] = {{"all", UNBOUNDED}, {0}};
static const struct word memlock_words[] = {{"unlimited", UNBOUNDED}, {0}};
static const struct word pages_words[] = {{"4k", PAGES_4K},
					  {"thp", PAGES_THP},
					  {"2m", PAGES_2M},
					  {"1g", PAGES_1G},
					  {"peer", PAGES_PEER},
					  {"mixed", PAGES_MIXED},
					  {0}};
static const struct word how_words[] = {{"protnone", HOW_PROTNONE}, {"unmapped", HOW_UNMAPPED},
					{"access", HOW_ACCESS},	    {"hugepage", HOW_HUGEPAGE},
					{"readonly", HOW_READONLY}, {"sound", HOW_SOUND},
					{"implicit", HOW_IMPLICIT}, {0}};
static const struct word access_words[] = {
    {"local", IBV_ACCESS_LOCAL_WRITE},
    {"remote", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ},
    {"remote_only", IBV_ACCESS_REMOTE_READ},
    {"odp", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND},
    {0}};
static const struct word flags_words[] = {{"access", IBV_REREG_MR_CHANGE_ACCESS},
					  {"pd", IBV_REREG_MR_CHANGE_PD},
					  {"translation", IBV_REREG_MR_CHANGE_TRANSLATION},
					  {0}};

static const struct word via_words[] = {{"library", VIA_LIBRARY}, {"kernel", VIA_KERNEL}, {0}};
static const struct word call_words[] = {{"mlock", CALL_MLOCK},
					 {"mlock2", CALL_MLOCK2},
					 {"munlock", CALL_MUNLOCK},
					 {"mlockall", CALL_MLOCKALL},
					 {"munlockall", CALL_MUNLOCKALL},
					 {"each", CALL_EACH},
					 {0}};
static const struct word by_words[] = {{"write", BY_WRITE}, {"ioctl", BY_IOCTL}, {0}};

static const struct key {
	const char *name;
	unsigned int bit;
	size_t at;		  /* offset in struct options */
	uint64_t least, most;	  /* most 0: no numbers, only words */
	const struct word *words; /* flags: several, joined by commas */
	const char *expected;
} keys[] = {
    {"count", COUNT, offsetof(struct options, count), 1, 1 << 24, count_words,
     "a number from 1 to 16M, or all for dereg and unmap"},
    {"size", SIZE, offsetof(struct options, size), 1, 1ull << 44, NULL,
     "a number from 1 to 16384G, with an optional suffix K, M or G"},
    {"offset", OFFSET, offsetof(struct options, offset), 0, 1ull << 44, NULL,
     "a number from 0 to 16384G, with an optional suffix K, M or G"},
    {"pages", PAGES, offsetof(struct options, pages), 0, 0, pages_words, "4k, thp, 2m, 1g or peer"},
    {"touch", TOUCH, offsetof(struct options, touch), 0, TOUCH_BACKWARDS, NULL,
     "0, 1, or 2 for from the end to the start"},
    {"access", ACCESS, offsetof(struct options, access), 0, 0, access_words,
     "local, remote, remote_only or odp"},
    {"threads", THREADS, offsetof(struct options, threads), 1, 4096, NULL,
     "a number from 1 to 4096"},
    {"rounds", ROUNDS, offsetof(struct options, rounds), 1, 1 << 30, NULL,
     "a number from 1 to 1024M"},
    {"seconds", SECONDS, offsetof(struct options, seconds), 1, 86400, NULL,
     "a number from 1 to 86400"},
    {"mappers", MAPPERS, offsetof(struct options, mappers), 0, 4096, NULL,
     "a number from 0 to 4096"},
    {"warmup", WARMUP, offsetof(struct options, warmup), 0, 1 << 30, NULL,
     "a number from 0 to 1024M"},
    {"how", HOW, offsetof(struct options, how), 0, 0, how_words,
     "protnone, unmapped, access, hugepage, readonly, sound or implicit"},
    {"memlock", MEMLOCK, offsetof(struct options, memlock), 0, UINT64_MAX - 1, memlock_words,
     "bytes, with an optional suffix K, M or G, or unlimited"},
    {"uid", UID, offsetof(struct options, uid), 0, UINT32_MAX - 1, NULL, "a user id"},
    {"flags", FLAGS, offsetof(struct options, flags), 0, 0, flags_words,
     "access, pd or translation, several joined by commas"},
    {"via", VIA, offsetof(struct options, via), 0, 0, via_words, "library or kernel"},
    {"by", BY, offsetof(struct options, by), 0, 0, by_words, "write or ioctl"},
    {"parallel", PARALLEL, offsetof(struct options, parallel), 1, 4096, NULL,
     "a number from 1 to 4096"},
    {"rate", RATE, offsetof(struct options, rate), 0, 1 << 20, NULL,
     "a number a second from 0 to 1024K; 0 is no limit"},
    {"call", CALL, offsetof(struct options, call), 0, 0, call_words,
     "mlock, mlock2, munlock, mlockall, munlockall or each"},
    {"mode", MODE, offsetof(struct options, mode), 0, UINT32_MAX, NULL, "a number of 32 bits"},
    {"node", NODE, offsetof(struct options, node), 0, 62, NULL, "a number from 0 to 62"},
    {"lock", LOCK, offsetof(struct options, lock), 0, 1, NULL, "0 or 1"},
    {"fail", FAIL, offsetof(struct options, fail), 0, 1, NULL, "0 or 1"},
    {"hold", HOLD, offsetof(struct options, hold), 0, 1, NULL, "0 or 1"},
    {"share", SHARE, offsetof(struct options, share), 0, 1, NULL, "0 or 1"},
    {"comm", COMM, offsetof(struct options, comm), 0, 0, NULL,
     "a text without spaces; %XX stands for the byte with that hex code, 00 excepted"},
};

static void run_leave(const char *op, const struct options *options);
static void run_quit(const char *op, const struct options *options);
static void run_abandon(const char *op, const struct options *options);

static const struct verb {
	const char *name;
	void (*run)(const char *op, const struct options *options);
	unsigned int allowed, required;
} verbs[] = {
    {"reg", run_reg, COUNT | BUFFER | TOUCH | THREADS | NODE, 0},
    {"thread", run_thread, COUNT | BUFFER | TOUCH, 0},
    {"dereg", run_dereg, COUNT, COUNT},
    {"churn", run_churn, BUFFER | TOUCH | THREADS | ROUNDS | SECONDS | MAPPERS, 0},
    {"cycle", run_cycle, COUNT | BUFFER | TOUCH | ROUNDS, 0},
    {"spread", run_spread, BUFFER | TOUCH | ROUNDS, 0},
    {"overlay", run_overlay, COUNT | SIZE | OFFSET | ACCESS | SHARE, 0},
    {"pairs", run_pairs, BUFFER | TOUCH | ROUNDS | WARMUP, 0},
    {"fail", run_fail, HOW | SIZE | COUNT | ACCESS, HOW},
    {"rereg", run_rereg, FLAGS | VIA | BUFFER | TOUCH | HOW, FLAGS},
    {"rawreg", run_rawreg, BY | COUNT | SIZE, BY},
    {"rawdereg", run_rawdereg, BY, BY},
    {"rlimit", run_rlimit, MEMLOCK, MEMLOCK},
    {"setuid", run_setuid, UID, UID},
    {"fork", run_fork, 0, 0},
    {"name", run_name, COMM, COMM},
    {"become", run_become, COMM, COMM},
    {"lives", run_lives, COUNT | SIZE | PARALLEL | RATE | FAIL | HOLD | SHARE, 0},
    {"mlock", run_mlock, SIZE, SIZE},
    {"mlockall", run_mlockall, 0, 0},
    {"share", run_share, 0, 0},
    {"lock", run_lock, CALL | SIZE | OFFSET | MODE | THREADS | ROUNDS | FAIL | HOW, CALL},
    {"map", run_map, SIZE | PAGES | NODE | TOUCH | LOCK, SIZE},
    {"unmap", run_unmap, COUNT, 0},
    {"fragment", run_fragment, COUNT, COUNT},
    {"trial", run_trial, SIZE | PAGES | NODE | TOUCH | LOCK, SIZE},
    {"userns", run_userns, 0, 0},
    {"dropcap", run_dropcap, 0, 0},
    {"lock_pairs", run_lock_pairs, ROUNDS | WARMUP, 0},
    {"batches", run_batches, ROUNDS, 0},
    {"stall", run_stall, SIZE, 0},
    {"stalled", run_stalled, 0, 0},
    {"resume", run_resume, 0, 0},
    {"leave", run_leave, 0, 0},
    {"status", run_status, 0, 0},
    {"quit", run_quit, 0, 0},
    {"abandon", run_abandon, 0, 0},
};

static const struct options defaults = {
    .count = 1,
    .size = 1 << 20,
    .pages = PAGES_4K,
    .touch = 1,
    .access = IBV_ACCESS_LOCAL_WRITE,
    .threads = 1,
    .parallel = 1,
    .rounds = 100,
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static bool parse_number(const char *text, uint64_t *value)
{
	static const char suffixes[] = "KMG";
	unsigned int shift = 0;
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*value = strtoull(text, &end, 10);
	if (errno)
		return false;
	if (*end) {
		const char *suffix = strchr(suffixes, *end);

		if (!suffix || end[1])
			return false;
		shift = 10 * (unsigned int)(suffix - suffixes + 1);
	}
	if (*value > UINT64_MAX >> shift)
		return false;
	*value <<= shift;
	return true;
}

static bool find_word(const struct word *words, const char *text, uint64_t *value)
{
	for (; words && words->name; words++) {
		if (strcmp(words->name, text) == 0) {
			*value = words->value;
			return true;
		}
	}
	return false;
}

static bool parse_flags(char *text, uint64_t *flags)
{
	uint64_t flag;
	char *rest = text;

	*flags = 0;
	while (rest) {
		if (!find_word(flags_words, strsep(&rest, ","), &flag))
			return false;
		*flags |= flag;
	}
	return true;
}

/* In place. */
static bool decode_text(char *text)
{
	unsigned int byte;
	char *to = text;
	int used;

	for (; *text; text++) {
		if (*text != '%') {
			*to++ = *text;
			continue;
		}
		used = 0;
		if (sscanf(text + 1, "%2x%n", &byte, &used) != 1 || used != 2 || !byte)
			return false;
		*to++ = (char)byte;
		text += 2;
	}
	*to = '\0';
	return true;
}

static bool parse_value(const struct key *key, char *text, struct options *options)
{
	uint64_t *value = (uint64_t *)((char *)options + key->at);

	if (key->bit == COMM) {
		options->comm = text;
		return decode_text(text);
	}
	if (key->bit == FLAGS)
		return parse_flags(text, value);
	if (find_word(key->words, text, value))
		return true;
	return key->most && parse_number(text, value) && *value >= key->least &&
	       *value <= key->most;
}

/* Names joined by ", ", those of keys in the mask or, with mask 0, those of all verbs. */
static void list_names(char *text, size_t room, unsigned int mask)
{
	size_t count = mask ? LENGTH(keys) : LENGTH(verbs), used = 0;

	text[0] = '\0';
	for (size_t i = 0; i < count && used < room; i++) {
		if (mask && !(keys[i].bit & mask))
			continue;
		used += (size_t)snprintf(text + used, room - used, "%s%s", used ? ", " : "",
					 mask ? keys[i].name : verbs[i].name);
	}
}

static const struct key *find_key(const char *name)
{
	for (size_t i = 0; i < LENGTH(keys); i++)
		if (strcmp(keys[i].name, name) == 0)
			return &keys[i];
	return NULL;
}

/* Fills in options; on a mistake replies what was expected and returns false. */
static bool parse_keys(const struct verb *verb, char *rest, struct options *options)
{
	unsigned int given = 0;
	char names[256];

	for (char *word; (word = strsep(&rest, " \t"));) {
		char *value = strchr(word, '=');
		const struct key *key;

		if (!*word)
			continue;
		if (value)
			*value++ = '\0';
		key = find_key(word);
		list_names(names, sizeof(names), verb->allowed);
		if (!key || !(key->bit & verb->allowed)) {
			reply_error(verb->name, 0, "unknown key %.80s: expected %s", word,
				    verb->allowed ? names : "none");
			return false;
		}
		if (given & key->bit) {
			reply_error(verb->name, 0, "%s: expected only once", key->name);
			return false;
		}
		given |= key->bit;
		if (!value || !*value || !parse_value(key, value, options) ||
		    (key->bit == COUNT && options->count == UNBOUNDED && verb->run != run_dereg &&
		     verb->run != run_unmap)) {
			reply_error(verb->name, 0, "%s=%.80s: expected %s", key->name,
				    value ? value : "", key->expected);
			return false;
		}
	}
	if (verb->required & ~given) {
		list_names(names, sizeof(names), verb->required & ~given);
		reply_error(verb->name, 0, "expected %s", names);
		return false;
	}
	options->rounds_given = given & ROUNDS;
	options->seconds_given = given & SECONDS;
	options->size_given = given & SIZE;
	options->node_given = given & NODE;
	options->how_given = given & HOW;
	return true;
}

static void run_line(char *line)
{
	struct options options = defaults;
	const char *word;
	char names[256];

	line[strcspn(line, "\r\n")] = '\0';
	line += strspn(line, " \t");
	if (!*line)
		return;
	word = strsep(&line, " \t");
	for (size_t i = 0; i < LENGTH(verbs); i++) {
		if (strcmp(verbs[i].name, word) != 0)
			continue;
		if (parse_keys(&verbs[i], line, &options))
			verbs[i].run(verbs[i].name, &options);
		return;
	}
	list_names(names, sizeof(names), 0);
	reply_error(word, 0, "unknown command: expected %s", names);
}

static _Noreturn void finish(const char *op)
{
	int error = mr_close();

	if (op) {
		reply_open(op);
		reply_errno(error);
		reply_close(!error);
	} else if (error) {
		errno = error;
		die("deregistration at the end");
	}
	exit(error ? 1 : 0);
}

static void run_quit(const char *op, const struct options *options)
{
	(void)options;
	finish(op);
}

static void run_abandon(const char *op, const struct options *options)
{
	(void)options;
	reply_open(op);
	reply_held();
	reply_close(true);
	_exit(0);
}

static _Noreturn void *run_lines(void *unused)
{
	char *line = NULL;
	size_t room = 0;

	(void)unused;
	errno = 0;
	while (getline(&line, &room, stdin) >= 0) {
		run_line(line);
		errno = 0;
	}
	if (ferror(stdin))
		die("stdin");
	free(line);
	finish(NULL);
}

/* The main thread ends and another takes its place: the process has a dead leader from then on. */
static void run_leave(const char *op, const struct options *options)
{
	pthread_t next;
	int error;

	(void)options;
	reply_open(op);
	reply_close(true);
	error = pthread_create(&next, NULL, run_lines, NULL);
	if (error) {
		errno = error;
		die("pthread_create");
	}
	syscall(SYS_exit, 0);
}

int main(int argc, char **argv)
{
	const char *device = "rxe0";
	struct self_status self;

	if (argc == 3 && strcmp(argv[1], "--device") == 0) {
		device = argv[2];
	} else if (argc != 1) {
		fputs("usage: workload [--device NAME]\n", stderr);
		return 2;
	}
	/* A reader that went away shows as an error of stdout. */
	signal(SIGPIPE, SIG_IGN);
	mr_open(device);
	self = read_self();
	reply_open("ready");
	reply_number("pid", (uint64_t)getpid());
	reply_text("device", device);
	reply_number("uid", geteuid());
	reply_bool("cap_ipc_lock", self.cap_ipc_lock);
	reply_number("vmpin", self.vmpin);
	reply_close(true);
	run_lines(NULL);
}
