/* spaCy's rules for blank English as tables, as `EnglishRules` has them, and the splitter that uses them. */
#pragma once
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/chunks.h"

/* Flags of a code point, as in `english`. */
enum {
    E_BLANK = 1, E_INERT = 2, E_PREFIX = 4, E_SUFFIX = 8, E_INFIX = 16, E_LETTER = 32, E_LOWER = 64, E_UPPER = 128,
    E_QUOTE = 256, E_BEFORE_PERIOD = 512, E_HOST = 1024, E_NAME = 2048, E_NUMBER = 4096, E_END = 8192,
    E_MARK = 16384, E_JOINT = 32768,
};
enum { LONGEST_EXCEPTION = 63, LONGEST_UNIT = 8 };
/* Places in the tables, and the sizes of their sets. */
enum { UNIT_BITS = 9, EXCEPTION_BITS = 12, ENDS_BITS = 15 };
enum { UNITS = 0, ENDS = 1 << UNIT_BITS, EXCEPTIONS = ENDS + (1 << ENDS_BITS) / 64 };
enum { PIECES = EXCEPTIONS + (1 << EXCEPTION_BITS) };
#define ENGLISH_FACTOR 0x9FB21C651E98DF25u
#define ENGLISH_SPREAD 0x9E3779B97F4A7C15u

/* Tables, and scratch memory for the longest text of a column, as `words.Splitter` has them. */
typedef struct {
    const uint16_t *flags;
    const uint64_t *tables;
    const uint64_t *pairs;
    u64_in rows;
    const uint8_t *whole;
    int64_t most;
    int32_t *points, *places;
    int64_t cuts; /* where in `places` the starts of suffixes begin */
    uint64_t *matched;
    int64_t *starts;
    uint8_t *taken;
    int32_t *copy;
} EnglishSplitter;

/* The splitter that a kernel's parameters of the same names make (`Splitter.arguments`). */
#define ENGLISH_SPLITTER                                                                                    \
    ((EnglishSplitter){flags.at, tables.at, pairs.at, rows, whole.at, most, points.at, places.at,           \
                       places.size / 2, matched.at, starts.at, taken.at, copy.at})

/* Words of a text: word i is data[edges[2 * i] : edges[2 * i + 1]]. */
typedef struct {
    int32_t *edges;
    int64_t count;
} EnglishWords;

INLINE void put_word(EnglishWords *words, int64_t start, int64_t end) {
    words->edges[2 * words->count] = start;
    words->edges[2 * words->count + 1] = end;
    words->count++;
}

/* 64-bit hash, not 0, of bytes. */
static inline uint64_t bytes_hash(u8_in data, int64_t start, int64_t end) {
    uint64_t value = end - start;
    for (int64_t at = start; at < end; at += 8) {
        value = (value ^ read_bytes(data, at, min_i64(8, end - at))) * ENGLISH_FACTOR;
        value ^= value >> 32;
    }
    return value | (value == 0);
}

/* 64-bit hash, not 0, of code points. */
static inline uint64_t points_hash(const int32_t *points, int64_t low, int64_t high) {
    uint64_t value = high - low;
    for (int64_t k = low; k < high; k++) value = (value ^ (uint64_t)points[k]) * ENGLISH_FACTOR;
    return value | (value == 0);
}

/* The slot of a hash in a set of the tables, or -1 less the empty slot where it belongs. */
static inline int64_t find_slot(const uint64_t *tables, int64_t base, int64_t bits, uint64_t value) {
    int64_t slot = (value * ENGLISH_SPREAD) >> (64 - bits);
    while (tables[base + slot] != 0) {
        if (tables[base + slot] == value) return base + slot;
        slot = (slot + 1) & (((int64_t)1 << bits) - 1);
    }
    return -1 - base - slot;
}

/* A hash of ENDS_BITS bits of the first byte, the last byte and the size. */
INLINE uint64_t hash_of_ends(const uint8_t *data, int64_t start, int64_t end) {
    uint64_t ends = (uint64_t)data[start] << 16 | (uint64_t)data[end - 1] << 8 | (uint64_t)(end - start);
    return (ends * ENGLISH_SPREAD) >> (64 - ENDS_BITS);
}

/* The slot of the exception that data[start:end] is; negative where it is none. */
INLINE int64_t exception_at(u8_in data, int64_t start, int64_t end, const uint64_t *tables) {
    if (end - start > LONGEST_EXCEPTION) return -1;
    uint64_t bit = hash_of_ends(data.at, start, end);
    if (!(tables[ENDS + (bit >> 6)] >> (bit & 63) & 1)) return -1;
    return find_slot(tables, EXCEPTIONS, EXCEPTION_BITS, bytes_hash(data, start, end));
}

/* Append the pieces of an exception that starts at a byte. */
static inline void put_pieces(int64_t slot, int64_t start, const uint64_t *tables, EnglishWords *words) {
    for (int64_t at = tables[slot + PIECES - EXCEPTIONS]; tables[at]; at++) {
        put_word(words, start, start + tables[at]);
        start += tables[at];
    }
}

/* True if spaCy has a word of white space between a word's end and the next one's start: not for one space. */
INLINE bool apart(const uint8_t *data, int64_t end, int64_t start) {
    return start > end && !(start == end + 1 && data[end] == 32);
}
