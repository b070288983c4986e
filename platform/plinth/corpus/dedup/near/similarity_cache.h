/* The keys of pairs in the similarity cache. */
#pragma once
#include "plinth_text/words/hash_lookup.h"
#include "plinth_text/words/word_hashes.h"

/* 64 bits of a pair, the same in either order. */
INLINE uint64_t pair_key(uint64_t a, uint64_t b) { return mix(a + b); }

/* 32 further bits of a pair. */
INLINE uint64_t pair_check(uint64_t a, uint64_t b) { return mix((a ^ b) * 0x9E3779B97F4A7C15u) >> 32; }

/* Position of a pair in the cache, or -1. */
static inline int64_t look_up_pair(u64_in pairs, const uint64_t *values, uint64_t key, uint64_t check) {
    int64_t low = lower_bound(pairs, key);
    for (; low < pairs.size && pairs.at[low] == key; low++)
        if (values[low] >> 32 == check) return low;
    return -1;
}
