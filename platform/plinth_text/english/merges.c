#include "plinth_text/english/merges.h"
#include "plinth_text/words/hash_sets.h"

KERNEL uint64_t longer(uint64_t value, u8_in data, int64_t start, int64_t end) {
    return longer_row(value, data, start, end);
}

/* Note the rows that start with a word; returns how many words have been noted. */
static int64_t note_rows(u8_in data, int64_t first, int64_t found, const EnglishSplitter *by, const EnglishWords *words) {
    const int32_t *edges = words->edges;
    uint64_t value = bytes_hash(data, edges[2 * first], edges[2 * first + 1]), lengths = 0;
    int64_t stop = min_i64(words->count, first + by->most);
    int shift = shift_for(by->rows.size);
    for (int64_t i = first + 1; i < stop; i++) {
        if (apart(data.at, edges[2 * i - 1], edges[2 * i])) break;
        value = longer_row(value, data, edges[2 * i], edges[2 * i + 1]);
        int64_t slot = slot_of(by->rows.at, by->rows.size, shift, value);
        if (by->rows.at[slot] != value) break;
        if (by->whole[slot]) lengths |= (uint64_t)1 << (i + 1 - first);
    }
    if (!lengths) return found;
    by->starts[found] = first;
    by->matched[found] = lengths;
    for (int64_t i = first; i < stop; i++) by->taken[i] = 0;
    return found + 1;
}

/* Leave of each noted word the row that is taken, if one is. */
static void choose_rows(int64_t found, const EnglishSplitter *by) {
    for (int64_t size = by->most; size > 1; size--) {
        uint64_t bit = (uint64_t)1 << size;
        for (int64_t k = 0; k < found; k++) {
            if (!(by->matched[k] & bit)) continue;
            int64_t first = by->starts[k];
            bool free = !(by->taken[first] || by->taken[first + size - 1]);
            for (int64_t i = first; i < first + size; i++) by->taken[i] = 1;
            if (free)
                by->matched[k] = bit;
            else
                by->matched[k] ^= bit;
        }
    }
}

/* Write the words again, with the chosen rows as the pieces of their exceptions. */
static void rewrite_words(u8_in data, int64_t found, const EnglishSplitter *by, EnglishWords *words) {
    int64_t count = words->count, k = 0, size;
    memcpy(by->copy, words->edges, 2 * count * sizeof *by->copy);
    words->count = 0;
    for (int64_t at = 0; at < count; at += size) {
        int64_t start = by->copy[2 * at], slot = -1;
        size = 1;
        while (k < found && by->starts[k] < at) k++;
        if (k < found && by->starts[k] == at && by->matched[k]) {
            while (by->matched[k] >> size != 1) size++;
            slot = exception_at(data, start, by->copy[2 * (at + size) - 1], by->tables);
        }
        if (slot >= 0) {
            put_pieces(slot, start, by->tables, words);
            continue;
        }
        for (int64_t i = at; i < at + size; i++) put_word(words, by->copy[2 * i], by->copy[2 * i + 1]);
    }
}

void merge_words(u8_in data, const EnglishSplitter *by, EnglishWords *words) {
    int64_t found = 0;
    for (int64_t i = 0; i < words->count - 1; i++) {
        uint64_t bit = (uint64_t)data.at[words->edges[2 * i]] << 8 | data.at[words->edges[2 * i + 2]];
        if (by->pairs[bit >> 6] >> (bit & 63) & 1) found = note_rows(data, i, found, by, words);
    }
    if (!found) return;
    choose_rows(found, by);
    rewrite_words(data, found, by, words);
}
