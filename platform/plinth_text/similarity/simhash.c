/* SimHash of texts, and the search for hashes that differ in few bits. */
#include "plinth_text/words/ngrams.h"

enum {
    BLOCKS = 4,
    BLOCK_BITS = 16,
    DIGITS = 16, /* votes are counted bit by bit across all 64 sums, in this number of binary digits at a time */
    ROUND = (1 << DIGITS) - 1,
};

/* Add the bits of at most ROUND hashes to 64 sums: digit k holds bit k of all sums, and carries ripple. */
static void vote(const uint64_t *grams, int64_t count, int64_t *votes) {
    uint64_t digits[DIGITS] = {0};
    for (int64_t i = 0; i < count; i++) {
        uint64_t carry = grams[i];
        for (int k = 0; carry; k++) {
            uint64_t both = digits[k] & carry;
            digits[k] ^= carry;
            carry = both;
        }
    }
    for (int k = 0; k < DIGITS; k++)
        for (int bit = 0; digits[k] && bit < 64; bit++) votes[bit] += (int64_t)(digits[k] >> bit & 1) << k;
}

/* `words` and `grams` are scratch memory for the words of the longest text. */
KERNEL void simhash_texts(u8_in data, i64_in offsets, int64_t n, u64_out words, u64_out grams, u64_out out,
                       bool_out filled) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t count = hash_words_of(data, offsets.at[doc], offsets.at[doc + 1], words.at);
        count = hash_ngrams_of(words.at, count, n, grams.at);
        int64_t votes[64] = {0};
        for (int64_t low = 0; low < count; low += ROUND) vote(grams.at + low, min_i64(count - low, ROUND), votes);
        uint64_t state = 0;
        for (int bit = 0; bit < 64; bit++) state |= (uint64_t)(2 * votes[bit] > count) << bit;
        out.at[doc] = state;
        filled.at[doc] = count > 0;
    }
}

/* orders, starts: by block, the listed hashes in the order of its bits, and where those of each value start. */
KERNEL void search_near(u64_in queries, u64_in hashes, i32_rows_in orders, i32_rows_in starts, i64_in masks,
                   int64_t distance, i64_out places, i64_out bits) {
    for (int64_t i = 0; i < queries.size; i++) {
        int64_t best = distance + 1, place = -1;
        for (int64_t block = 0; block < BLOCKS; block++) {
            const int32_t *order = orders.at + block * orders.columns, *start = starts.at + block * starts.columns;
            int64_t key = queries.at[i] >> (block * BLOCK_BITS) & 0xFFFF;
            for (int64_t m = 0; m < masks.size; m++) {
                int64_t near = key ^ masks.at[m];
                for (int64_t at = start[near]; at < start[near + 1]; at++) {
                    int64_t listed = order[at], apart = popcount(hashes.at[listed] ^ queries.at[i]);
                    if (apart < best || (apart == best && apart <= distance && listed < place)) {
                        best = apart;
                        place = listed;
                    }
                }
            }
        }
        if (place < 0) continue;
        places.at[i] = place;
        bits.at[i] = best;
    }
}
