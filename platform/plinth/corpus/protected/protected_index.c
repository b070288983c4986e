#include "plinth_text/words/ngrams.h"

KERNEL void hash_rolled(u64_in words, i64_in starts, int64_t n, i64_in gram_starts, u64_out out) {
    for (int64_t doc = 0; doc < starts.size - 1; doc++) {
        int64_t first = starts.at[doc];
        hash_ngrams_of(words.at + first, starts.at[doc + 1] - first, n, out.at + gram_starts.at[doc]);
    }
}

KERNEL void find_evidence(i64_in starts, u64_in words, int64_t least, int64_t most, u64_out hashes, bool_out valid) {
    for (int64_t item = 0; item < starts.size - 1; item++) {
        int64_t a = starts.at[item], size = starts.at[item + 1] - a;
        if (size < least) continue;
        int64_t count = hash_ngrams_of(words.at + a, size, min_i64(most, size), hashes.at + a);
        memset(valid.at + a, true, count);
    }
}

/* How many words before each are covered by no common n-gram. */
KERNEL void count_uncovered(i64_in starts, bool_in boilerplate, int64_t most, i64_out evident) {
    evident.at[0] = 0;
    for (int64_t item = 0; item < starts.size - 1; item++) {
        int64_t a = starts.at[item], b = starts.at[item + 1], covered = a;
        for (int64_t i = a; i < b; i++) {
            if (boilerplate.at[i]) covered = i + min_i64(most, b - a);
            evident.at[i + 1] = evident.at[i] + (i >= covered);
        }
    }
}
