#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/chunks.h"

/* Bits of a character's class, and the bytes from which a word is cut, as in word_table.py. */
enum { W_LETTER = 1, W_NUMBER = 2, W_SPACE = 4 };
enum { MAX_WORD_BYTES = 1 << 16 };

/* Class and bytes of the character at a position. */
INLINE uint8_t class_at(u8_in data, int64_t at, int64_t end, const uint8_t *table, int64_t *size) {
    *size = 1;
    return table[data.at[at] < 128 ? data.at[at] : decode(data, at, end, size)];
}

/* The end of the characters with a class in `mask`. */
INLINE int64_t class_run(u8_in data, int64_t at, int64_t end, const uint8_t *table, int64_t mask, int64_t limit) {
    while (at < end && at < limit) {
        int64_t size;
        if (!(class_at(data, at, end, table, &size) & mask)) break;
        at += size;
    }
    return at;
}

/* The end of an English short form (`'s`, `'ll`) that begins at an apostrophe, or its beginning. */
static inline int64_t short_form(const uint8_t *data, int64_t at, int64_t end) {
    if (at + 1 >= end) return at;
    uint8_t one = data[at + 1];
    if (one == 's' || one == 't' || one == 'm' || one == 'd') return at + 2;
    if (at + 2 >= end) return at;
    uint8_t two = data[at + 2];
    return ((one == 'r' || one == 'v') && two == 'e') || (one == 'l' && two == 'l') ? at + 3 : at;
}

/* The end of a word of white space: up to the last line end, else all but the last before other text. */
static inline int64_t blanks_end(u8_in data, int64_t at, int64_t end, const uint8_t *table) {
    int64_t limit = at + MAX_WORD_BYTES, stop = at, last = at, line = at, size;
    while (stop < end) {
        if (!(class_at(data, stop, end, table, &size) & W_SPACE)) break;
        if (stop >= limit) return stop;
        if (data.at[stop] == '\n' || data.at[stop] == '\r') line = stop + 1;
        last = stop;
        stop += size;
    }
    if (line > at) return line;
    return stop == end || last == at ? stop : last;
}

/* The end of up to `group` digits; 0 for any number of them. */
static inline int64_t digits_end(u8_in data, int64_t at, int64_t end, const uint8_t *table, int64_t group) {
    if (!group) return class_run(data, at, end, table, W_NUMBER, at + MAX_WORD_BYTES);
    for (int64_t k = 0; k < group && at < end; k++) {
        int64_t size;
        if (!(class_at(data, at, end, table, &size) & W_NUMBER)) break;
        at += size;
    }
    return at;
}

/* Where the word that begins at `at` ends. A word of digits has at most `group`; 0 for any number, with the space
   before them. */
static inline int64_t word_end(u8_in data, int64_t at, int64_t end, const uint8_t *table, int64_t group) {
    int64_t limit = at + MAX_WORD_BYTES, start = at, size;
    uint8_t first = data.at[at], kind = class_at(data, at, end, table, &size);
    if (first == '\'') {
        int64_t form = short_form(data.at, at, end);
        if (form > at) return form;
    }
    if (first == ' ' && at + 1 < end) {
        int64_t wide;
        uint8_t after = class_at(data, at + 1, end, table, &wide);
        if (!(after & W_SPACE) && !(after & W_NUMBER && group)) {
            start = at + 1;
            kind = after;
            size = wide;
        }
    }
    if (kind & W_LETTER) return class_run(data, start + size, end, table, W_LETTER, limit);
    if (kind & W_NUMBER) return digits_end(data, start, end, table, group);
    if (kind & W_SPACE) return blanks_end(data, at, end, table);
    int64_t stop = start + size;
    while (stop < end && stop < limit) {
        if (class_at(data, stop, end, table, &size) & (W_LETTER | W_NUMBER | W_SPACE)) break;
        stop += size;
    }
    return stop;
}

