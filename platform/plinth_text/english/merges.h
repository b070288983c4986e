/* Exceptions that are several words once a text is split. */
#pragma once
#include "plinth_text/english/tables.h"

/* Hash, not 0, of a row of words with one more. */
INLINE uint64_t longer_row(uint64_t value, u8_in data, int64_t start, int64_t end) {
    value = value * ENGLISH_SPREAD + bytes_hash(data, start, end);
    value ^= value >> 29;
    return value | (value == 0);
}

/* Put exceptions across words together. */
void merge_words(u8_in data, const EnglishSplitter *by, EnglishWords *words) __attribute__((visibility("hidden")));
