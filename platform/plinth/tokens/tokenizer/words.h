/* Cut UTF-8 text into the words of our pipelines. */
#pragma once
#include "plinth_text/unicode/codepoints.h"

/* Bits of a character's class, and the bytes from which a word is cut, as in tokenizer.py. */
enum { W_LETTER = 1, W_MARK = 2, W_NUMBER = 4, W_SPACE = 8, W_NUMERIC = 16 };
enum { MAX_WORD_BYTES = 1 << 16 };

/* How a pipeline cuts words, as `words.WordPattern`. */
typedef struct {
    int64_t letters, alone, group;
    bool lines;
} WordPattern;

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
static inline int64_t blanks_end(u8_in data, int64_t at, int64_t end, const uint8_t *table, const WordPattern *by) {
    int64_t limit = at + MAX_WORD_BYTES, stop = at, last = at, line = at, size;
    while (stop < end) {
        if (!(class_at(data, stop, end, table, &size) & W_SPACE)) break;
        if (stop >= limit) return stop;
        if (data.at[stop] == '\n' || data.at[stop] == '\r') line = stop + 1;
        last = stop;
        stop += size;
    }
    if (by->lines && line > at) return line;
    if (stop == end || last == at) return stop;
    return class_at(data, stop, end, table, &size) & by->alone ? stop : last;
}

/* The end of up to `group` digits. */
static inline int64_t digits_end(
    u8_in data, int64_t at, int64_t end, const uint8_t *table, int64_t mask, int64_t group
) {
    for (int64_t k = 0; k < group && at < end; k++) {
        int64_t size;
        if (!(class_at(data, at, end, table, &size) & mask)) break;
        at += size;
    }
    return at;
}

/* Where the word that begins at `at` ends. */
static inline int64_t word_end(u8_in data, int64_t at, int64_t end, const uint8_t *table, const WordPattern *by) {
    int64_t limit = at + MAX_WORD_BYTES, start = at, size;
    uint8_t first = data.at[at], kind = class_at(data, at, end, table, &size);
    if (first == '\'') {
        int64_t form = short_form(data.at, at, end);
        if (form > at) return form;
    }
    if (first == ' ' && at + 1 < end) {
        int64_t wide;
        uint8_t after = class_at(data, at + 1, end, table, &wide);
        bool digit = after & W_NUMBER && (by->group || after & by->alone);
        if (!(after & (W_SPACE | by->alone) || (digit && !(after & by->letters)))) {
            start = at + 1;
            kind = after;
            size = wide;
        }
    }
    if (kind & by->alone) return digits_end(data, start, end, table, by->alone, by->group);
    if (kind & by->letters) return class_run(data, start + size, end, table, by->letters, limit);
    if (kind & W_NUMBER) {
        if (by->group && !by->alone) return digits_end(data, start, end, table, W_NUMBER, by->group);
        return class_run(data, start + size, end, table, W_NUMBER, limit);
    }
    if (kind & W_SPACE) return blanks_end(data, at, end, table, by);
    int64_t stop = start + size, others = by->letters | W_NUMBER | W_SPACE | by->alone;
    while (stop < end && stop < limit) {
        if (class_at(data, stop, end, table, &size) & others) break;
        stop += size;
    }
    return stop;
}
