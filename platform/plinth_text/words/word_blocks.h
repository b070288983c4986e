/* Hashes of ASCII words, many bytes and many words at once; the same hashes as those of `word_hashes`.

   A block of text is folded (word characters in lower case, zero for everything else), then the first byte of every
   word is found, then all words are hashed side by side: their first eight bytes, then the next eight of those that
   are longer. Each step is a loop without a branch that the compiler turns into vector instructions, or one that
   handles eight bytes by a look into a table. The block stays in the nearest cache. */
#pragma once
#include "plinth_text/compiled/kernel.h"

enum {
    BLOCK = 4096,  /* bytes; of 1 to 16 KiB, 2 and 4 KiB are the fastest */
    STRIDE = 32,   /* loops go on to a multiple of this, so that none is left for a loop without vectors */
    BLOCK_WORDS = BLOCK / 2 + STRIDE,
    BLOCK_LONGER = BLOCK / 8 + STRIDE, /* words of eight bytes or more, in whole strides */
};

/* A word's state is multiplied by this for every character. */
#define WORD_FACTOR 0x9FB21C651E98DF25u

/* Scratch memory. */
typedef struct {
    uint8_t folded[BLOCK + 8 * STRIDE + 32];
    uint8_t marks[BLOCK / 8 + STRIDE];
    uint16_t places[BLOCK_WORDS + 16];
    uint64_t states[BLOCK_WORDS], longer[BLOCK_LONGER], bytes[BLOCK_LONGER], own[BLOCK_LONGER];
} Block;

/* Hash the words of text[0:size] (at most BLOCK), ASCII that cuts no word; returns how many there are.

   `lower` has for each byte its lower case for a word character, else 0; `out` holds at least size / 2 + 1 states,
   which are not mixed yet. */
int64_t hash_block(const uint8_t *text, int64_t size, const uint64_t *lower, Block *block, uint64_t *out)
    __attribute__((visibility("hidden")));
