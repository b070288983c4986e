/* Obfuscated terms: words written with signs for letters or with repeated letters, and words in single letters. */
#pragma once
#include "plinth_text/compiled/kernel.h"
#include "plinth_text/words/hash_lookup.h"

enum { FILTER_BITS = 16 };

/* Sorted hashes, the term (or number of words) of each, and a filter of their top bits. */
typedef struct {
    u64_in hashes;
    i64_in terms;
    bool_in bits;
} TermHashes;

/* The term of a hash, or -1. */
INLINE int64_t term_of(const TermHashes *table, uint64_t hash) {
    if (!table->bits.at[hash >> (64 - FILTER_BITS)]) return -1;
    int64_t at = position_of(table->hashes, hash);
    return at < 0 ? -1 : table->terms.at[at];
}

/* A hit: its first byte, the one after the last, and the term. */
typedef struct {
    int64_t start, end, term;
} Hit;

typedef struct {
    Hit *at;
    int64_t size, room;
} Hits;

/* Add a hit; false where memory could not be allocated. */
static inline bool add_hit(Hits *hits, int64_t start, int64_t end, int64_t term) {
    if (hits->size == hits->room) {
        int64_t room = hits->room ? 2 * hits->room : 64;
        Hit *more = realloc(hits->at, room * sizeof *more);
        if (!more) return false;
        hits->at = more;
        hits->room = room;
    }
    hits->at[hits->size++] = (Hit){start, end, term};
    return true;
}

/* Hashes of a piece's letters, and their number. */
typedef struct {
    uint64_t i, l;  /* signs for i or l read as i, as l */
    uint64_t once;  /* as `i`, runs of one letter once */
    int64_t letters;
} Skeleton;

Skeleton skeleton_of(u8_in data, int64_t start, int64_t end, u32_in letters) __attribute__((visibility("hidden")));

/* Add the obfuscated terms of data[start:end] to `hits`; false where memory could not be allocated.

   `letters` is `fold_letters.FOLD`; `skeletons` and `runs` have terms by the hashes `i` and `once`. */
bool obfuscated_terms(u8_in data, int64_t start, int64_t end, u32_in letters, const TermHashes *skeletons,
                      const TermHashes *runs, Hits *hits) __attribute__((visibility("hidden")));
