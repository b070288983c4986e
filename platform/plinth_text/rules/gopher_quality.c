#include "plinth_text/words/chunks.h"
#include "plinth_text/words/split.h"

enum {
    WORDS, PLAIN_WORDS, PLAIN_CHARACTERS, HASHES, ELLIPSES, LINES, BULLETS, ELLIPSIS_LINES, ALPHA_WORDS, STOP_WORDS,
    GOPHER_COLUMNS,
};
enum { SEARCHED = 256 }; /* bytes searched at once for what is rare */
/* U+2022 and U+2026 are these two bytes and a third one. */
enum { GENERAL_1 = 0xE2, GENERAL_2 = 0x80, BULLET_3 = 0xA2, ELLIPSIS_3 = 0xA6 };

/* Gopher's eight stop words, as integers. The factor sends them to eight places (found by trial). */
#define SEND 0xC42DDDC22F41F7CDu
static uint64_t STOPS[8];

__attribute__((constructor)) static void fill_stops(void) {
    static const char words[8][8] = {"the", "be", "to", "of", "and", "that", "have", "with"};
    for (int k = 0; k < 8; k++) {
        uint64_t value = read8((const uint8_t *)words[k], 0);
        STOPS[(value * SEND) >> 61] = value;
    }
}

/* The top bits of those of eight ASCII bytes that are from `low` to `high`. */
INLINE uint64_t between(uint64_t eight, uint8_t low, uint8_t high) {
    return ((eight + EVERY(128 - low)) ^ (eight + EVERY(127 - high))) & TOPS;
}

/* Characters of a word, whether one is a letter, and whether one is not a symbol. */
static int64_t wide_word(u8_in data, int64_t start, int64_t end, u8_in table, bool *letter, bool *plain) {
    int64_t length = 0;
    *letter = *plain = false;
    for (int64_t at = start; at < end; length++) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        *letter |= (table.at[point] & ALPHA) != 0;
        *plain |= (table.at[point] & PUNCTUATION) == 0;
        at += size;
    }
    return length;
}

/* Words, those with a letter, those that are not only symbols and their characters, and stop words. */
static void count_all_words(u8_in data, const int32_t *edges, int64_t n, u8_in table, int64_t *counts) {
    uint64_t stops = 0;
    int64_t plain_words = 0, plain_characters = 0, alpha_words = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t start = edges[2 * i], end = edges[2 * i + 1], length = end - start;
        uint64_t letters = 0, digits = 0, wide = 0;
        for (int64_t at = start; at < end; at += 8) {
            uint64_t eight = read_bytes(data, at, min_i64(8, end - at));
            wide |= eight & TOPS;
            letters |= between(eight | EVERY(0x20), 'a', 'z');
            digits |= between(eight, '0', '9');
            uint64_t slot = (eight * SEND) >> 61;
            stops |= (uint64_t)((STOPS[slot] == eight) & (length <= 4)) << slot;
        }
        bool letter = letters != 0, plain = (letters | digits) != 0; /* in ASCII, only symbols are neither */
        if (wide) length = wide_word(data, start, end, table, &letter, &plain);
        alpha_words += letter;
        plain_words += plain;
        plain_characters += length * plain;
    }
    counts[WORDS] = n;
    counts[ALPHA_WORDS] = alpha_words;
    counts[PLAIN_WORDS] = plain_words;
    counts[PLAIN_CHARACTERS] = plain_characters;
    counts[STOP_WORDS] += popcount(stops);
}

/* True if there may be an ellipsis: the loop vectorizes. */
INLINE bool any_ellipsis(const uint8_t *text, int64_t size) {
    uint8_t found = 0;
    for (int64_t at = 0; at < size - 2; at++) {
        found |= (text[at] == text[at + 1]) & (text[at + 1] == text[at + 2]) & (text[at + 2] == '.');
        found |= (text[at] == GENERAL_1) & (text[at + 2] == ELLIPSIS_3);
    }
    return found;
}

/* True if three dots or U+2026 end here. */
INLINE bool ellipsis_ends(const uint8_t *data, int64_t end) {
    uint8_t first = data[end - 3], second = data[end - 2], third = data[end - 1];
    bool wide = first == GENERAL_1 && second == GENERAL_2 && third == ELLIPSIS_3;
    return wide || (first == '.' && second == '.' && third == '.');
}

/* `#`, and ellipses: three dots, each dot in one of them alone, or U+2026. */
static void count_symbols(const uint8_t *text, int64_t size, int64_t *counts) {
    int64_t hashes = 0, after = 3;
    for (int64_t i = 0; i < size; i++) hashes += text[i] == '#';
    counts[HASHES] = hashes;
    for (int64_t low = 0; low < size; low += SEARCHED) {
        int64_t high = min_i64(size, low + SEARCHED), from = max_i64(0, low - 2);
        if (!any_ellipsis(text + from, high - from)) continue;
        after = max_i64(after, low + 1);
        while (after <= high) {
            bool found = ellipsis_ends(text, after);
            counts[ELLIPSES] += found;
            after += found ? 3 : 1;
        }
    }
}

/* Count a line of the words from `first` to before `after`. */
INLINE void count_line(u8_in data, const int32_t *edges, int64_t first, int64_t after, int64_t *counts) {
    counts[LINES]++;
    if (first >= after) return;
    const uint8_t *text = data.at;
    int64_t at = edges[2 * first], last = edges[2 * after - 2], end = edges[2 * after - 1];
    bool wide = text[at] == GENERAL_1 && text[at + 1] == GENERAL_2 && text[at + 2] == BULLET_3;
    counts[BULLETS] += wide || text[at] == '-';
    counts[ELLIPSIS_LINES] += end - last >= 3 && ellipsis_ends(text, end);
}

/* Lines, those that start with a bullet and those that end with an ellipsis. All line ends are white space. */
static void count_lines(u8_in data, int64_t end, const int32_t *edges, int64_t n, u8_in table, int64_t *counts) {
    int64_t first = 0; /* word of this line */
    bool unended = false; /* it has characters */
    for (int64_t i = 0; i <= n; i++) { /* the white space before word i */
        int64_t at = i ? edges[2 * i - 1] : 0, stop = i < n ? edges[2 * i] : end, previous = -1;
        unended |= i > 0;
        if (stop == at + 1 && data.at[at] == 32) {
            unended = true;
            continue;
        }
        while (at < stop) {
            int64_t size = 1, point = data.at[at];
            if (point >= 128) point = decode(data, at, end, &size);
            if (table.at[point] & BREAK) {
                if (!(point == 10 && previous == 13)) count_line(data, edges, first, i, counts); /* \r\n is one */
                first = i;
                unended = false;
            } else {
                unended = true;
            }
            previous = point;
            at += size;
        }
    }
    if (unended) count_line(data, edges, first, n, counts);
}

KERNEL void gopher(
    u8_in data, i64_in offsets, u8_in table, i64_in word_first, i32_in word_edges, i32_out edges, i64_rows_out out
) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        u8_in text = {data.at + offsets.at[doc], data.size - offsets.at[doc]};
        int64_t size = offsets.at[doc + 1] - offsets.at[doc], *counts = out.at + doc * GOPHER_COLUMNS;
        int64_t n = words_i32(text, 0, size, table, edges);
        count_symbols(text.at, size, counts);
        count_lines(text, size, edges.at, n, table, counts);
        if (word_first.size) {
            int64_t first = word_first.at[doc], last = word_first.at[doc + 1];
            count_all_words(text, word_edges.at + 2 * first, last - first, table, counts);
        } else {
            count_all_words(text, edges.at, n, table, counts);
        }
    }
}
