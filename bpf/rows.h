/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps that are read whole: name, key, value. The live pins only to compare them, for no page. */
#ifndef MRSCOPE_ROWS_H
#define MRSCOPE_ROWS_H

#include "process.h"
#include "umem.h"
#include "verbs.h"

enum {
	FORGOTTEN_ROWS = 256,
};

#define MAPS_READ_WHOLE(X)                                                                         \
	X(calls, __u64, struct call)                                                               \
	X(processes, struct process_key, struct process)                                           \
	X(totals, struct totals_key, struct totals)                                                \
	X(failures, struct failure_key, __u64)                                                     \
	X(last_failures, __u32, struct last_failure)                                               \
	X(devices, __u64, struct device)                                                           \
	X(device_samples, __u64, struct device_sample)                                             \
	X(pins, __u64, struct pin)                                                                 \
	X(placements, __u64, struct placement)

#endif
