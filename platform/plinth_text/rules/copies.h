/* Repeated n-grams of a text: the most frequent one, and those that occurred before. */
#pragma once
#include "plinth_text/words/chunks.h"
#include "plinth_text/words/hash_sets.h"

enum { COPIES_PADDING = 128 };

/* Scratch memory for the longest text of a column, as `copies.CopyBuffers` has it. */
typedef struct {
    uint8_t *packed;
    int32_t *places;
    uint64_t *words, *grams;
    int32_t *buckets, *starts, *limits, *active, *counts;
    uint64_t *keys;
    int32_t *tally, *firsts;
} CopyBuffers;

/* The buffers that a kernel's parameters of the same names make. */
#define COPY_BUFFERS                                                                                        \
    ((CopyBuffers){packed.at, places.at, words.at, grams.at, buckets.at, starts.at, limits.at, active.at,   \
                   counts.at, keys.at, tally.at, firsts.at})

/* Pack the n words of a text, and hash each. */
void pack_words(u8_in data, const int32_t *edges, int64_t n, const CopyBuffers *buffers)
    __attribute__((visibility("hidden")));

/* Characters in all copies of the most frequent n-gram of 2, 3 and 4 words, the earliest of several, words joined by
   one space, into out[0:3]. `plain`: the text is ASCII. */
void top_ngrams(int64_t n, bool plain, const CopyBuffers *buffers, int64_t *out) __attribute__((visibility("hidden")));

/* Characters of n-grams of 5 to 10 words that occurred before, each skipped whole, into out[0:6]. */
void repeated_ngrams(int64_t n, bool plain, const CopyBuffers *buffers, int64_t *out)
    __attribute__((visibility("hidden")));
