#include "plinth_text/compiled/kernel.h"

/* Ranks in blocks: `pairs` holds [most, 2]; `numbers` is -1 for each pair of stream and epoch that may occur, those of
   a stream from `begins` on. Returns how many pairs occur. */
KERNEL int64_t place(
    i64_in ranks, i64_in blocks, i64_rows_in counts, i64_rows_in before, i64_in sizes, i64_in lowest, i64_in begins,
    i64_out numbers, i16_out streams, i32_out epochs, i64_out turns, i64_out owners, i64_rows_out pairs
) {
    int64_t found = 0;
    for (int64_t i = 0; i < ranks.size; i++) {
        const int64_t *own = counts.at + blocks.at[i] * counts.columns;
        int64_t stream = 0, left = ranks.at[i];
        for (; left >= own[stream]; stream++) left -= own[stream];
        int64_t ordinal = before.at[blocks.at[i] * before.columns + stream] + left;
        int64_t epoch = floor_div(ordinal, sizes.at[stream]);
        streams.at[i] = stream;
        epochs.at[i] = epoch;
        turns.at[i] = ordinal - epoch * sizes.at[stream];
        int64_t *number = numbers.at + begins.at[stream] + epoch - lowest.at[stream];
        if (*number < 0) {
            *number = found;
            pairs.at[2 * found] = stream;
            pairs.at[2 * found++ + 1] = epoch;
        }
        owners.at[i] = *number;
    }
    return found;
}

/* Columns of a permutation's parameters, as in order.py; a key for each round from KEYS on. */
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

/* The round function: the finalizer of SplitMix64. */
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
