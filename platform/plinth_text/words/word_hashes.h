/* Words of a text and their hashes, in one pass over the bytes. */
#pragma once
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/chunks.h"
#include "plinth_text/words/word_blocks.h"

/* Runs of ASCII from this many bytes on are hashed in blocks. */
enum { WIDE = 384 };

/* By ASCII byte: the lower-cased byte of a word character, else 0; and all ones for a word character, else 0. */
extern uint64_t plinth_ascii_lower[256] __attribute__((visibility("hidden")));
extern uint64_t plinth_ascii_word[256] __attribute__((visibility("hidden")));

/* The 64-bit finalizer of MurmurHash3 (Appleby, public domain): every bit depends on every bit. */
INLINE uint64_t mix(uint64_t value) {
    value ^= value >> 33;
    value *= 0xFF51AFD7ED558CCDu;
    value ^= value >> 33;
    value *= 0xC4CEB9FE1A85EC53u;
    return value ^ (value >> 33);
}

/* Hash the words of data[start:end] into `out`; returns how many there are.

   `out` must hold (end - start) / 2 + 4 values: no encoding packs words closer. */
int64_t hash_words_of(u8_in data, int64_t start, int64_t end, uint64_t *out) __attribute__((visibility("hidden")));
