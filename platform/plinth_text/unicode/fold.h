/* Fold texts: lower case, runs of white space as one space and none at the ends; the rest stays. */
#pragma once
#include "plinth_text/unicode/characters.h"
#include "plinth_text/unicode/codepoints.h"

/* By ASCII byte: itself in lower case; a space for white space. */
static const uint8_t FOLDED_ASCII[128] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 32, 32, 32, 32, 32, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23,
    24, 25, 26, 27, 32, 32, 32, 32, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 97, 98, 99, 100, 101, 102, 103,
    104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 91, 92, 93, 94, 95,
    96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119,
    120, 121, 122, 123, 124, 125, 126, 127,
};

INLINE int64_t copy_folded(u8_in data, int64_t at, int64_t point, int64_t length, u8_out out, int64_t size) {
    int64_t lower = point < LOWER_SIZE ? LOWER[point] : point;
    if (length == 2 && lower != point && lower >= 0x80) {
        out.at[size] = 0xC0 | (lower >> 6);
        out.at[size + 1] = 0x80 | (lower & 0x3F);
    } else {
        out.at[size] = data.at[at]; /* written out: a loop would become a call of memcpy */
        if (length > 1) out.at[size + 1] = data.at[at + 1];
        if (length > 2) out.at[size + 2] = data.at[at + 2];
        if (length > 3) out.at[size + 3] = data.at[at + 3];
    }
    return size + length;
}

/* Fold data[start:end] into `out`, which must hold one byte more; returns the folded length.

   In ASCII, a space after a space is overwritten by the next byte: no branch. */
static inline int64_t fold_text(u8_in data, int64_t start, int64_t end, u8_out out) {
    int64_t size = 0, at = start, space = 1;
    while (at < end) {
        const uint8_t *text = data.at + at, *stop = data.at + end;
        uint8_t *to = out.at + size;
        uint64_t within = space;
        for (; text < stop && *text < 128; text++) {
            uint64_t here = ASCII_SPACE[*text];
            *to = FOLDED_ASCII[*text];
            to += 1 - (here & within);
            within = here;
        }
        at = text - data.at;
        size = to - out.at;
        space = within;
        while (at < end && data.at[at] >= 128) {
            int64_t length, point = decode(data, at, end, &length);
            if (wide_space(point)) {
                out.at[size] = 32;
                size += 1 - space;
                space = 1;
            } else {
                size = copy_folded(data, at, point, length, out, size);
                space = 0;
            }
            at += length;
        }
    }
    return size && space ? size - 1 : size;
}