KERNEL int64_t word_ends(u8_in data, u8_in table, int64_t group, i64_out out) {
    int64_t count = 0;
    for (int64_t at = 0; at < data.size;) out.at[count++] = at = word_end(data, at, data.size, table.at, group);
    return count;
}

#define FACTOR 0x9E3779B97F4A7C15u /* 2^64 / golden ratio: bits of a short key reach the whole hash */

/* True if two words of one length are equal. */
static bool same_word(u8_in data, int64_t at, int64_t size, u8_in known, int64_t first) {
    return memcmp(data.at + at, known.at + first, size) == 0;
}

/* Number every word of the texts and add new ones; `words` become the numbers, `used` how many words the texts have.
   Returns how many words the table has.

   A slot is a word's key and its length above its number + 1. The key of up to eight bytes is the bytes, which proves
   that words are equal; longer words are compared. */
KERNEL int64_t scan(
    u8_in data, i64_in offsets, u8_in table, int64_t group, u64_rows_out slots, i64_out starts, u8_out known,
    int64_t held, i32_out words, i64_out counts, int64_t *used
) {
    uint64_t mask = slots.rows - 1;
    int64_t filled = 0;
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t end = offsets.at[doc + 1], before = filled, stop;
        for (int64_t at = offsets.at[doc]; at < end; at = stop) {
            stop = word_end(data, at, end, table.at, group);
            int64_t size = stop - at, number;
            uint64_t key = size <= 8 ? read_bytes(data, at, size) : hash_run_of(data, at, stop);
            uint64_t length = (uint64_t)size << 32, slot = spread(key * FACTOR + length) & mask;
            for (;; slot = (slot + 1) & mask) {
                uint64_t *own = slots.at + 2 * slot;
                if (own[1] == 0) {
                    own[0] = key;
                    own[1] = length | (uint64_t)(held + 1);
                    starts.at[held + 1] = starts.at[held] + size;
                    memcpy(known.at + starts.at[held], data.at + at, size);
                    number = held++;
                    break;
                }
                number = (int64_t)(own[1] & UINT32_MAX) - 1;
                bool equal = own[0] == key && (own[1] & ~(uint64_t)UINT32_MAX) == length;
                u8_in stored = {known.at, known.size};
                if (equal && (size <= 8 || same_word(data, at, size, stored, starts.at[number]))) break;
            }
            words.at[filled++] = number;
        }
        counts.at[doc] = filled - before;
    }
    *used = filled;
    return held;
}

/* Fill in where each text's tokens begin, from `first[0]` on; returns how many there are. */
KERNEL int64_t measure(i32_in words, i64_in counts, i64_in token_starts, i64_out first) {
    int64_t at = 0;
    for (int64_t doc = 0; doc < counts.size; doc++) {
        int64_t total = 0;
        for (int64_t k = 0; k < counts.at[doc]; k++, at++)
            total += token_starts.at[words.at[at] + 1] - token_starts.at[words.at[at]];
        first.at[doc + 1] = first.at[doc] + total;
    }
    return first.at[counts.size];
}

#define GATHER(T)                                                                                              \
    static void gather_into_##T(i32_in words, i64_in token_starts, u32_in tokens, T##_out out) {               \
        int64_t at = 0;                                                                                        \
        for (int64_t i = 0; i < words.size; i++)                                                               \
            for (int64_t k = token_starts.at[words.at[i]]; k < token_starts.at[words.at[i] + 1]; k++)          \
                out.at[at++] = tokens.at[k];                                                                   \
    }

GATHER(u16)
GATHER(u32)

KERNEL void gather_u16(i32_in words, i64_in token_starts, u32_in tokens, u16_out out) {
    gather_into_u16(words, token_starts, tokens, out);
}

KERNEL void gather_u32(i32_in words, i64_in token_starts, u32_in tokens, u32_out out) {
    gather_into_u32(words, token_starts, tokens, out);
}
