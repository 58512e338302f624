/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What memory lies at an address of the caller, by the kernel's tree of mappings, read without its
 * lock: a mapping that changes meanwhile may be told wrongly. Asked for calls alone that failed.
 */
#ifndef MRSCOPE_VMA_H
#define MRSCOPE_VMA_H

#include "kernel.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* A red-black tree up to 6.0, since 524e00b36e8c (6.1) a maple tree. */
struct rb_node {
	struct rb_node *rb_right;
	struct rb_node *rb_left;
};

struct rb_root {
	struct rb_node *rb_node;
};

struct maple_tree {
	void *ma_root;
};

struct mm_struct___rb {
	struct rb_root mm_rb;
};

struct mm_struct___maple {
	struct maple_tree mm_mt;
};

/* Until 6.1 (f1a7941243c1). */
struct mm_rss_stat {
	int events;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	struct rb_node vm_rb;
};

struct maple_range_64 {
	unsigned long pivot[15];
	void *slot[16];
};

struct maple_arange_64 {
	unsigned long pivot[9];
	void *slot[10];
};

#pragma clang attribute pop

#define VM_WRITE 0x2
#define VM_HUGETLB 0x400000

enum {
	/* Twice the binary logarithm of more mappings than a process can have (2^31). */
	RB_DEPTH = 64,
	/* Nodes have at least five entries but for the root: 2^31 mappings take 14 levels. */
	MAPLE_DEPTH = 14,
	MAPLE_TYPE_SHIFT = 3,
	MAPLE_TYPES = 0xf,
	MAPLE_ARANGE_64 = 3,
	MAPLE_LEAF_64 = 1,
	RANGE_PIVOTS = 15,
	ARANGE_PIVOTS = 9,
};

static __always_inline void *vma_in_rb(struct mm_struct *mm, __u64 address)
{
	struct mm_struct___rb *tree = (void *)mm;
	__u64 in_vma = bpf_core_field_offset(struct vm_area_struct, vm_rb);
	struct rb_node *node = BPF_CORE_READ(tree, mm_rb.rb_node);

	for (int depth = 0; depth < RB_DEPTH && node; depth++) {
		struct vm_area_struct *vma = (void *)node - in_vma;

		if (address < BPF_CORE_READ(vma, vm_start))
			node = BPF_CORE_READ(node, rb_left);
		else if (address >= BPF_CORE_READ(vma, vm_end))
			node = BPF_CORE_READ(node, rb_right);
		else
			return vma;
	}
	return NULL;
}

static __always_inline __u64 read_word(__u64 at)
{
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)at);
	return word;
}

/*
 * What an encoded node of a maple tree has for an address: one below it, or the mapping. A global
 * function, as its loop is long to verify: so it is verified once, not at each depth.
 */
__noinline __u64 maple_entry(__u64 encoded, __u64 address)
{
	/* Its address in units of 256 bytes, and its type. */
	__u64 node = encoded & ~0xffull;
	__u64 pivots, slots;
	__u32 slot = RANGE_PIVOTS;

	if (!bpf_core_field_exists(struct mm_struct___maple, mm_mt))
		return 0;
	pivots = node + bpf_core_field_offset(struct maple_range_64, pivot);
	slots = node + bpf_core_field_offset(struct maple_range_64, slot);
	if ((encoded >> MAPLE_TYPE_SHIFT & MAPLE_TYPES) == MAPLE_ARANGE_64) {
		slot = ARANGE_PIVOTS;
		pivots = node + bpf_core_field_offset(struct maple_arange_64, pivot);
		slots = node + bpf_core_field_offset(struct maple_arange_64, slot);
	}
	for (__u32 at = 0; at < RANGE_PIVOTS && at < slot; at++) {
		__u64 pivot = read_word(pivots + at * sizeof(pivot));

		/* The last entry of a node that is not full has none. */
		if (pivot >= address || (!pivot && at)) {
			slot = at;
			break;
		}
	}
	return read_word(slots + slot * sizeof(__u64));
}

static __always_inline void *vma_in_maple(struct mm_struct *mm, __u64 address)
{
	struct mm_struct___maple *tree = (void *)mm;
	__u64 entry = (__u64)BPF_CORE_READ(tree, mm_mt.ma_root);

	/* xa_is_node(); a root that is none is an entry for address 0. */
	if ((entry & 3) != 2 || entry <= 4096)
		return NULL;
	for (int depth = 0; depth < MAPLE_DEPTH; depth++) {
		__u64 node = entry;

		entry = maple_entry(node, address);
		if ((node >> MAPLE_TYPE_SHIFT & MAPLE_TYPES) == MAPLE_LEAF_64)
			return (void *)entry;
	}
	return NULL;
}

/*
 * Whether the kernel pins read-only hugepages for who only reads. Until 6.1 it does so as if to
 * write, by force. 6.1 alone refuses that for hugepages (1d8d14641fd9, f347454d0341): from 6.2 on
 * it only reads.
 */
static __always_inline int pins_readonly_hugepages(void)
{
	return !bpf_core_field_exists(struct mm_struct___maple, mm_mt) ||
	       !bpf_core_type_exists(struct mm_rss_stat);
}

/* Whether it lies in a mapping of hugepages of the pool that may be used so. */
static __noinline int on_hugepages(__u64 address, __u32 write)
{
	struct mm_struct *mm = BPF_CORE_READ(current_task(), mm);
	struct vm_area_struct *vma;
	__u64 flags;

	if (!mm)
		return 0;
	if (bpf_core_field_exists(struct mm_struct___maple, mm_mt))
		vma = vma_in_maple(mm, address);
	else if (bpf_core_field_exists(struct mm_struct___rb, mm_rb))
		vma = vma_in_rb(mm, address);
	else
		return 0;
	if (!vma)
		return 0;
	if (address < BPF_CORE_READ(vma, vm_start) || address >= BPF_CORE_READ(vma, vm_end))
		return 0;
	flags = BPF_CORE_READ(vma, vm_flags);
	if (!(flags & VM_HUGETLB))
		return 0;
	return (flags & VM_WRITE) || (!write && pins_readonly_hugepages());
}

#endif
