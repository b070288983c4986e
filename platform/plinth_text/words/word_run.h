/* The words of one text as its characters pass, for rules that have words of their own. */
#pragma once
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/hash_sets.h"

/* Words so far: hash of each, and the characters of all words before it. `size` and `value` are characters and hash of
   the word that is open. */
typedef struct {
    uint64_t *hashes;
    int64_t *characters;
    int64_t count, size;
    uint64_t value;
} WordRun;

INLINE WordRun no_words(uint64_t *hashes, int64_t *characters) {
    characters[0] = 0;
    return (WordRun){hashes, characters, 0, 0, FNV};
}

/* The code point at `at`, and its bytes; a line end behind the text, which closes its last word. */
INLINE int64_t point_or_end(u8_in data, int64_t at, int64_t end, int64_t *step) {
    *step = 1;
    if (at == end) return '\n';
    return data.at[at] < 128 ? data.at[at] : decode(data, at, end, step);
}

INLINE void hash_unit(WordRun *words, uint64_t unit) { words->value = (words->value ^ unit) * PRIME; }

INLINE void hash_character(WordRun *words, uint64_t unit) {
    hash_unit(words, unit);
    words->size++;
}

INLINE void close_word(WordRun *words) {
    words->hashes[words->count] = words->value;
    words->characters[words->count + 1] = words->characters[words->count] + words->size;
    words->count++;
    words->size = 0;
    words->value = FNV;
}
