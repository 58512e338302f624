/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * On which pages and nodes a pinned umem lies, from the pages of its scatter list. A step is the
 * part of one entry that lies in one frame of 2 MiB, aligned in physical memory: a frame lies in
 * one folio of 2 MiB or more, or holds smaller ones alone. Of a larger folio a step is all that the
 * entry has of it. What the steps do not reach, and what can't be read, stays unknown.
 */
#ifndef MRSCOPE_PLACEMENT_H
#define MRSCOPE_PLACEMENT_H

#include "live.h"

const volatile struct placement_choice placing = {};

MAP(placements, BPF_MAP_TYPE_HASH, 131072, __u64, struct placement);

enum {
	BASE_PAGE_SHIFT = 12, /* the only one that is walked, as the plan has it */
	PAGE_STRUCT_SHIFT = 6,
	FRAME_SHIFT = 9,
	FRAME_PAGES = 1 << FRAME_SHIFT,
	ORDER_2M = 9,
	ORDER_1G = 18,
	MOST_ORDER = 31,
	/* 4,096 steps; each of a stretch is verified, of the stretches one. */
	STEPS = 16,
	STRETCHES = 256,
	ENTRY_IS_CHAIN = 1,
	ENTRY_IS_LAST = 2,
};

#define ENTRY_FLAGS 3ULL

/* The start of struct scatterlist, on every kernel of 64 bits. */
struct scatter_entry {
	__u64 page_link;
	__u32 offset;
	__u32 length_bytes;
};

/* Words of a struct page and of the one behind it. */
enum page_word {
	WORD_FLAGS,
	WORD_HEAD, /* bit 0: of a tail */
	WORD_NEXT_FLAGS = 8,
	WORD_NEXT_HEAD,
	WORD_NEXT_ORDER,
	PAGE_WORDS,
	/* Of the last page of a frame: what is behind it may not be mapped. */
	WORDS_ALONE = 8,
};

/* Only MRs of host memory: the pages of others are the driver's or nobody's. */
static __always_inline int has_placement(const struct pin *pin)
{
	return placing.walks && pin->kind == KIND_HOST && pin->use == USE_MR;
}

static __always_inline void forget_placement(__u64 umem, const struct pin *pin)
{
	if (has_placement(pin))
		bpf_map_delete_elem(&placements, &umem);
}

/* Takes the next entry of the list; 0 if there is none. */
static __always_inline int next_entry(struct walk *walk)
{
	struct scatter_entry entry;
	__u64 at = walk->entry;

	if (!walk->entries || bpf_probe_read_kernel(&entry, sizeof(entry), (void *)at))
		return 0;
	if (entry.page_link & ENTRY_IS_CHAIN) {
		at = entry.page_link & ~ENTRY_FLAGS;
		if (bpf_probe_read_kernel(&entry, sizeof(entry), (void *)at) ||
		    entry.page_link & ENTRY_IS_CHAIN)
			return 0;
	}
	walk->page = entry.page_link & ~ENTRY_FLAGS;
	walk->pages = ((__u64)entry.offset + entry.length_bytes + (1 << BASE_PAGE_SHIFT) - 1) >>
		      BASE_PAGE_SHIFT;
	walk->entry = at + placing.scatter_bytes;
	walk->entries = entry.page_link & ENTRY_IS_LAST ? 0 : walk->entries - 1;
	return walk->page && walk->pages;
}

/*
 * The head of the folio that a tail is of. From 7.2 on the word may be a mask of the tail's address
 * with bit 0 set; no head lies in the last GiB of addresses, where all masks are.
 */
static __always_inline __u64 head_of(__u64 tail, __u64 word)
{
	return (word >> 30) == ~0ULL >> 30 ? tail & word : word - 1;
}

/* Takes so many pages of what comes next; where their place is not known they stay unknown. */
static __always_inline void count_part(struct walk *walk, struct placement *row, __u64 pages,
				       int known, __u32 place)
{
	if (pages > walk->pages)
		pages = walk->pages;
	walk->page += pages << PAGE_STRUCT_SHIFT;
	walk->pages -= pages;
	if (!known || place >= PLACES || pages > row->unknown_pages)
		return;
	row->pages[place] += pages;
	row->unknown_pages -= pages;
}

