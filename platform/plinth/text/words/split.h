/* Words and lines of a text as positions in its buffer. */
#pragma once
#include "text/unicode/characters.h"
#include "text/unicode/codepoints.h"

/* White space, and what ends lines, by ASCII byte. */
static const uint8_t ASCII_SPACE[256] = {[9 ... 13] = 1, [28 ... 31] = 1, [32] = 1};
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
