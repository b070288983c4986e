/* Words that give the meaning of a number next to them. */
#pragma once
#include "plinth_text/terms/pii_places.h"
#include "plinth_text/words/hash_sets.h"

/* Bits of a meaning that kernels use, as in `pii.py`. */
enum { PHONE = 1 << 0, KEY = 1 << 3, OTHER = 1 << 21 };

INLINE bool is_letter(uint8_t byte) { return byte >= 128 || BYTE_CLASSES[byte] & (UPPER | LOWER_CASE); }

/* The meaning of the word data[start:end]; 0 if it is not listed. The table is half empty, so each search ends. */
static int64_t word_meaning(const Text *text, int64_t start, int64_t end) {
    uint64_t hashed = FNV, mask = text->words.size - 1;
    for (int64_t at = start; at < end; at++) {
        uint8_t byte = text->data[at];
        hashed = (hashed ^ (byte >= 'A' && byte <= 'Z' ? byte + 32 : byte)) * PRIME;
    }
    for (uint64_t slot = hashed & mask; text->words.at[slot]; slot = (slot + 1) & mask)
        if (text->words.at[slot] == hashed) return text->meanings.at[slot];
    return 0;
}

/* Bits of all words in data[start:end], nearest first, up to one that means something else. `backwards`: the number
   follows, so the last word is the nearest. */
static int64_t context(const Text *text, int64_t start, int64_t end, bool backwards) {
    const uint8_t *data = text->data;
    int64_t meaning = 0;
    while (start < end) {
        int64_t found;
        if (!is_letter(data[backwards ? end - 1 : start])) {
            if (backwards)
                end--;
            else
                start++;
            continue;
        }
        if (backwards) {
            int64_t at = end;
            while (at > start && is_letter(data[at - 1])) at--;
            found = word_meaning(text, at, end);
            end = at;
        } else {
            int64_t at = start;
            while (at < end && is_letter(data[at])) at++;
            found = word_meaning(text, start, at);
            start = at;
        }
        if (found & OTHER && !meaning) return 0;
        meaning |= found;
    }
    return meaning & ~OTHER;
}
