#include "plinth_text/compiled/kernel.h"

enum { GRAM = 16, STRIDE = 17 }; /* as in trace_index.py */

INLINE uint32_t finish_hash(uint64_t mixed) {
    mixed *= 0x94D049BB133111EBu;
    return (mixed ^ (mixed >> 29)) >> 32;
}

INLINE uint64_t add_token(uint64_t mixed, uint64_t token) {
    mixed = (mixed ^ token) * 0xBF58476D1CE4E5B9u;
    return mixed ^ (mixed >> 31);
}

#define HASH(tokens, at)                                                                                       \
    uint64_t mixed = 0x9E3779B97F4A7C15u;                                                                      \
    for (int64_t i = at; i < at + GRAM; i++) mixed = add_token(mixed, tokens[i]);

/* Write hash and position of every anchor within one document; return their number. */
#define COLLECT(T, ELEMENT)                                                                                    \
    static int64_t collect_from_##T(T##_in tokens, int64_t count, int64_t end_of_text, u64_out keys) {         \
        int64_t found = 0;                                                                                     \
        for (int64_t at = 0; at < min_i64(count, tokens.size - GRAM + 1); at += STRIDE) {                      \
            bool whole = true;                                                                                 \
            for (int64_t i = at; i < at + GRAM; i++) whole = whole && tokens.at[i] != end_of_text;             \
            if (!whole) continue;                                                                              \
            HASH(tokens.at, at)                                                                                \
            keys.at[found++] = (uint64_t)finish_hash(mixed) << 32 | (uint64_t)at;                              \
        }                                                                                                      \
        return found;                                                                                          \
    }

COLLECT(u16, uint16_t)
COLLECT(u32, uint32_t)

KERNEL int64_t collect_u16(u16_in tokens, int64_t count, int64_t end_of_text, u64_out keys) {
    return collect_from_u16(tokens, count, end_of_text, keys);
}

KERNEL int64_t collect_u32(u32_in tokens, int64_t count, int64_t end_of_text, u64_out keys) {
    return collect_from_u32(tokens, count, end_of_text, keys);
}

KERNEL void hash_all(i64_in tokens, u32_out hashes) {
    for (int64_t at = 0; at < hashes.size; at++) {
        HASH(tokens.at, at)
        hashes.at[at] = finish_hash(mixed);
    }
}
