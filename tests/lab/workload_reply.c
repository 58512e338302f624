// SPDX-License-Identifier: Apache-2.0
/* Replies: one line of JSON each. */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool reply_has_member;

/* Bytes beyond ASCII come out as their Latin-1 code points, so any bytes make valid JSON. */
static void put_text(const char *text)
{
	putchar('"');
	for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
		if (*at == '"' || *at == '\\')
			printf("\\%c", *at);
		else if (*at < 0x20 || *at >= 0x7f)
			printf("\\u%04x", *at);
		else
			putchar(*at);
	}
	putchar('"');
}

static void put_key(const char *key)
{
	if (reply_has_member)
		putchar(',');
	reply_has_member = true;
	put_text(key);
	putchar(':');
}

void reply_open(const char *op)
{
	putchar('{');
	reply_has_member = false;
	reply_text("op", op);
}

void reply_number(const char *key, uint64_t value)
{
	put_key(key);
	printf("%" PRIu64, value);
}

void reply_signed(const char *key, int64_t value)
{
	put_key(key);
	printf("%" PRId64, value);
}

void reply_bool(const char *key, bool value)
{
	put_key(key);
	fputs(value ? "true" : "false", stdout);
}

void reply_null(const char *key)
{
	put_key(key);
	fputs("null", stdout);
}

void reply_text(const char *key, const char *value)
{
	put_key(key);
	put_text(value);
}

void reply_errno(int error)
{
	const char *name = error ? strerrorname_np(error) : "";

	reply_signed("errno", error);
	reply_text("errno_name", name ? name : "?");
}

void reply_close(bool ok)
{
	reply_bool("ok", ok);
	fputs("}\n", stdout);
	if (fflush(stdout))
		die("stdout");
}

void reply_error(const char *op, int error, const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	reply_open(op);
	reply_text("error", text);
	reply_errno(error);
	reply_close(false);
}
