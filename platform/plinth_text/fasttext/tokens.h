/* Find the ends of fastText's tokens, eight bytes at a time; hash them and count their letters on the way. */
#pragma once
#include "plinth_text/unicode/characters.h"
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/chunks.h"
#include "plinth_text/words/word_hashes.h"

/* Next to the flags of characters.h: a damaged code point. */
enum { BROKEN = 32 };

/* What fastText calls white space. */
static const bool TOKEN_SEPARATOR[256] = {[0] = 1, [9 ... 13] = 1, [32] = 1};

/* A token: its end; its key, an odd 64-bit hash of its bytes; its letters, code points, and damaged code points. */
typedef struct {
    int64_t end;
    uint64_t key;
    int64_t letters, characters, damaged;
} Token;

/* The top bit of each byte at which a run of ASCII ends: a separator, or above 127. Added to seven-bit numbers, the
   constants set the top bit from a limit on. */
INLINE uint64_t run_ends(uint64_t eight) {
    uint64_t low = eight & ~TOPS;
    uint64_t others = (low + EVERY(0x80 - 1)) & ((low ^ EVERY(0x20)) + EVERY(0x80 - 1)) &
                      (~(low + EVERY(0x80 - 9)) | (low + EVERY(0x80 - 14)));
    return (eight | ~others) & TOPS;
}

/* The top bit of each byte that is an ASCII letter; bytes are below 128. */
INLINE uint64_t ascii_letters(uint64_t eight) {
    uint64_t lower = eight | EVERY(0x20);
    return (lower + EVERY(0x80 - 'a')) & ~(lower + EVERY(0x80 - 'z' - 1)) & TOPS;
}

INLINE uint64_t mixed(uint64_t state, uint64_t eight) {
    state = (state ^ eight) * 0x9FB21C651E98DF25u;
    return state ^ (state >> 32);
}

/* True if two characters come from UTF-8 that was read as Latin-1 or Windows-1252. */
INLINE bool mojibake(int64_t first, int64_t second) {
    if (first == 0xC2 || first == 0xC3 || first == 0xD0 || first == 0xD1)
        return (second >= 0x80 && second <= 0xBF) || second == 0x20AC || second == 0x2122 ||
               (second >= 0x2018 && second <= 0x203A) || (second >= 0x152 && second <= 0x192);
    if (first == 0xE2) return second == 0x20AC || second == 0x80 || second == 0x201A || second == 0x201E;
    return first == 0xEF && second == 0xBB;
}

/* Hash and count the characters above 127 from `at` on; returns where they end. `beyond`: bytes that continue a code
   point. `points` may be shorter than Unicode: nothing is counted of code points behind its end. */
INLINE int64_t wide_run(u8_in data, int64_t at, int64_t stop, u8_in points, uint64_t *state, Token *found,
                        int64_t *beyond) {
    while (at < stop && data.at[at] >= 128) {
        int64_t length, wide = decode(data, at, stop, &length);
        uint64_t whole = data.at[at];
        for (int64_t i = 1; i < length; i++) whole = (whole << 8) | data.at[at + i];
        *state = mixed(*state, whole);
        uint8_t flag = wide < points.size ? points.at[wide] : 0;
        found->letters += (flag & ALPHA) != 0;
        found->damaged += (flag & BROKEN) != 0;
        at += length;
        *beyond += length - 1;
        if (wide >= 0xC2 && wide <= 0xEF && at < stop && data.at[at] >= 128) {
            int64_t size;
            found->damaged += mojibake(wide, decode(data, at, stop, &size));
        }
    }
    return at;
}

/* The token that starts at data[at], and ends before `stop`. `points`: flags by code point. */
INLINE Token token_at(u8_in data, int64_t at, int64_t stop, u8_in points) {
    Token found = {0};
    int64_t start = at, beyond = 0;
    uint64_t state = 0xCBF29CE484222325u;
    for (;;) {
        int64_t left = min_i64(stop - at, 8);
        uint64_t eight = at + 8 <= data.size ? read8(data.at, at) : left ? read_bytes(data, at, left) : 0;
        uint64_t ends = run_ends(eight) | (left == 8 ? 0 : TOPS << (8 * left));
        int64_t size = ends ? __builtin_ctzll(ends) >> 3 : 8;
        if (size) {
            eight = low_bytes(eight, size);
            found.letters += popcount(ascii_letters(eight));
            state = mixed(state, eight);
            at += size;
        }
        if (size == 8) continue;
        if (at >= stop || data.at[at] < 128) break;
        at = wide_run(data, at, stop, points, &state, &found, &beyond);
    }
    found.end = at;
    found.key = mix(state ^ (uint64_t)(at - start)) | 1;
    found.characters = at - start - beyond;
    return found;
}

/* The key of data[start:end], as that of `token_at`; of a run that ends before `end`, that run's. */
INLINE uint64_t key_of(u8_in data, int64_t start, int64_t end) {
    return token_at(data, start, end, (u8_in){NULL, 0}).key;
}
