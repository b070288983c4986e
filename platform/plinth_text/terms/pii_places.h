/* Candidates for personal data: their kinds, their table, and the classes of bytes that tell them apart. */
#pragma once
#include "plinth_text/compiled/kernel.h"

/* As in `pii.py`: an `@`, dotted numbers, hexadecimal groups, a number, letters and a number, a long run, a PEM
   line. */
enum { AT, DOTTED, HEXES, NUMBER, LETTERED, RUN, PEM };

enum { TOKEN = 1, DIGIT = 2, UPPER = 4, LOWER_CASE = 8, AT_SIGN = 16, COLON = 32, HEX = 64, WORD = 128 };

static const uint8_t BYTE_CLASSES[256] = {
    ['0' ... '9'] = TOKEN | WORD | DIGIT | HEX,
    ['A' ... 'F'] = TOKEN | WORD | UPPER | HEX,
    ['G' ... 'Z'] = TOKEN | WORD | UPPER,
    ['a' ... 'f'] = TOKEN | WORD | LOWER_CASE | HEX,
    ['g' ... 'z'] = TOKEN | WORD | LOWER_CASE,
    ['_'] = TOKEN | WORD,
    ['-'] = TOKEN,
    ['@'] = AT_SIGN,
    [':'] = COLON,
};

/* One text of a column, and the words that give numbers a meaning (`pii.table`). */
typedef struct {
    const uint8_t *data;
    int64_t doc, first, end; /* row, first byte, and the one after the last */
    u64_in words;
    i64_in meanings;
} Text;

INLINE uint8_t class_at(const Text *text, int64_t at) { return BYTE_CLASSES[text->data[at]]; }

/* The byte before or at a position; a space outside the text. */
INLINE uint8_t byte_before(const Text *text, int64_t at) { return at > text->first ? text->data[at - 1] : ' '; }
INLINE uint8_t byte_at(const Text *text, int64_t at) { return at < text->end ? text->data[at] : ' '; }

/* Candidates: [P, 5] row of the text, kind, first byte and the one after the last in the text, meaning. */
typedef struct {
    i64_rows_out rows;
    int64_t size;
} Found;

/* Note a candidate, or count it only once the table is full. */
INLINE void put(Found *found, const Text *text, int64_t kind, int64_t start, int64_t end, int64_t meaning) {
    if (found->size < found->rows.rows) {
        int64_t *row = found->rows.at + 5 * found->size;
        row[0] = text->doc;
        row[1] = kind;
        row[2] = start - text->first;
        row[3] = end - text->first;
        row[4] = meaning;
    }
    found->size++;
}
