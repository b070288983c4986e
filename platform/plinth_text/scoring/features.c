/* Words and pairs of words as rows of a hashed table, and the margins of linear models. */
#include "plinth_text/words/word_hashes.h"

/* The rows of a word, and of two successive words. The second factor is 2^64 / golden ratio. */
INLINE int64_t word_row(uint64_t word, int64_t shift) { return word >> shift; }

INLINE int64_t pair_row(uint64_t word, uint64_t next, int64_t shift) {
    return (word * 0xD6E8FEB86659FD93u + next) * 0x9E3779B97F4A7C15u >> shift;
}

KERNEL void fill_rows(u8_in data, i64_in offsets, int64_t shift, int64_t max_words, u64_out words, i64_out starts,
                      i32_out out) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t count = hash_words_of(data, offsets.at[doc], offsets.at[doc + 1], words.at);
        count = min_i64(count, max_words);
        int32_t *rows = out.at + starts.at[doc], *pairs = rows + count;
        for (int64_t i = 0; i < count; i++) rows[i] = word_row(words.at[i], shift);
        for (int64_t i = 0; i < count - 1; i++) pairs[i] = pair_row(words.at[i], words.at[i + 1], shift);
        starts.at[doc + 1] = starts.at[doc] + count + max_i64(0, count - 1);
    }
}

/* Mean of the values of words[0:count] and their pairs; 0 where there are none. */
INLINE double mean_value(const uint64_t *words, int64_t count, const float *table, int64_t shift) {
    if (count == 0) return 0;
    double total = table[word_row(words[0], shift)];
    for (int64_t i = 1; i < count; i++)
        total += (double)table[word_row(words[i], shift)] + table[pair_row(words[i - 1], words[i], shift)];
    return total / (2 * count - 1);
}

KERNEL void one_margin(u8_in data, i64_in offsets, f32_in table, float bias, int64_t shift, int64_t window,
                       u64_out words, f64_out out) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t count = hash_words_of(data, offsets.at[doc], offsets.at[doc + 1], words.at);
        if (!window || count <= window) {
            out.at[doc] = mean_value(words.at, count, table.at, shift) + bias;
            continue;
        }
        double best = -INFINITY;
        for (int64_t start = 0; start < count; start += window) {
            const uint64_t *stretch = words.at + min_i64(start, count - window);
            best = fmax(best, mean_value(stretch, window, table.at, shift) + bias);
        }
        out.at[doc] = best;
    }
}

/* The sum of the rows of words[0:count] (at least one) and their pairs into `total`, [K]. */
static void sum_rows(const uint64_t *words, int64_t count, f32_rows_in table, int64_t shift, double *total) {
    int64_t labels = table.columns;
    const float *first = table.at + labels * word_row(words[0], shift);
    for (int64_t k = 0; k < labels; k++) total[k] = first[k];
    for (int64_t i = 1; i < count; i++) {
        const float *word = table.at + labels * word_row(words[i], shift);
        const float *pair = table.at + labels * pair_row(words[i - 1], words[i], shift);
        for (int64_t k = 0; k < labels; k++) total[k] += (double)word[k] + pair[k];
    }
}

/* `words` and `total`, [K], are scratch memory. */
KERNEL void every_margin(u8_in data, i64_in offsets, f32_rows_in table, f32_in bias, int64_t shift, int64_t window,
                         u64_out words, f64_out total, f64_rows_out out) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t count = hash_words_of(data, offsets.at[doc], offsets.at[doc + 1], words.at);
        int64_t size = window && count > window ? window : count;
        double *margins = out.at + doc * out.columns;
        for (int64_t k = 0; k < out.columns; k++) margins[k] = size ? -INFINITY : bias.at[k];
        for (int64_t start = 0; start < count; start += size) {
            sum_rows(words.at + min_i64(start, count - size), size, table, shift, total.at);
            for (int64_t k = 0; k < out.columns; k++)
                margins[k] = fmax(margins[k], total.at[k] / (2 * size - 1) + bias.at[k]);
        }
    }
}
