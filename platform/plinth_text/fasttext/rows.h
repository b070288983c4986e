/* fastText's features of a token: its own row if it is in the dictionary, and the rows of its character n-grams.

   Hashes are 32-bit FNV-1a over signed bytes, as fastText 0.9.2 has them; n-grams are of code points and are taken
   from the token between `<` and `>`. */
#pragma once
#include "plinth_text/fasttext/tokens.h"

/* TILE: first characters of n-grams that are hashed side by side, as many as a mask has bits. */
enum { LANES = 16, TILE = 64, MAX_NGRAM = 64 };
/* Row of a token that is not in the dictionary, and of a label, which is not a feature. */
enum { UNKNOWN = -1, LABEL = -2 };

/* Numbers of a mapped file, which may be unaligned; a vector of `LANES` of them. */
typedef float Loose __attribute__((aligned(1), may_alias));
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(1), may_alias));

/* Input side of a model, as `predict.InputLayer` has it, and buffers for one caller. */
typedef struct {
    f32_rows_in rows;
    u8_rows_in codes;
    f32_in centroids, norms;
    u32_in bits, before;
    u8_in words;
    i64_in starts, ends;
    u64_in table;
    int64_t nwords, minn, maxn, bucket, width, last;
    uint32_t factor, shift;              /* to divide by `bucket` */
    uint8_t *padded;                     /* `<token>`, and bytes that may be read after it */
    uint32_t hashes[TILE];               /* n-grams of one tile */
    uint32_t places[MAX_NGRAM][TILE];    /* their hashes modulo `bucket`, by length */
    uint64_t masks[MAX_NGRAM];           /* which of them have a row, a bit each */
    int64_t found[TILE * MAX_NGRAM + 1]; /* n-grams that have rows, one tile's at most */
} InputLayer;

#define HIDDEN __attribute__((visibility("hidden")))

/* Prepare a layer for the texts of a column; false if memory could not be allocated. `close_input` frees it. */
bool open_input(InputLayer *in, i64_in offsets) HIDDEN;
void close_input(InputLayer *in) HIDDEN;

/* Put the sum of one token's rows into `out` of `width` numbers; returns how many rows there were, LABEL for a label.
   `plain`: the token is ASCII. */
int64_t features(u8_in data, int64_t start, int64_t end, uint64_t key, bool plain, InputLayer *in, float *out,
                 int64_t width) HIDDEN;

/* Number of a token's own row, UNKNOWN or LABEL. */
int64_t word_row(u8_in data, int64_t start, int64_t end, uint64_t key, const InputLayer *in) HIDDEN;

/* Add an input row of the model. */
void add_row(const InputLayer *in, int64_t number, float *out) HIDDEN;

INLINE void clear(float *out, int64_t width) { memset(out, 0, width * sizeof *out); }

/* Add `size` numbers. */
INLINE void add(float *restrict out, const Loose *restrict row, int64_t size) {
    int64_t whole = size / LANES * LANES;
    for (int64_t lane = 0; lane < whole; lane += LANES) *(Lanes *)(out + lane) += *(const Lanes *)(row + lane);
    for (int64_t i = whole; i < size; i++) out[i] += row[i];
}

/* Number of the row of an n-gram that has one. */
INLINE int64_t row_of_ngram(const InputLayer *in, uint32_t place) {
    uint32_t cell = place >> 5, below = in->bits.at[cell] & ((1u << (place & 31)) - 1);
    return in->nwords + in->before.at[cell] + __builtin_popcount(below);
}

/* 1 if an n-gram has a row, else 0. */
INLINE uint64_t kept(uint32_t place, u32_in bits) { return (bits.at[place >> 5] >> (place & 31)) & 1; }

/* One step of fastText's hash: a byte above 127 is a negative number, its upper bits all ones. */
INLINE uint32_t fnv(uint32_t hashed, uint8_t byte) { return (hashed ^ (uint32_t)(int8_t)byte) * 16777619u; }

/* fastText's hash of a word. */
INLINE uint32_t word_hash(u8_in data, int64_t start, int64_t end) {
    uint32_t hashed = 2166136261u;
    for (int64_t at = start; at < end; at++) hashed = fnv(hashed, data.at[at]);
    return hashed;
}

/* Put the mean of `size` rows, whose sum is `total`, and of the text's end into `out`; `end` has 1 behind its row
   where the model has one, else 0. */
INLINE void mean_of(const float *total, int64_t size, f32_in end, float *out, int64_t width) {
    float count = (float)size + end.at[width];
    float share = 1.0f / (count < 1.0f ? 1.0f : count);
    for (int64_t i = 0; i < width; i++) out[i] = (total[i] + end.at[i]) * share;
}
