/* The hashes of all n-grams of one length are computed side by side, and one bit rules out most of them: a pruned
   model has rows for few. */
#include "plinth_text/fasttext/rows.h"

static const char PREFIX[] = "__label__";
enum { PREFIX_SIZE = sizeof PREFIX - 1 };

/* Factor and shift divide by `bucket`, at most one too little: the factor is rounded down to 32 bits. */
bool open_input(InputLayer *in, i64_in offsets) {
    int64_t longest = 0;
    for (int64_t doc = 1; doc < offsets.size; doc++)
        longest = max_i64(longest, offsets.at[doc] - offsets.at[doc - 1]);
    uint64_t bucket = max_i64(1, in->bucket);
    in->shift = 64 - __builtin_clzll(bucket) + 31;
    in->factor = ((UINT64_C(1) << in->shift) - 1) / bucket;
    in->padded = calloc(longest + TILE + MAX_NGRAM + 16, 1);
    return in->padded != NULL;
}

void close_input(InputLayer *in) { free(in->padded); }

/* Number of the word data[start:end], which has this key, in the dictionary, or -1. */
static int64_t word_number(u8_in data, int64_t start, int64_t end, uint64_t key, u8_in words, i64_in starts,
                           i64_in ends, u64_in table) {
    uint64_t last = table.size - 1, slot = key & last;
    for (; table.at[slot]; slot = (slot + 1) & last) {
        if ((table.at[slot] ^ key) >> 32) continue;
        int64_t word = (int64_t)(table.at[slot] & UINT32_MAX) - 1, first = starts.at[word];
        if (ends.at[word] - first == end - start && !memcmp(words.at + first, data.at + start, end - start)) return word;
    }
    return -1;
}

KERNEL void fill_table(u8_in words, i64_in starts, i64_in ends, u64_out table) {
    uint64_t last = table.size - 1;
    for (int64_t word = 0; word < ends.size; word++) {
        uint64_t key = key_of(words, starts.at[word], ends.at[word]), slot = key & last;
        while (table.at[slot]) slot = (slot + 1) & last;
        table.at[slot] = (key >> 32 << 32) | (uint64_t)(word + 1);
    }
}

KERNEL int64_t number_of(u8_in word, u8_in words, i64_in starts, i64_in ends, u64_in table) {
    return word_number(word, 0, word.size, key_of(word, 0, word.size), words, starts, ends, table);
}

int64_t word_row(u8_in data, int64_t start, int64_t end, uint64_t key, const InputLayer *in) {
    int64_t word = word_number(data, start, end, key, in->words, in->starts, in->ends, in->table);
    if (word < 0 && end - start >= PREFIX_SIZE && !memcmp(data.at + start, PREFIX, PREFIX_SIZE)) return LABEL;
    return word >= in->nwords ? LABEL : word;
}

static void add_coded(const InputLayer *in, int64_t number, float *out) {
    int64_t parts = in->codes.columns;
    const uint8_t *codes = in->codes.at + number * parts;
    const Loose *centroids = in->centroids.at;
    float norm = in->norms.size ? in->norms.at[number] : 1.0f;
    for (int64_t part = 0; part < parts; part++) {
        int64_t size = part == parts - 1 ? in->last : in->width;
        const Loose *centroid = centroids + part * 256 * in->width + codes[part] * size;
        for (int64_t i = 0; i < size; i++) out[part * in->width + i] += centroid[i] * norm;
    }
}

INLINE void add_any(const InputLayer *in, int64_t number, float *out) {
    if (in->codes.columns)
        add_coded(in, number, out);
    else
        add(out, in->rows.at + number * in->rows.columns, in->rows.columns);
}

void add_row(const InputLayer *in, int64_t number, float *out) { add_any(in, number, out); }

/* hashed % bucket, without a division. */
INLINE uint32_t place_of(uint32_t hashed, uint32_t factor, uint32_t shift, uint32_t bucket) {
    uint32_t rest = hashed - (uint32_t)(((uint64_t)hashed * factor) >> shift) * bucket;
    return rest < rest - bucket ? rest : rest - bucket;
}

/* Add the rows of the n-grams noted. */
static void add_noted(InputLayer *in, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++) in->found[i] = row_of_ngram(in, in->found[i]);
    for (int64_t i = 0; i < count; i++) add_any(in, in->found[i], out);
}

