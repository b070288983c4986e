/* Read, compare and hash runs of bytes in a buffer, eight bytes at a time, as a little-endian machine has them.

   Hashes of this file are compared within one call and never stored. */
#pragma once
#include "plinth_text/compiled/kernel.h"

#define EVERY(byte) ((uint64_t)(byte) * 0x0101010101010101u)
#define TOPS EVERY(0x80)

/* The eight bytes from data[at] on. The caller keeps them inside the buffer. */
INLINE uint64_t read8(const uint8_t *data, int64_t at) {
    uint64_t value;
    memcpy(&value, data + at, 8);
    return value;
}

INLINE void write8(uint8_t *data, int64_t at, uint64_t value) { memcpy(data + at, &value, 8); }

INLINE int64_t popcount(uint64_t value) { return __builtin_popcountll(value); }

/* The first `size` (1 to 8) bytes in memory of eight; zeros for the rest. */
INLINE uint64_t low_bytes(uint64_t value, int64_t size) { return value & (UINT64_MAX >> (64 - 8 * size)); }

/* Bytes data[at : at + size], 1 to 8 of them, as one integer; reads nothing past the end of the buffer. */
INLINE uint64_t read_bytes(u8_in data, int64_t at, int64_t size) {
    if (at + 8 <= data.size) return low_bytes(read8(data.at, at), size);
    uint64_t value = 0;
    for (int64_t k = 0; k < size; k++) value |= (uint64_t)data.at[at + k] << (8 * k);
    return value;
}

/* The first position from `at` on with no ASCII letter, or `end`. */
INLINE int64_t letters_end(u8_in data, int64_t at, int64_t end) {
    while (at + 8 <= data.size) {
        uint64_t eight = read8(data.at, at), folded = (eight | EVERY(0x20)) & ~TOPS;
        /* carries into the top bit of seven: from `a` on, and from behind `z` on */
        uint64_t others = (~((folded + EVERY(128 - 97)) ^ (folded + EVERY(127 - 122))) & TOPS) | (eight & TOPS);
        if (others) return min_i64(at + (popcount(~others & (others - 1)) >> 3), end);
        at += 8;
        if (at >= end) return end;
    }
    while (at < end && (data.at[at] | 32) >= 97 && (data.at[at] | 32) <= 122) at++;
    return at;
}

/* Every bit depends on the bits below it and, in the upper half, on all. */
INLINE uint64_t spread(uint64_t value) {
    value = (value ^ (value >> 32)) * 0xD6E8FEB86659FD93u;
    return value ^ (value >> 29);
}

#define HASHED_CHUNKS(LAST)                                                                                 \
    uint64_t state = end - start;                                                                           \
    int64_t at = start;                                                                                     \
    for (; at < end - 8; at += 8) {                                                                         \
        state = (state ^ read8(data.at, at)) * 0x9FB21C651E98DF25u;                                         \
        state ^= state >> 32;                                                                               \
    }                                                                                                       \
    if (at < end) state += (LAST) * 0x9FB21C651E98DF25u;                                                    \
    return spread(state);

/* 64-bit hash of data[start:end]; two different runs agree with a probability of about 2^-64.

   Reads up to 7 bytes past `end`, which must be in the buffer. */
INLINE uint64_t hash_padded(u8_in data, int64_t start, int64_t end) {
    HASHED_CHUNKS(low_bytes(read8(data.at, at), end - at))
}

/* As `hash_padded`, without reading past the end of the buffer. */
static inline uint64_t hash_run_of(u8_in data, int64_t start, int64_t end) {
    HASHED_CHUNKS(read_bytes(data, at, end - at))
}

/* Code points in data[start:end]: bytes that are not continuations. */
static inline int64_t count_characters(u8_in data, int64_t start, int64_t end) {
    int64_t count = 0;
    for (int64_t i = start; i < end; i++) count += (data.at[i] & 0xC0) != 0x80;
    return count;
}

/* True if no byte of data[start:end] is above 127. */
static inline bool all_ascii(u8_in data, int64_t start, int64_t end) {
    uint8_t joined = 0;
    for (int64_t i = start; i < end; i++) joined |= data.at[i];
    return joined < 128;
}

/* The first position of data[start:end] with a byte above 127, or `end`. */
static inline int64_t ascii_end(u8_in data, int64_t start, int64_t end) {
    int64_t at = start;
    while (at + 8 <= end && (read8(data.at, at) & TOPS) == 0) at += 8;
    while (at < end && data.at[at] < 128) at++;
    return at;
}
