/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A walk over each map that is read whole, which writes key and value of every row, and one that
 * deletes rows. A system call that looks rows up or deletes them keeps all programs of its CPU out
 * meanwhile; where the kernel preempts it, as 7.x does, that lasts until the caller runs again, and
 * every event of the CPU is lost. A walk keeps nobody out.
 */
#include "live.h"
#include "rows.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define ROWS_OF(map_, key_, value_)                                                                \
	SEC("iter/bpf_map_elem")                                                                   \
	int rows_##map_(struct bpf_iter__bpf_map_elem *ctx)                                        \
	{                                                                                          \
		struct seq_file *seq = ctx->meta->seq;                                             \
		void *key = ctx->key;                                                              \
		void *value = ctx->value;                                                          \
                                                                                                   \
		/* After the last row there is one call without any. */                            \
		if (!key || !value)                                                                \
			return 0;                                                                  \
		/* The kernel comes again with a row that did not fit whole. */                    \
		bpf_seq_write(seq, key, sizeof(key_));                                             \
		bpf_seq_write(seq, value, sizeof(value_));                                         \
		return 0;                                                                          \
	}

MAPS_READ_WHOLE(ROWS_OF)

/* Keys of processes to delete, written by user space into its mapping; tgid 0 is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FORGOTTEN_ROWS);
	__type(key, __u32);
	__type(value, struct process_key);
} forgotten SEC(".maps");

SEC("iter/bpf_map_elem")
int rows_forgotten(struct bpf_iter__bpf_map_elem *ctx)
{
	const struct process_key *row = ctx->value;
	struct process_key key;

	if (!row || !row->tgid)
		return 0;
	key = *row;
	bpf_map_delete_elem(&processes, &key);
	return 0;
}
