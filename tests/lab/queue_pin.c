// SPDX-License-Identifier: Apache-2.0
/*
 * queue_pin DEVICE LENGTH COUNT
 * Pins COUNT buffers of LENGTH bytes outside any MR, by the lab's kernel module, and says so in
 * a line of JSON. A line "unpin" gives them all back. Ends with its input; the kernel gives back
 * what is then still pinned.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PINNER "/dev/mrscope_lab"

_Noreturn static void die(const char *format, ...)
{
	int error = errno;
	va_list arguments;

	fputs("queue_pin: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, ": %s\n", strerror(error));
	exit(1);
}

static uint64_t parse_number(const char *name, const char *text)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-') {
		errno = EINVAL;
		die("%s '%s'", name, text);
	}
	return value;
}

/* Bytes. */
static uint64_t own_vmpin(void)
{
	FILE *status = fopen("/proc/self/status", "re");
	char line[256];
	uint64_t kib = 0;
	int found = 0;

	if (!status)
		die("/proc/self/status");
	while (!found && fgets(line, sizeof(line), status))
		found = sscanf(line, "VmPin: %" SCNu64 " kB", &kib);
	fclose(status);
	if (!found) {
		errno = ENODATA;
		die("VmPin");
	}
	return kib * 1024;
}

static void reply(const char *op, uint64_t count, uint64_t bytes)
{
	printf("{\"op\":\"%s\",\"pid\":%d,\"count\":%" PRIu64 ",\"bytes\":%" PRIu64
	       ",\"vmpin\":%" PRIu64 "}\n",
	       op, getpid(), count, bytes, own_vmpin());
	fflush(stdout);
}

static void command(int pinner, const char *text)
{
	if (write(pinner, text, strlen(text)) < 0)
		die("'%s'", text);
}

static void pin_new_buffer(int pinner, const char *device, uint64_t length)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	char *buffer = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0);
	char text[128];

	if (buffer == MAP_FAILED)
		die("mmap");
	memset(buffer, 1, length);
	snprintf(text, sizeof(text), "pin %s %p %" PRIu64, device, (void *)buffer, length);
	command(pinner, text);
}

int main(int argc, char **argv)
{
	uint64_t length, count;
	char line[64];
	int pinner;

	if (argc != 4) {
		fputs("usage: queue_pin DEVICE LENGTH COUNT\n", stderr);
		return 2;
	}
	length = parse_number("LENGTH", argv[2]);
	count = parse_number("COUNT", argv[3]);
	pinner = open(PINNER, O_WRONLY | O_CLOEXEC);
	if (pinner < 0)
		die(PINNER);
	for (uint64_t i = 0; i < count; i++)
		pin_new_buffer(pinner, argv[1], length);
	reply("pinned", count, count * length);

	while (fgets(line, sizeof(line), stdin)) {
		if (strcmp(line, "unpin\n")) {
			errno = EINVAL;
			die("input '%s'", line);
		}
		for (uint64_t i = 0; i < count; i++)
			command(pinner, "unpin");
		reply("unpinned", count, count * length);
		count = 0;
	}
	return 0;
}
