#include "plinth_text/unicode/fold.h"
#include "plinth_text/words/ngrams.h"

/* Hashes of the character n-grams of the folded data[start:end], repeats included; returns how many. `folded` holds
   two bytes more than the text, `points` and `grams` as many values. */
static int64_t character_grams(
    u8_in data, int64_t start, int64_t end, int64_t n, u8_out folded, uint64_t *points, uint64_t *grams
) {
    int64_t size = fold_text(data, start, end, folded), count = 0;
    u8_in text = {folded.at, folded.size};
    for (int64_t at = 0; at < size;) {
        int64_t length, point = decode(text, at, size, &length);
        points[count++] = mix((uint64_t)point + 1);
        at += length;
    }
    return hash_ngrams_of(points, count, n, grams);
}

KERNEL int64_t hash_characters(
    u8_in data, int64_t start, int64_t end, int64_t n, u8_out folded, u64_out points, u64_out grams
) {
    return character_grams(data, start, end, n, folded, points.at, grams.at);
}

KERNEL void sign(
    u8_in data, i64_in offsets, int64_t n, u64_in a, u64_in b, u8_out folded, u64_out points, u64_out grams,
    u32_rows_out out, bool_out filled
) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t count =
            character_grams(data, offsets.at[doc], offsets.at[doc + 1], n, folded, points.at, grams.at);
        for (int64_t i = 0; i < count; i++) grams.at[i] >>= 32;
        for (int64_t k = 0; k < a.size; k++) {
            uint64_t factor = a.at[k], term = b.at[k], least = UINT64_MAX;
            for (int64_t i = 0; i < count; i++) {
                uint64_t value = factor * grams.at[i] + term;
                least = value < least ? value : least;
            }
            out.at[doc * out.columns + k] = least >> 32;
        }
        filled.at[doc] = count > 0;
    }
}
