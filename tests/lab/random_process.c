// SPDX-License-Identifier: Apache-2.0
/* What one of the processes does on command. */
#define _GNU_SOURCE
#include "random.h"

#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
	int socket;
	struct traces *traces;
	char *arena;
	int fds[MOST_FILES];
} self;

void send_message(int socket, const void *bytes, size_t length, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = (void *)bytes, .iov_len = length};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (fd >= 0) {
		struct cmsghdr *header = &control.header;

		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	}
	if (sendmsg(socket, &message, MSG_NOSIGNAL) != (ssize_t)length)
		fail("a message could not be sent: %s", strerror(errno));
}

bool receive_message(int socket, void *bytes, size_t length, int *fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = bytes, .iov_len = length};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	*fd = -1;
	if (header && header->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(header), sizeof(*fd));
	return got == (ssize_t)length;
}

static uint64_t address_of(const struct command *command)
{
	uint64_t arena = (uintptr_t)self.arena;

	switch (command->place) {
	case PLACE_GUARD:
		return arena + ARENA_BYTES + command->offset % (GUARD_BYTES / 2);
	case PLACE_ACROSS:
		return arena + ARENA_BYTES - 1 - command->offset % (command->length - 1);
	case PLACE_NOWHERE: /* below what may be mapped */
		return page_bytes() + command->offset % page_bytes();
	default:
		return arena + command->offset;
	}
}

static int limit_memlock(uint64_t bytes)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	struct rlimit limit = {.rlim_cur = bytes, .rlim_max = bytes};

	if (setrlimit(RLIMIT_MEMLOCK, &limit) || syscall(SYS_capget, &header, data))
		return errno;
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	data[0].permitted &= ~(1u << CAP_IPC_LOCK);
	data[0].inheritable &= ~(1u << CAP_IPC_LOCK);
	return syscall(SYS_capset, &header, data) ? errno : 0;
}

/* Through a file that nobody else has, of memory that nobody has touched: it takes its time. */
static int register_large(void)
{
	uint32_t pds[PDS], handle;
	char *memory =
	    mmap(NULL, LARGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd, error;

	if (memory == MAP_FAILED)
		fail("no memory for a large registration: %s", strerror(errno));
	/* Page by page, or it would be over too soon. */
	madvise(memory, LARGE_BYTES, MADV_NOHUGEPAGE);
	error = verbs_open(device_name, &fd, pds);
	if (!error)
		error = verbs_register(fd, pds[0], (uintptr_t)memory, LARGE_BYTES, 1, &handle);
	__atomic_store_n(&self.traces->error, error, __ATOMIC_RELAXED);
	__atomic_store_n(&self.traces->ended, 1, __ATOMIC_RELEASE);
	return error;
}

/* A child of this one's parent, which can wait for it. It has all that this one has open. */
static pid_t fork_sibling(int socket)
{
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(self.socket);
		self.socket = socket;
	}
	return pid;
}

static int do_as_told(const struct command *command, struct answer *answer, int came)
{
	int *file = &self.fds[command->file % MOST_FILES];
	int error = 0;

	switch (command->verb) {
	case VERB_OPEN:
		return verbs_open(device_name, file, answer->pds);
	case VERB_CLOSE:
		error = close(*file) ? errno : 0;
		*file = -1;
		return error;
	case VERB_REGISTER:
		answer->address = address_of(command);
		return verbs_register(*file, command->pd, answer->address, command->length,
				      command->access, &answer->handle);
	case VERB_DEREGISTER:
		return verbs_deregister(*file, command->handle);
	case VERB_REREGISTER:
		return verbs_reregister(*file, command->handle, command->flags, command->pd,
					address_of(command), command->length, command->access);
	case VERB_TAKE:
		*file = came;
		return came < 0 ? EBADF : 0;
	case VERB_LIMIT:
		return limit_memlock(command->length);
	case VERB_LARGE:
		return register_large();
	default:
		return 0;
	}
}

_Noreturn void process_main(int socket, struct traces *traces)
{
	struct command command;
	int came;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	self.socket = socket;
	self.traces = traces;
	memset(self.fds, -1, sizeof(self.fds));
	self.arena =
	    mmap(NULL, ARENA_BYTES + GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (self.arena == MAP_FAILED || mprotect(self.arena, ARENA_BYTES, PROT_READ | PROT_WRITE))
		fail("no memory for the arena: %s", strerror(errno));
	madvise(self.arena, ARENA_BYTES, MADV_NOHUGEPAGE);
	memset(self.arena, 1, ARENA_BYTES);
	while (receive_message(self.socket, &command, sizeof(command), &came)) {
		struct answer answer = {0};
		int gives = -1;

		if (command.verb == VERB_FORK) {
			answer.pid = fork_sibling(came);
			answer.error = answer.pid < 0 ? errno : 0;
			if (answer.pid == 0)
				continue;
			close(came);
		} else {
			answer.error = do_as_told(&command, &answer, came);
		}
		if (command.verb == VERB_GIVE)
			gives = self.fds[command.file % MOST_FILES];
		send_message(self.socket, &answer, sizeof(answer), gives);
	}
	_exit(0);
}
