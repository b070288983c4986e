/* Repeated word n-grams of one text, length by length. */
#pragma once
#include "plinth_text/words/hash_sets.h"

/* The places of words that occur at least twice.

   `words` are the hashes of the text's `n` words. `keys` and `counts` are buffers for a table of n entries; the used
   slots of `counts` are filled with how often each word occurs. `spots` and `ids` [n] are filled with the places and
   the numbers of the words there. Returns how many places; `slots` is the number of slots in use. */
static inline int64_t repeated_words(
    const uint64_t *words, int64_t n, uint64_t *keys, int32_t *counts, int32_t *spots, int32_t *ids, int64_t *slots
) {
    *slots = slots_for(n);
    int shift = shift_for(*slots);
    memset(keys, 0, *slots * sizeof *keys);
    for (int64_t i = 0; i < n; i++) {
        uint64_t value = words[i] | (words[i] == 0);
        int64_t slot = slot_of(keys, *slots, shift, value);
        if (keys[slot] == 0) {
            keys[slot] = value;
            counts[slot] = 0;
        }
        counts[slot]++;
        ids[i] = slot;
    }
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t id = ids[i];
        spots[found] = i;
        ids[found] = id;
        found += counts[id] > 1;
    }
    return found;
}

/* From the places of repeated n-grams to those of repeated (n+1)-grams, in place; returns how many places.

   `where` and `most` are the place and the count of the most frequent (n+1)-gram, the earliest of several; -1 and 0
   when none repeats. */
static inline int64_t extend(
    int32_t *spots, int32_t *ids, int64_t found, uint64_t *keys, int32_t *counts, int64_t *where, int64_t *most
) {
    int64_t tried = 0, slots = slots_for(found);
    int shift = shift_for(slots);
    memset(keys, 0, slots * sizeof *keys);
    for (int64_t k = 0; k < found - 1; k++) {
        if (spots[k + 1] != spots[k] + 1) continue;
        uint64_t pair = ((uint64_t)(ids[k] + 1) << 32) | (uint64_t)ids[k + 1]; /* never 0, which is an empty slot */
        int64_t slot = slot_of(keys, slots, shift, pair);
        if (keys[slot] == 0) {
            keys[slot] = pair;
            counts[slot] = 0;
        }
        counts[slot]++;
        spots[tried] = spots[k];
        ids[tried++] = slot;
    }
    int64_t left = 0;
    *most = 0;
    *where = -1;
    for (int64_t k = 0; k < tried; k++) {
        int64_t count = counts[ids[k]];
        if (count <= 1) continue;
        spots[left] = spots[k];
        ids[left++] = ids[k];
        if (count > *most) {
            *most = count;
            *where = spots[k];
        }
    }
    return left;
}

/* Characters of n-grams of `size` words at these places, overlaps counted repeatedly. */
INLINE int64_t in_all_copies(const int32_t *spots, int64_t found, int64_t size, const int64_t *characters) {
    int64_t total = 0;
    for (int64_t k = 0; k < found; k++) total += characters[spots[k] + size] - characters[spots[k]];
    return total;
}

/* Characters of the words that some n-gram of `size` words at these places holds, each counted once. */
INLINE int64_t covered(const int32_t *spots, int64_t found, int64_t size, const int64_t *characters) {
    int64_t total = 0, last = 0;
    for (int64_t k = 0; k < found; k++) {
        int64_t first = max_i64(last, spots[k]);
        last = spots[k] + size;
        total += characters[last] - characters[first];
    }
    return total;
}

/* Characters of all n-grams of a text, overlaps counted repeatedly. */
INLINE int64_t in_every_gram(int64_t n, int64_t size, const int64_t *characters) {
    int64_t total = 0;
    for (int64_t i = 0; i < n - size + 1; i++) total += characters[i + size] - characters[i];
    return total;
}
