/* Sets of 64-bit hashes: open addressing in a table that many texts share. A slot of 0 is empty.

   A set uses the first `slots_for` slots of its keys, a power of two; set them to 0 before use. */
#pragma once
#include "plinth_text/compiled/kernel.h"

/* FNV-1a, 64 bits (Fowler, Noll, Vo). */
#define FNV 0xCBF29CE484222325u
#define PRIME 0x100000001B3u

/* Slots of a set of `entries` entries: a power of two, at least twice as many. */
INLINE int64_t slots_for(int64_t entries) {
    int64_t size = 16;
    while (size < 2 * entries) size *= 2;
    return size;
}

/* The shift that takes a spread hash to the number of one of `size` slots. */
INLINE int shift_for(int64_t size) {
    int shift = 64;
    for (; size > 1; size >>= 1) shift--;
    return shift;
}

/* The slot that holds this hash (not 0), or the empty slot where it belongs. 2^64 / golden ratio: the high bits of a
   product depend on all bits. */
INLINE int64_t slot_of(const uint64_t *keys, int64_t size, int shift, uint64_t value) {
    int64_t slot = (value * 0x9E3779B97F4A7C15u) >> shift;
    while (keys[slot] != 0 && keys[slot] != value) slot = (slot + 1) & (size - 1);
    return slot;
}

/* True if a hash is in the set; it is afterward. */
INLINE bool seen(uint64_t *keys, int64_t size, int shift, uint64_t value) {
    value |= value == 0;
    int64_t slot = slot_of(keys, size, shift, value);
    bool found = keys[slot] == value;
    keys[slot] = value;
    return found;
}
