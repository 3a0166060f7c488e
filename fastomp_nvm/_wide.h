#ifndef FASTOMP_WIDE_H
#define FASTOMP_WIDE_H

#include <limits.h> /* any header of the C library says whether it is glibc */

/* A loop compiled twice, the better one chosen when the module loads. What it computes entry by entry has the same bits in both,
 * as long as nothing is fused: build with -ffp-contract=off. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#endif