/* Which n-grams of `n` characters in a tile have a row. `<` and `>` alone are none; bits are shifted in, as gathers
   would be slower. */
INLINE uint64_t row_mask(const uint32_t *places, int64_t n, int64_t tile, int64_t size, u32_in bits) {
    uint64_t mask = 0;
    for (int64_t i = min_i64(TILE, size - tile - max_i64(1, n - 1)); i > 0; i--)
        mask = (mask << 1) | kept(places[i - 1], bits);
    return n == 1 && tile == 0 ? mask & ~UINT64_C(1) : mask;
}

/* Note the n-grams of a tile that have a row, by character as fastText has them: long sums of floats depend on the
   order. `some`: characters that begin one. */
INLINE int64_t note_tile(InputLayer *in, uint64_t some) {
    int64_t count = 0;
    for (; some; some &= some - 1) {
        int64_t i = __builtin_ctzll(some);
        for (int64_t n = 0; n < in->maxn; n++) {
            in->found[count] = in->places[n][i];
            count += (in->masks[n] >> i) & 1;
        }
    }
    return count;
}

/* Add the rows of all n-grams of padded[:size], which is ASCII; returns how many there were. */
static int64_t add_ascii(InputLayer *in, int64_t size, float *out) {
    uint32_t factor = in->factor, shift = in->shift, bucket = in->bucket;
    int64_t total = 0;
    for (int64_t tile = 0; tile < size; tile += TILE) {
        int64_t lanes = min_i64(TILE, (size - tile + 15) & ~15);
        uint64_t some = 0;
        for (int64_t i = 0; i < lanes; i++) in->hashes[i] = 2166136261u;
        for (int64_t n = 1; n <= in->maxn; n++) {
            const uint8_t *restrict part = in->padded + tile + n - 1;
            uint32_t *restrict hashes = in->hashes, *restrict places = in->places[n - 1];
            for (int64_t lane = 0; lane < lanes; lane += LANES)
                for (int64_t i = lane; i < lane + LANES; i++) {
                    hashes[i] = (hashes[i] ^ part[i]) * 16777619u;
                    places[i] = place_of(hashes[i], factor, shift, bucket);
                }
            in->masks[n - 1] = n >= in->minn ? row_mask(places, n, tile, size, in->bits) : 0;
            some |= in->masks[n - 1];
        }
        int64_t count = note_tile(in, some);
        add_noted(in, count, out);
        total += count;
    }
    return total;
}

INLINE bool continues(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* As `add_ascii`, for any UTF-8. */
static int64_t add_unicode(InputLayer *in, int64_t size, float *out) {
    const uint8_t *padded = in->padded;
    int64_t count = 0, total = 0;
    for (int64_t first = 0; first < size; first++) {
        if (continues(padded[first])) continue;
        uint32_t hashed = 2166136261u;
        int64_t at = first;
        for (int64_t n = 1; n <= in->maxn && at < size; n++) {
            do hashed = fnv(hashed, padded[at++]);
            while (continues(padded[at]));
            if (n < in->minn || (n == 1 && (first == 0 || at == size))) continue;
            uint32_t place = place_of(hashed, in->factor, in->shift, in->bucket);
            in->found[count] = place;
            count += kept(place, in->bits);
            if (count == TILE * in->maxn) {
                add_noted(in, count, out);
                total += count;
                count = 0;
            }
        }
    }
    add_noted(in, count, out);
    return total + count;
}

int64_t features(u8_in data, int64_t start, int64_t end, uint64_t key, bool plain, InputLayer *in, float *out,
                 int64_t width) {
    clear(out, width);
    int64_t word = word_row(data, start, end, key, in);
    if (word == LABEL) return LABEL;
    if (word >= 0) add_any(in, word, out);
    if (in->maxn == 0) return word >= 0;
    int64_t size = end - start + 2;
    if (end + 8 <= data.size)
        for (int64_t i = 0; i < end - start; i += 8) write8(in->padded, 1 + i, read8(data.at, start + i));
    else
        memcpy(in->padded + 1, data.at + start, end - start);
    in->padded[0] = '<';
    in->padded[size - 1] = '>';
    in->padded[size] = 0; /* no continuation after it */
    return (plain ? add_ascii(in, size, out) : add_unicode(in, size, out)) + (word >= 0);
}
