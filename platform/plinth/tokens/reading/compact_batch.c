#include "plinth_text/compiled/kernel.h"

/* The number of each token's document in its row. */
KERNEL void number_documents(i32_in starts, i32_rows_out segments) {
    int64_t width = segments.columns, at = 0;
    for (int64_t row = 0; row < segments.rows; row++) {
        int32_t *numbers = segments.at + row * width, number = -1;
        for (int64_t place = 0; place < width;) {
            number++;
            at++;
            int64_t end = at < starts.size ? min_i64(width, starts.at[at] - row * width) : width;
            for (int64_t k = place; k < end; k++) numbers[k] = number;
            place = end;
        }
    }
}

enum { DUPLICATE_N = 8, TOP_N = 4 }; /* as in compact_batch.py */

/* tally_T: count a row's n-grams in an open hash table of a power of two of slots; returns how many are distinct.
   `most` becomes the most of one. */
#define TALLY(T, ELEMENT)                                                                                      \
    static int64_t tally_##T(                                                                                  \
        const ELEMENT *row, int64_t length, int64_t n, u64_out keys, int64_t *counts, int64_t *most            \
    ) {                                                                                                        \
        uint64_t mask = keys.size - 1;                                                                         \
        int64_t distinct = 0;                                                                                  \
        memset(counts, 0, keys.size * sizeof *counts);                                                         \
        *most = 0;                                                                                             \
        for (int64_t at = 0; at < length - n + 1; at++) {                                                      \
            uint64_t key = 0;                                                                                  \
            for (int64_t k = at; k < at + n; k++) {                                                            \
                key = (key ^ row[k]) * 0x9E3779B97F4A7C15u;                                                    \
                key ^= key >> 32;                                                                              \
            }                                                                                                  \
            uint64_t slot = key & mask;                                                                        \
            while (counts[slot] && keys.at[slot] != key) slot = (slot + 1) & mask;                             \
            keys.at[slot] = key;                                                                               \
            distinct += counts[slot] == 0;                                                                     \
            *most = max_i64(*most, ++counts[slot]);                                                            \
        }                                                                                                      \
        return distinct;                                                                                       \
    }

#define FACTS(T)                                                                                               \
    static void row_facts_##T(T##_rows_in tokens, i64_in lengths, u64_out keys, i64_out counts, f64_rows_out facts) { \
        for (int64_t row = 0; row < tokens.rows; row++) {                                                      \
            int64_t length = lengths.at[row], most, grams = length - DUPLICATE_N + 1;                          \
            double *own = facts.at + row * facts.columns, total = 0.0;                                         \
            int64_t distinct = tally_##T(                                                                      \
                tokens.at + row * tokens.columns, length, DUPLICATE_N, keys, counts.at, &most);                \
            if (grams > 0) own[0] = (double)(grams - distinct) / (double)grams;                                \
            tally_##T(tokens.at + row * tokens.columns, length, TOP_N, keys, counts.at, &most);                \
            grams = length - TOP_N + 1;                                                                        \
            if (grams > 0) own[1] = (double)most / (double)grams;                                              \
            tally_##T(tokens.at + row * tokens.columns, length, 1, keys, counts.at, &most);                    \
            for (int64_t slot = 0; slot < counts.size; slot++)                                                 \
                if (counts.at[slot] > 1) total += (double)counts.at[slot] * log2((double)counts.at[slot]);     \
            own[2] = log2((double)length) - total / (double)length;                                            \
        }                                                                                                      \
    }

TALLY(u16, uint16_t)
TALLY(u32, uint32_t)
FACTS(u16)
FACTS(u32)

KERNEL void facts_u16(u16_rows_in tokens, i64_in lengths, u64_out keys, i64_out counts, f64_rows_out facts) {
    row_facts_u16(tokens, lengths, keys, counts, facts);
}

KERNEL void facts_u32(u32_rows_in tokens, i64_in lengths, u64_out keys, i64_out counts, f64_rows_out facts) {
    row_facts_u32(tokens, lengths, keys, counts, facts);
}
