/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The integer names that the records use. Read by clang for BPF and by bindgen for Rust. */
#ifndef MRSCOPE_TYPES_H
#define MRSCOPE_TYPES_H

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;

#endif
