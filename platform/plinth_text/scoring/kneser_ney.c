/* Log probabilities of tokens under a back-off n-gram model in flat tables. */
#include "plinth_text/compiled/kernel.h"

#define EMPTY UINT64_MAX
enum { UNKNOWN, BEGIN, END, MAX_ORDER = 4 };
enum { BOUNDARY = 0 }; /* ends a sentence in the stream of hashes */

/* The slot that holds a key, or the empty one where it belongs; `mask` is the size, a power of two, less one. */
INLINE uint64_t slot_of(const uint64_t *keys, uint64_t mask, uint64_t key) {
    uint64_t mixed = key * 0x9E3779B97F4A7C15u, at = (mixed ^ (mixed >> 32)) & mask;
    while (keys[at] != EMPTY && keys[at] != key) at = (at + 1) & mask;
    return at;
}

/* `table` is EMPTY in each slot at the beginning; `keys` are without repeats. */
KERNEL void fill_table(u64_out table, f32_rows_out values, u64_in keys, f32_rows_in given) {
    for (int64_t i = 0; i < keys.size; i++) {
        uint64_t at = slot_of(table.at, table.size - 1, keys.at[i]);
        table.at[at] = keys.at[i];
        values.at[2 * at] = given.at[2 * i];
        values.at[2 * at + 1] = given.at[2 * i + 1];
    }
}

KERNEL void fill_numbers(u64_out table, u16_out values, u64_in words, u16_in numbers) {
    for (int64_t i = 0; i < words.size; i++) {
        uint64_t at = slot_of(table.at, table.size - 1, words.at[i]);
        table.at[at] = words.at[i];
        values.at[at] = numbers.at[i];
    }
}

INLINE uint16_t number_of(uint64_t token, u64_in table, u16_in numbers) {
    uint64_t at = slot_of(table.at, table.size - 1, token);
    return table.at[at] == token ? numbers.at[at] : UNKNOWN;
}

KERNEL void number_tokens(u64_in hashes, u64_in table, u16_in numbers, u16_out out) {
    for (int64_t i = 0; i < hashes.size; i++)
        out.at[i] = hashes.at[i] == BOUNDARY ? END : number_of(hashes.at[i], table, numbers);
}

/* The model: [n, 2] log10 probability and log10 back-off by number, and tables of the orders from 2 on. */
typedef struct {
    const float *unigrams;
    const uint64_t *keys;
    const float *values;
    const int64_t *starts;
    int64_t orders;
} Model;

/* The words before, the last one first, and the back-offs of the contexts that end there, by length less one. */
typedef struct {
    uint64_t words[MAX_ORDER];
    double backoff[MAX_ORDER];
    int64_t known; /* length of the longest context that the model holds */
} History;

INLINE void begin_sentence(const Model *model, History *history) {
    history->words[0] = BEGIN;
    history->backoff[0] = model->unigrams[2 * BEGIN + 1];
    history->known = 1;
}

/* The log10 probability of a word after the history, which it then ends. */
INLINE double next_word(const Model *model, uint64_t word, History *history) {
    double found[MAX_ORDER] = {model->unigrams[2 * word + 1]}, logp = model->unigrams[2 * word];
    int64_t longest = 1, most = min_i64(history->known + 1, model->orders);
    uint64_t key = word;
    for (int64_t order = 2; order <= most; order++) {
        key = key << 16 | history->words[order - 2];
        int64_t base = model->starts[order - 2], size = model->starts[order - 1] - base;
        int64_t at = base + slot_of(model->keys + base, size - 1, key);
        if (model->keys[at] == EMPTY) break;
        longest = order;
        logp = model->values[2 * at];
        found[order - 1] = model->values[2 * at + 1];
    }
    /* contexts that were too long */
    for (int64_t length = longest; length <= history->known; length++) logp += history->backoff[length - 1];
    for (int64_t k = MAX_ORDER - 1; k > 0; k--) history->words[k] = history->words[k - 1];
    history->words[0] = word;
    history->known = min_i64(longest, model->orders - 1);
    memcpy(history->backoff, found, sizeof found);
    return logp;
}

/* counts: [documents, 3] tokens, sentences, unknown tokens. */
KERNEL void score_texts(u64_in hashes, i64_in offsets, u64_in table, u16_in numbers, f32_rows_in unigrams, u64_in keys,
                        f32_rows_in values, i64_in starts, f64_out total, i64_rows_out counts) {
    Model model = {unigrams.at, keys.at, values.at, starts.at, min_i64(starts.size, MAX_ORDER)};
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        History history = {0};
        bool at_start = true;
        int64_t *n = counts.at + 3 * doc;
        for (int64_t i = offsets.at[doc]; i < offsets.at[doc + 1]; i++) {
            if (at_start) {
                begin_sentence(&model, &history);
                n[1]++;
            }
            at_start = hashes.at[i] == BOUNDARY;
            uint64_t word = at_start ? END : number_of(hashes.at[i], table, numbers);
            n[0] += !at_start;
            n[2] += word == UNKNOWN;
            total.at[doc] += next_word(&model, word, &history);
        }
    }
}
