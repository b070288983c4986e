/* Word n-grams as 64-bit hashes. */
#pragma once
#include "plinth_text/words/word_hashes.h"

/* Hash the n-grams of words[0:count] into `out` (may be as long as `words`); returns how many there are. A text of
   fewer than n words, but at least one, has exactly one n-gram: all its words. */
int64_t hash_ngrams_of(const uint64_t *words, int64_t count, int64_t n, uint64_t *out)
    __attribute__((visibility("hidden")));

/* The number of values that two sorted arrays without repeats have in common. */
static inline int64_t shared_values(u64_in a, u64_in b) {
    int64_t i = 0, j = 0, common = 0;
    while (i < a.size && j < b.size) {
        uint64_t left = a.at[i], right = b.at[j];
        common += left == right;
        i += left <= right;
        j += right <= left;
    }
    return common;
}
