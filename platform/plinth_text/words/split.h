/* Words and lines of a text as positions in its buffer. */
#pragma once
#include "plinth_text/unicode/characters.h"
#include "plinth_text/unicode/codepoints.h"

/* What ends lines, by ASCII byte. */
static const uint8_t ASCII_BREAK[256] = {[10 ... 13] = 1, [28 ... 30] = 1};

/* words_T(data, start, end, table, edges): word i is data[edges[2 * i] : edges[2 * i + 1]]; returns how many.

   ASCII is taken without a branch: the position is stored at every byte and kept only at an edge. */
#define WORDS(T)                                                                                            \
    INLINE int64_t words_##T(u8_in data, int64_t start, int64_t end, u8_in table, T##_out edges) {          \
        int64_t count = 0, at = start, inside = 0;                                                          \
        while (at < end) {                                                                                  \
            uint64_t before = 1 - inside;                                                                   \
            for (; at < end && data.at[at] < 128; at++) {                                                   \
                uint64_t space = ASCII_SPACE[data.at[at]];                                                  \
                edges.at[count] = at;                                                                       \
                count += space ^ before;                                                                    \
                before = space;                                                                             \
            }                                                                                               \
            inside = 1 - before;                                                                            \
            while (at < end && data.at[at] >= 128) {                                                        \
                int64_t size, word = 1 - (table.at[decode(data, at, end, &size)] & SPACE);                  \
                edges.at[count] = at;                                                                       \
                count += inside ^ word;                                                                     \
                inside = word;                                                                              \
                at += size;                                                                                 \
            }                                                                                               \
        }                                                                                                   \
        edges.at[count] = end;                                                                              \
        return (count + inside) >> 1;                                                                       \
    }

WORDS(i32)
WORDS(i64)

/* As ASCII_SPACE, so that loops vectorize. */
INLINE bool ascii_space(uint8_t byte) {
    return (byte == 32) | ((byte >= 9) & (byte <= 13)) | ((byte >= 28) & (byte <= 31));
}

/* The number of words that `words_T` finds. `plain`: all is ASCII. */
static inline int64_t words_of(u8_in data, int64_t start, int64_t end, bool plain, u8_in table) {
    int64_t count = 0;
    if (plain) {
        const uint8_t *text = data.at + start;
        int64_t size = end - start;
        for (int64_t i = 1; i < size; i++) count += ascii_space(text[i - 1]) & !ascii_space(text[i]);
        return count + (size > 0 && !ascii_space(text[0]));
    }
    int64_t inside = 0;
    for (int64_t at = start; at < end;) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        int64_t word = 1 - (table.at[point] & SPACE);
        count += word & (inside ^ 1);
        inside = word;
        at += size;
    }
    return count;
}

/* line_ends_T(data, start, end, out): positions of `\\n`; returns how many. */
#define LINE_ENDS(T)                                                                                        \
    INLINE int64_t line_ends_##T(u8_in data, int64_t start, int64_t end, T##_out out) {                     \
        int64_t count = 0;                                                                                  \
        for (int64_t at = start; at < end; at++) {                                                          \
            out.at[count] = at;                                                                             \
            count += data.at[at] == 10;                                                                     \
        }                                                                                                   \
        return count;                                                                                       \
    }

LINE_ENDS(i32)
LINE_ENDS(i64)

/* Positions of the characters that end lines for `str.splitlines`; returns how many. `\\r\\n` are two. Not inlined:
   in a large caller the loop would keep its counters in memory. */
static __attribute__((noinline)) int64_t line_breaks(u8_in data, int64_t start, int64_t end, u8_in table, i64_out out) {
    int64_t count = 0;
    for (int64_t at = start; at < end;) {
        for (; at < end && data.at[at] < 128; at++) {
            out.at[count] = at;
            count += ASCII_BREAK[data.at[at]];
        }
        while (at < end && data.at[at] >= 128) {
            int64_t size, point = decode(data, at, end, &size);
            out.at[count] = at;
            count += (table.at[point] & BREAK) != 0;
            at += size;
        }
    }
    return count;
}
