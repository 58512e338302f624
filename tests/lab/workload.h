/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lab's workload registers memory on command and reports what it did and how long it took.
 * It is the oracle of the truth tests, so it shares no code and no words with the exporter.
 *
 * workload.c        command lines in
 * workload_reply.c  JSON lines out
 * workload_mr.c     the device, the timed calls, the commands that keep, change or give back MRs
 * workload_raw.c    the commands that talk to the kernel without the library
 * workload_churn.c  the commands that end with as many MRs as they began with
 * workload_cycle.c  the commands that register the same buffers again and again
 * workload_devices.c  the commands that register one buffer on all devices
 * workload_os.c     mappings, threads, /proc/self, and the commands that change the process
 * workload_lives.c  the commands that make other processes
 * workload_lock.c   the commands that lock memory
 * workload_map.c    the commands that map memory and register none, and those that give up rights
 * workload_time.c   the commands that time system calls without a device
 * workload_stall.c  the commands that keep a registration in flight
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <infiniband/verbs.h>

/* pinned_vm counts in this unit whatever the size of the pages behind a mapping. */
#define BASE_PAGE_BYTES ((uint64_t)sysconf(_SC_PAGESIZE))
#define UNBOUNDED UINT64_MAX

/*
 * PAGES_PEER: none of the host's; a mapping of the vendor module's device. PAGES_MIXED: the lower
 * half 4k, the upper half transparent huge pages of node 1.
 */
enum pages { PAGES_4K, PAGES_THP, PAGES_2M, PAGES_1G, PAGES_PEER, PAGES_MIXED };
/* Backwards, pages that are neighbours in memory are none in the buffer. */
enum touch { TOUCH_NONE, TOUCH_FORWARDS, TOUCH_BACKWARDS };
enum via { VIA_LIBRARY, VIA_KERNEL };
enum by { BY_WRITE, BY_IOCTL };
/* CALL_EACH: all of them, one after another. */
enum call {
	CALL_MLOCK,
	CALL_MLOCK2,
	CALL_MUNLOCK,
	CALL_MLOCKALL,
	CALL_MUNLOCKALL,
	CALLS,
	CALL_EACH = CALLS
};
/* HOW_SOUND: the mapping is well, and a limit or the device what fails. */
enum how {
	HOW_PROTNONE,
	HOW_UNMAPPED,
	HOW_ACCESS,
	HOW_HUGEPAGE,
	HOW_READONLY,
	HOW_SOUND,
	HOW_IMPLICIT
};

/* One command's keys, defaults filled in. */
struct options {
	uint64_t count;	 /* UNBOUNDED: all */
	uint64_t size;	 /* bytes of one MR */
	uint64_t offset; /* bytes from the page-aligned start of the MR's buffer to the MR */
	uint64_t pages;	 /* enum pages */
	uint64_t touch;	 /* enum touch */
	uint64_t access; /* IBV_ACCESS_* */
	uint64_t threads;
	uint64_t rounds; /* UNBOUNDED: until seconds are over */
	uint64_t seconds;
	uint64_t mappers;
	uint64_t warmup;
	uint64_t how;	  /* enum how */
	uint64_t memlock; /* bytes; UNBOUNDED: unlimited */
	uint64_t uid;
	uint64_t flags; /* IBV_REREG_MR_CHANGE_* */
	uint64_t via;	/* enum via */
	uint64_t by;	/* enum by */
	uint64_t parallel;
	uint64_t rate;			  /* a second; 0: as fast as it goes */
	uint64_t call;			  /* enum call */
	uint64_t mode;			  /* flags of mlock2 and mlockall */
	uint64_t node;			  /* of NUMA */
	uint64_t fail, hold, share, lock; /* 0 or 1 */
	char *comm;
	bool rounds_given, seconds_given, size_given, node_given, how_given;
};

struct self_status {
	uint64_t vmpin;	  /* bytes */
	uint64_t vmlck;	  /* bytes */
	uint64_t hugetlb; /* bytes */
	bool cap_ipc_lock;
};

_Noreturn void die(const char *what); /* workload.c */

