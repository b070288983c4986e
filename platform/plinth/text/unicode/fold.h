/* Fold texts: lower case, runs of white space as one space and none at the ends; the rest stays. */
#pragma once
#include "text/unicode/codepoints.h"

static const uint8_t FOLD_SPACE[256] = {[9 ... 13] = 1, [28 ... 31] = 1, [32] = 1};

INLINE uint8_t folded_ascii(uint8_t byte) {
    if (FOLD_SPACE[byte]) return 32;
    return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte;
}

INLINE int64_t copy_folded(u8_in data, int64_t at, int64_t point, int64_t length, u8_out out, int64_t size) {
    int64_t lower = point < LOWER_SIZE ? LOWER[point] : point;
    if (length == 2 && lower != point && lower >= 0x80) {
        out.at[size] = 0xC0 | (lower >> 6);
        out.at[size + 1] = 0x80 | (lower & 0x3F);
    } else {
        for (int64_t i = 0; i < length; i++) out.at[size + i] = data.at[at + i];
    }
    return size + length;
}

/* Fold data[start:end] into `out`, which must hold one byte more; returns the folded length.

   In ASCII, a space after a space is overwritten by the next byte: no branch. */
static inline int64_t fold_text(u8_in data, int64_t start, int64_t end, u8_out out) {
    int64_t size = 0, at = start, space = 1;
    while (at < end) {
        for (; at < end && data.at[at] < 128; at++) {
            uint8_t byte = data.at[at];
            int64_t here = FOLD_SPACE[byte];
            out.at[size] = folded_ascii(byte);
            size += 1 - (here & space);
            space = here;
        }
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
