/* Lines of a column: positions, sizes and two hashes of each, in one pass. */
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/word_hashes.h"

/* Odd factors of the two hashes: from the digits of the golden ratio and of the square root of 2. */
#define HIGH_FACTOR 0x9E3779B97F4A7C15u
#define LOW_FACTOR 0x6A09E667F3BCC909u

enum { OTHER, SPACE, WORD }; /* classes of characters */

static const uint8_t ASCII_CLASS[128] = {
    [9 ... 13] = SPACE,     [28 ... 31] = SPACE,    [32] = SPACE,
    ['0' ... '9'] = WORD,   ['A' ... 'Z'] = WORD,   ['a' ... 'z'] = WORD,
};

INLINE uint8_t ascii_lower(uint8_t byte) { return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte; }

typedef struct {
    uint64_t high, low;
    int64_t size, words; /* characters other than white space; words */
    bool alphanumeric;   /* the line has a letter or digit */
} Line;

/* A character: its class, its folded code point, and its length in bytes. */
typedef struct {
    uint8_t class;
    bool word, joins; /* part of a word; part of the same word as those next to it */
    int64_t point, length;
} Character;

INLINE Character character_at(u8_in data, int64_t at, int64_t end) {
    uint8_t first = data.at[at];
    if (first < 128) {
        uint8_t class = ASCII_CLASS[first];
        return (Character){class, class == WORD || first == '_', true, ascii_lower(first), 1};
    }
    int64_t length, point = decode(data, at, end, &length);
    uint8_t group = kind(point), class = wide_space(point) ? SPACE : group == SEPARATOR ? OTHER : WORD;
    /* a character of a script without spaces is a word of its own */
    return (Character){class, class == WORD, group == LETTER, point < LOWER_SIZE ? LOWER[point] : point, length};
}

/* Read one line from data[*at] on; `*at` and `*cp` become where the next one begins, in bytes and code points. */
INLINE Line read_line(u8_in data, int64_t *at, int64_t end, int64_t *cp) {
    Line line = {0};
    bool inside = false, pending = false, open = true;
    while (open && *at < end) {
        Character c = character_at(data, *at, end);
        open = data.at[*at] != '\n';
        *at += c.length;
        ++*cp;
        if (c.class == SPACE) {
            pending = true;
        } else {
            if (pending && line.size) {
                line.high = (line.high ^ ' ') * HIGH_FACTOR;
                line.low = (line.low + ' ') * LOW_FACTOR;
            }
            line.high = (line.high ^ c.point) * HIGH_FACTOR;
            line.low = (line.low + c.point) * LOW_FACTOR;
            line.high ^= line.high >> 29;
            pending = false;
            line.size++;
            line.alphanumeric |= c.class == WORD;
        }
        line.words += c.word && !(inside && c.joins);
        inside = c.word && c.joins;
    }
    return line;
}

/* cp, hashes, numbers: [2, L] first and last code points; both hashes; sizes and words. Returns L. */
KERNEL int64_t scan_lines(u8_in data, i64_in offsets, i64_out starts, i64_out byte, i32_rows_out cp, u64_rows_out hashes,
                    i32_rows_out numbers, bool_out alphanumeric) {
    int64_t count = 0;
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t at = offsets.at[doc], end = offsets.at[doc + 1], point = 0;
        for (; at < end; count++) {
            byte.at[count] = at;
            cp.at[count] = point;
            Line line = read_line(data, &at, end, &point);
            cp.at[cp.columns + count] = point;
            hashes.at[count] = line.size ? mix(line.high) : 0;
            hashes.at[hashes.columns + count] = line.size ? mix(line.low) : 0;
            numbers.at[count] = line.size;
            numbers.at[numbers.columns + count] = line.words;
            alphanumeric.at[count] = line.alphanumeric;
        }
        starts.at[doc + 1] = count;
    }
    return count;
}

/* spans: [3, L] first and one past the last line, characters; hashes: [2, L]; both 0. Returns the number of
   paragraphs. */
KERNEL int64_t scan_paragraphs(i64_in starts, u64_in high, u64_in low, i32_in size, bool_in by_line, i64_rows_out spans,
                      u64_rows_out hashes, bool_out alphanumeric) {
    int64_t count = -1;
    int64_t *first = spans.at, *last = first + spans.columns, *characters = last + spans.columns;
    uint64_t *highs = hashes.at, *lows = highs + hashes.columns;
    for (int64_t doc = 0; doc < starts.size - 1; doc++) {
        bool within = false;
        for (int64_t line = starts.at[doc]; line < starts.at[doc + 1]; line++) {
            if (size.at[line] && !within) first[++count] = line;
            within = size.at[line] > 0;
            if (!within) continue;
            last[count] = line + 1;
            characters[count] += size.at[line];
            highs[count] = mix((highs[count] ^ high.at[line]) * HIGH_FACTOR + 1);
            lows[count] = mix((lows[count] ^ low.at[line]) * LOW_FACTOR + 1);
            alphanumeric.at[count] |= by_line.at[line];
        }
    }
    return count + 1;
}

KERNEL void mark_edges(i64_in starts, i32_in size, int64_t count, bool_out out) {
    for (int64_t doc = 0; doc < starts.size - 1; doc++) {
        int64_t first = starts.at[doc], last = starts.at[doc + 1];
        for (int64_t line = first, seen = 0; line < last && seen < count; line++)
            if (size.at[line]) out.at[line] = true, seen++;
        for (int64_t line = last - 1, seen = 0; line >= first && seen < count; line--)
            if (size.at[line]) out.at[line] = true, seen++;
    }
}

KERNEL void close_gaps(i64_in starts, i32_in size, u8_out cut) {
    for (int64_t doc = 0; doc < starts.size - 1; doc++) {
        uint8_t why = 0;
        bool blank_before = true, blank_now = false; /* the start of a text needs no blank line */
        for (int64_t line = starts.at[doc]; line < starts.at[doc + 1]; line++) {
            if (size.at[line] == 0) {
                if (why && blank_before && !blank_now)
                    cut.at[line] = why;
                else
                    blank_now = true;
            } else if (cut.at[line]) {
                why = cut.at[line];
                blank_before |= blank_now;
                blank_now = false;
            } else {
                why = 0;
                blank_before = blank_now = false;
            }
        }
    }
}