/* workload_reply.c: a reply is opened, gets its members, and is closed and flushed. */
void reply_open(const char *op);
void reply_number(const char *key, uint64_t value);
void reply_signed(const char *key, int64_t value);
void reply_bool(const char *key, bool value);
void reply_null(const char *key);
void reply_text(const char *key, const char *value);
void reply_errno(int error); /* 0: nothing failed */
void reply_close(bool ok);
void reply_error(const char *op, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* workload_mr.c */
struct calls {
	uint64_t count, ns_sum, ns_min, ns_max;
};

/* What a command, or one of its threads, did. */
struct tally {
	struct calls reg, dereg, reg_failed, dereg_failed;
	uint64_t bytes;	      /* lengths of the MRs of successful calls */
	uint64_t pages_bytes; /* the base pages those MRs lie on: what VmPin counts */
	int first_errno;
	uint64_t first_errno_at_ns;
};

/* NULL on failure; the time of the call in *ns either way. */
struct ibv_mr *register_timed(struct tally *tally, void *addr, uint64_t length, int access,
			      uint64_t *ns);
bool deregister_timed(struct tally *tally, struct ibv_mr *mr, uint64_t *ns);
void calls_add(struct calls *calls, uint64_t ns);
void calls_merge(struct calls *into, const struct calls *from);
void tally_error(struct tally *tally, int error, uint64_t at_ns);
void tally_bytes(struct tally *tally, const void *addr, uint64_t length);
void tally_merge(struct tally *into, const struct tally *from);
void reply_calls(const char *call, const struct calls *calls);
/* The members that every command with calls has, among them VmPin before and now. */
void reply_tally(const struct tally *tally, const struct self_status *before);
struct ibv_pd *mr_pd(void);
void mr_open(const char *device); /* ends the process if there is no such device */
int mr_close(void);		  /* deregisters everything; 0 or the error number */
void reply_held(void);
void run_reg(const char *op, const struct options *options);
void run_thread(const char *op, const struct options *options);
void run_dereg(const char *op, const struct options *options);
void run_rereg(const char *op, const struct options *options);

/* workload_raw.c */
void run_rawreg(const char *op, const struct options *options);
void run_rawdereg(const char *op, const struct options *options);

/* workload_churn.c */
void reply_quantiles(const char *what, uint64_t *ns, uint64_t count); /* sorts them */
void run_churn(const char *op, const struct options *options);
void run_pairs(const char *op, const struct options *options);
void run_fail(const char *op, const struct options *options);

/* workload_cycle.c */
void run_cycle(const char *op, const struct options *options);

/* workload_devices.c */
void run_spread(const char *op, const struct options *options);
void run_overlay(const char *op, const struct options *options);

/* workload_os.c */
/* Equal slots side by side in one mapping, so that many small MRs need one VMA. */
struct slots {
	char *base;
	uint64_t slot_bytes;
	uint64_t count;
};

/* Threads that all wait for one gate, so that their calls overlap. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	enum { GATE_SHUT, GATE_OPEN, GATE_CANCELLED } state;
};

struct team_thread {
	pthread_t id;
	struct gate *gate;
	void (*run)(void *);
	void *argument;
};

uint64_t now_ns(void);
struct self_status read_self(void);
bool slots_map(struct slots *slots, enum pages pages, uint64_t bytes, uint64_t count,
	       enum touch touch);
char *slot_at(const struct slots *slots, uint64_t index);
void touch_bytes(char *start, uint64_t bytes);
/* Where the calling thread's pages come from: this node alone, or any; 0 or -1 with errno. */
int take_pages_from(const uint64_t *node);
void unmap(void *start, uint64_t bytes); /* ends the process if it fails */
/* Starts every thread or none; on failure returns the error number. */
int team_start(struct team_thread *threads, size_t count, struct gate *gate);
void team_go(struct gate *gate);
void team_join(struct team_thread *threads, size_t count);
void run_status(const char *op, const struct options *options);
void run_rlimit(const char *op, const struct options *options);
void run_setuid(const char *op, const struct options *options);
void run_fork(const char *op, const struct options *options);
void run_name(const char *op, const struct options *options);
void run_become(const char *op, const struct options *options);

/* workload_lives.c */
void run_lives(const char *op, const struct options *options);
void run_share(const char *op, const struct options *options);

/* workload_lock.c */
void run_lock(const char *op, const struct options *options);
void run_mlock(const char *op, const struct options *options);
void run_mlockall(const char *op, const struct options *options);

/* workload_map.c */
char *newest_mapping(uint64_t *bytes);	/* NULL: none */
char *unmapped_address(uint64_t bytes); /* NULL: none */
void run_map(const char *op, const struct options *options);
void run_unmap(const char *op, const struct options *options);
void run_fragment(const char *op, const struct options *options);
void run_trial(const char *op, const struct options *options);
void run_userns(const char *op, const struct options *options);
void run_dropcap(const char *op, const struct options *options);

/* workload_stall.c */
void run_stall(const char *op, const struct options *options);
void run_stalled(const char *op, const struct options *options);
void run_resume(const char *op, const struct options *options);

/* workload_time.c */
void run_lock_pairs(const char *op, const struct options *options);
void run_batches(const char *op, const struct options *options);

#endif