/* Counts what comes next, up to the end of its entry, its frame, or a folio larger than that. */
static __always_inline void place_part(struct walk *walk, struct placement *row)
{
	__u64 words[PAGE_WORDS] = {};
	__u64 page = walk->page;
	/*
	 * A struct page is 64 bytes (the plan has it), and the array of all is aligned far beyond a
	 * frame's 512 of them: so the address tells the frame, and the place in it.
	 */
	__u64 frame = page >> (PAGE_STRUCT_SHIFT + FRAME_SHIFT);
	__u32 index = (page >> PAGE_STRUCT_SHIFT) & (FRAME_PAGES - 1);
	__u32 bytes = index == FRAME_PAGES - 1 ? WORDS_ALONE * 8 : sizeof(words);
	__u64 pages = FRAME_PAGES - index;
	__u64 head = page;
	__u32 order = 0;
	__u32 place = CLASS_BASE;
	__u32 node;
	int known;

	/* Most scattered pages lie in the frame of the one before: what that holds is known. */
	if (frame == walk->base_frame) {
		count_part(walk, row, pages, 1, walk->base_place);
		return;
	}
	known = !bpf_probe_read_kernel(words, bytes, (void *)page);
	/* An odd page is no head; with an optimised vmemmap a tail may look like one. */
	if (words[WORD_HEAD] & 1)
		head = head_of(page, words[WORD_HEAD]);
	else if (!(index & 1) && words[WORD_NEXT_HEAD] & 1)
		head = head_of(page + (1 << PAGE_STRUCT_SHIFT), words[WORD_NEXT_HEAD]);
	if (head != page)
		known = known && !bpf_probe_read_kernel(words, sizeof(words), (void *)head);
	if (words[WORD_NEXT_HEAD] & 1 && (head != page || !(index & 1)))
		order = placing.order_in_flags ? words[WORD_NEXT_FLAGS] & 0xff
					       : (words[WORD_NEXT_ORDER] >> 8) & 0xff;
	if (order >= ORDER_2M && order <= MOST_ORDER) {
		__u64 before = (page - head) >> PAGE_STRUCT_SHIFT;

		known = known && before < 1ULL << order;
		if (known)
			pages = (1ULL << order) - before;
		place = order >= ORDER_1G ? CLASS_1G : CLASS_2M;
	}
	node = (words[WORD_FLAGS] >> placing.node_shift) & placing.node_mask;
	known = known && node < PLACEMENT_NODES;
	if (known && place == CLASS_BASE) {
		walk->base_frame = frame;
		walk->base_place = node * PAGE_CLASSES;
	}
	count_part(walk, row, pages, known, place + node * PAGE_CLASSES);
}

/* Some steps of the calling thread's walk; 1 once it is over. A global function: verified once. */
__noinline int place_stretch(__u64 umem)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct placement *row;
	struct call *call;
	int step;

	if (!placing.walks)
		return 1;
	call = bpf_map_lookup_elem(&calls, &thread);
	row = bpf_map_lookup_elem(&placements, &umem);
	if (!call || !row)
		return 1;
#pragma clang loop unroll(disable)
	for (step = 0; step < STEPS; step++) {
		if (!call->walk.pages && !next_entry(&call->walk))
			return 1;
		place_part(&call->walk, row);
	}
	return 0;
}

/* Makes the row of the umem that the calling thread has just pinned: that of its call's walk. */
__noinline int place(__u32 pages)
{
	__u64 begun_ns = bpf_ktime_get_ns();
	__u64 thread = bpf_get_current_pid_tgid();
	const struct settings *set = the_settings();
	struct placement row = {.unknown_pages = pages};
	struct call *call;
	__u64 umem;
	__u64 list = 0;
	int stretch;

	if (!placing.walks)
		return 0;
	call = bpf_map_lookup_elem(&calls, &thread);
	if (!call || !set || set->umem_list_offset == OFFSET_UNKNOWN ||
	    set->umem_entries_offset == OFFSET_UNKNOWN)
		return 0;
	umem = call->walk.entry;
	row.born_ns = call->start_ns;
	bpf_probe_read_kernel(&list, sizeof(list), (void *)(umem + set->umem_list_offset));
	bpf_probe_read_kernel(&row.entries, sizeof(row.entries),
			      (void *)(umem + set->umem_entries_offset));
	call->walk.entry = list;
	call->walk.entries = row.entries;
	call->walk.page = 0;
	call->walk.pages = 0;
	call->walk.base_frame = 0;
	/* One in its place is of an umem whose release was never seen. */
	if (bpf_map_update_elem(&placements, &umem, &row, BPF_ANY)) {
		count_lost(LOST_PLACEMENTS_NO_MEMORY);
		return 0;
	}
#pragma clang loop unroll(disable)
	for (stretch = 0; stretch < STRETCHES; stretch++)
		if (place_stretch(umem))
			break;
	call->walk_ns += bpf_ktime_get_ns() - begun_ns;
	return 0;
}

#endif
