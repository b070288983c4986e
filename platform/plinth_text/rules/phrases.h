/* Phrases and citations that C4's rules look for. */
#pragma once
#include "plinth_text/compiled/kernel.h"

INLINE uint8_t lower_byte(uint8_t byte) { return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte; }

/* True if a phrase in lower case starts at a byte, in any case of ASCII. */
INLINE bool phrase_at(const uint8_t *text, int64_t at, int64_t end, const char *phrase) {
    for (; *phrase; phrase++, at++)
        if (at >= end || lower_byte(text[at]) != (uint8_t)*phrase) return false;
    return true;
}

/* Bytes of the citation that starts at the bracket `at` and ends before `end`: `[1]`, `[edit]`, `[citation needed]`;
   0 for none. */
static inline int64_t citation_bytes(const uint8_t *data, int64_t at, int64_t end) {
    int64_t stop = at + 1;
    while (stop < end && data[stop] >= '0' && data[stop] <= '9') stop++;
    if (stop < end && data[stop] == ']') return stop + 1 - at;
    static const char *const words[] = {"edit]", "citation needed]"};
    for (int k = 0; k < 2; k++) {
        int64_t size = strlen(words[k]);
        if (at + 1 + size <= end && memcmp(data + at + 1, words[k], size) == 0) return size + 1;
    }
    return 0;
}
