#include "plinth_text/words/ngrams.h"

enum { NGRAM_BLOCK = 1024 }; /* n-grams hashed in one pass */

/* One word of every n-gram at a time: the loops over n-grams vectorize, and the block stays in cache. */
static void hash_ngram_block(const uint64_t *words, int64_t n, uint64_t *restrict out, int64_t size) {
    memcpy(out, words, size * sizeof *out);
    for (int64_t j = 1; j < n; j++)
        for (int64_t i = 0; i < size; i++) out[i] = out[i] * 0xD6E8FEB86659FD93u + words[i + j];
    for (int64_t i = 0; i < size; i++) out[i] = mix(out[i]);
}

int64_t hash_ngrams_of(const uint64_t *words, int64_t count, int64_t n, uint64_t *out) {
    if (count == 0) return 0;
    int64_t length = min_i64(n, count), grams = count - length + 1;
    for (int64_t low = 0; low < grams; low += NGRAM_BLOCK)
        hash_ngram_block(words + low, length, out + low, min_i64(grams - low, NGRAM_BLOCK));
    return grams;
}

KERNEL void fill_ngrams(u8_in data, i64_in offsets, int64_t n, u64_out words, i64_out starts, u64_out out) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t count = hash_words_of(data, offsets.at[doc], offsets.at[doc + 1], words.at);
        starts.at[doc + 1] = starts.at[doc] + hash_ngrams_of(words.at, count, n, out.at + starts.at[doc]);
    }
}

KERNEL int64_t shared(u64_in a, u64_in b) { return shared_values(a, b); }
