#include "plinth_text/compiled/kernel.h"

/* Columns of a permutation's parameters, as in permutation.py; a key for each round from KEYS on. */
enum { WIDTH, HEIGHT, SIZE, BY_WIDTH, BY_HEIGHT, KEYS };
enum { ROUNDS = 6, PARAMETERS = KEYS + ROUNDS };

INLINE uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Quotient and remainder by a product: with floor((2^64 - 1) / modulus) it is one too small at most. The machine's own
   division takes some 30 cycles. */
INLINE uint64_t divide(uint64_t word, uint64_t modulus, uint64_t reciprocal, uint64_t *rest) {
    uint64_t quotient = (uint64_t)(((unsigned __int128)word * reciprocal) >> 64);
    *rest = word - quotient * modulus;
    uint64_t over = *rest >= modulus;
    *rest -= over * modulus;
    return quotient + over;
}

/* The round function: the finaliser of SplitMix64. */
INLINE uint64_t word_of(uint64_t half, uint64_t key, uint64_t modulus, uint64_t reciprocal) {
    uint64_t word = half + key, rest;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    divide(word ^ (word >> 31), modulus, reciprocal, &rest);
    return rest;
}

INLINE uint64_t encrypt(uint64_t point, const uint64_t *own) {
    uint64_t width = own[WIDTH], height = own[HEIGHT], column, row = divide(point, width, own[BY_WIDTH], &column);
    for (int at = 0; at < ROUNDS; at += 2) {
        column += word_of(row, own[KEYS + at], width, own[BY_WIDTH]);
        column = min_u64(column, column - width); /* below 0 wraps round: the minimum is in range */
        row += word_of(column, own[KEYS + at + 1], height, own[BY_HEIGHT]);
        row = min_u64(row, row - height);
    }
    return row * width + column;
}

INLINE uint64_t decrypt(uint64_t point, const uint64_t *own) {
    uint64_t width = own[WIDTH], height = own[HEIGHT], column, row = divide(point, width, own[BY_WIDTH], &column);
    for (int at = ROUNDS - 2; at >= 0; at -= 2) {
        row -= word_of(column, own[KEYS + at + 1], height, own[BY_HEIGHT]);
        row = min_u64(row, row + height);
        column -= word_of(row, own[KEYS + at], width, own[BY_WIDTH]);
        column = min_u64(column, column + width);
    }
    return row * width + column;
}

/* Each value through its permutation, as often as it is outside of the range. */
KERNEL void move(u64_rows_in table, i64_in owners, i64_in values, bool inverse, i64_out moved) {
    for (int64_t i = 0; i < values.size; i++) {
        const uint64_t *own = table.at + owners.at[i] * PARAMETERS;
        uint64_t point = values.at[i];
        do point = inverse ? decrypt(point, own) : encrypt(point, own);
        while (point >= own[SIZE]);
        moved.at[i] = point;
    }
}

KERNEL uint64_t quotient(uint64_t word, uint64_t modulus, uint64_t reciprocal, uint64_t *rest) {
    return divide(word, modulus, reciprocal, rest);
}
