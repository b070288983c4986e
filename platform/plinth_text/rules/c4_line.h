/* One line under C4's rules: white space and citations around and in it, its words, phrases and sentences. */
#pragma once
#include "plinth_text/rules/phrases.h"
#include "plinth_text/unicode/characters.h"
#include "plinth_text/unicode/codepoints.h"

/* Columns of `c4.JudgedLines.counts`: a line is counted under one of them in addition to the first. */
enum { LINES, KEPT, SENTENCES, LONG_WORD, UNENDED, FEW_WORDS, LOREM_IPSUM, JAVASCRIPT, CURLY_BRACKET, NOTICE, C4_COLUMNS };

/* Which lines stay, as `c4.Lines`. */
typedef struct {
    int64_t min_words, max_word_characters;
    bool ends_required, english;
} LineRules;

/* What a text may hold: a phrase, a `[`, a `{`. */
typedef struct {
    bool phrases, square, curly;
} MayHold;

/* Each phrase has one of these. */
static const uint8_t RARE[5][4] = {"ipsu", "vasc", "ms o", "cy p", "cook"};

/* Whether a rare part of a phrase occurs, in upper or lower case, a `[`, and a `{`: the loops vectorize. */
static inline MayHold may_hold(const uint8_t *text, int64_t size) {
    uint8_t found = 0, square = 0, curly = 0;
    for (int k = 0; k < 5; k++) {
        uint8_t a = RARE[k][0], b = RARE[k][1], c = RARE[k][2], d = RARE[k][3];
        for (int64_t at = 0; at < size - 3; at++) {
            uint8_t here = ((text[at] | 32) == a) & ((text[at + 1] | 32) == b);
            found |= here & ((text[at + 2] | 32) == c) & ((text[at + 3] | 32) == d);
        }
    }
    for (int64_t at = 0; at < size; at++) {
        square |= text[at] == '[';
        curly |= text[at] == '{';
    }
    return (MayHold){found, square, curly};
}

/* Start of the character that ends at `end`. */
INLINE int64_t last_character(u8_in data, int64_t start, int64_t end, int64_t *point) {
    int64_t at = end - 1, size;
    *point = data.at[at];
    if (*point >= 128) {
        while (at > start && (data.at[at] & 0xC0) == 0x80) at--;
        *point = decode(data, at, end, &size);
    }
    return at;
}

/* Ends of a line without the white space around it. */
static inline void strip_line(u8_in data, int64_t start, int64_t end, u8_in table, int64_t *left, int64_t *right) {
    *left = start;
    *right = end;
    while (*left < end) {
        int64_t size = 1, point = data.at[*left];
        if (point >= 128) point = decode(data, *left, end, &size);
        if (!(table.at[point] & SPACE)) break;
        *left += size;
    }
    while (*right > *left) {
        int64_t point, at = last_character(data, *left, *right, &point);
        if (!(table.at[point] & SPACE)) break;
        *right = at;
    }
}

/* Count a line under the first rule that catches it, or as kept; returns the bytes that stay of it, or -1. `line` is
   filled with what stays where citations are taken out. */
int64_t judge_line(
    u8_in text, int64_t left, int64_t right, u8_in table, const LineRules *rules, uint8_t *line, MayHold may,
    int64_t *counts
) __attribute__((visibility("hidden")));

/* Sentences of a line at white space, at least one. A piece without anything but ends and spaces is none. */
int64_t sentences_at_white_space(const uint8_t *line, int64_t size) __attribute__((visibility("hidden")));
