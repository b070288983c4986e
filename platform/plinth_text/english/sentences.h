/* How many sentences a text has for spaCy's rule-based splitter. */
#pragma once
#include "plinth_text/english/words.h"

/* Whether a word is one character that ends a sentence, and whether it is punctuation alone. */
static inline bool word_ends(u8_in data, int64_t start, int64_t end, const uint16_t *flags, bool *marks) {
    bool ends = false;
    *marks = true;
    for (int64_t at = start; at < end && *marks;) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        ends = at == start && at + size == end && (flags[point] & E_END) != 0;
        *marks = (flags[point] & E_MARK) != 0;
        at += size;
    }
    return ends;
}

/* Sentences of a text that ends at a byte and has these words, at least one. */
static inline int64_t sentences_of_words(
    u8_in data, int64_t end, const int32_t *edges, int64_t count, const uint16_t *flags
) {
    int64_t found = 1;
    bool ended = false;
    for (int64_t i = 0; i < count; i++) {
        bool marks, ends = word_ends(data, edges[2 * i], edges[2 * i + 1], flags, &marks);
        if (ended && (apart(data.at, edges[2 * i - 1], edges[2 * i]) || !(marks || ends))) {
            found++;
            ended = false;
        }
        ended |= ends;
    }
    return found + (ended && apart(data.at, edges[2 * count - 1], end));
}

/* True if something that is not an ASCII mark follows a character that may end a sentence. */
static inline bool ends_inside(u8_in data, int64_t start, int64_t end, const uint16_t *flags) {
    bool ended = false;
    for (int64_t at = start; at < end;) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        uint16_t what = flags[point];
        if (what & E_END)
            ended = true;
        else if (ended && (point >= 128 || !(what & E_MARK)))
            return true;
        at += size;
    }
    return false;
}

/* Sentences of data[start:end], at least one. */
static inline int64_t count_sentences(
    u8_in data, int64_t start, int64_t end, const EnglishSplitter *by, int32_t *edges
) {
    if (!ends_inside(data, start, end, by->flags)) return 1;
    return sentences_of_words(data, end, edges, english_split(data, start, end, by, edges), by->flags);
}
