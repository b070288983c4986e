/* Labels of whole documents by any model, with word n-grams, and the score of a chosen label. */
#include "plinth_text/fasttext/scores.h"

/* Words whose sums are kept, a power of two; rows that are noted before they are added, so that their reads overlap. */
enum { CACHE = 1 << 12, NOTED = 64 };

/* Of recent words, by key (0: free): how many rows they have, their sum, the hash; without n-grams of characters the
   word's row instead. Open word n-grams, the newest first; rows noted; sums of some words and all. */
typedef struct {
    uint64_t keys[CACHE];
    int64_t found[CACHE];
    uint32_t hashes[CACHE];
    uint64_t open[MAX_NGRAM];
    int64_t noted[NOTED], count;
    float *some, *whole, *mean, sums[];
} Cache;

static Cache *open_cache(int64_t width) {
    Cache *cache = calloc(1, sizeof *cache + (CACHE + 3) * width * sizeof *cache->sums);
    if (!cache) return NULL;
    cache->some = cache->sums + CACHE * width;
    cache->whole = cache->some + width;
    cache->mean = cache->whole + width;
    return cache;
}

static void add_noted(const InputLayer *in, Cache *cache) {
    for (int64_t i = 0; i < cache->count; i++) add_row(in, cache->noted[i], cache->some);
    cache->count = 0;
}

INLINE void note(int64_t row, const InputLayer *in, Cache *cache) {
    if (cache->count == NOTED) add_noted(in, cache);
    cache->noted[cache->count++] = row;
}

/* Note the word n-grams that end with a word; returns how many there are. */
INLINE int64_t word_ngrams(uint32_t hashed, int64_t depth, int64_t ngram, const InputLayer *in, Cache *cache) {
    uint64_t word = (int32_t)hashed;
    int64_t count = 0;
    for (int64_t i = 0; i < depth; i++) {
        cache->open[i] = cache->open[i] * 116049371u + word;
        uint32_t place = cache->open[i] % (uint64_t)in->bucket;
        if (!kept(place, in->bits)) continue;
        note(row_of_ngram(in, place), in, cache);
        count++;
    }
    for (int64_t i = min_i64(depth, ngram - 2); i > 0; i--) cache->open[i] = cache->open[i - 1];
    cache->open[0] = word;
    return count;
}

/* The slot of the cache that has a token's features. */
INLINE int64_t cached(u8_in data, int64_t start, const Token *token, InputLayer *in, Cache *cache, int64_t width) {
    int64_t slot = (token->key >> 40) & (CACHE - 1);
    if (__builtin_expect(cache->keys[slot] != token->key, 0)) {
        bool plain = token->characters == token->end - start;
        float *sum = cache->sums + slot * width;
        cache->found[slot] = in->maxn > 0 ? features(data, start, token->end, token->key, plain, in, sum, width)
                                          : word_row(data, start, token->end, token->key, in);
        cache->hashes[slot] = word_hash(data, start, token->end);
        cache->keys[slot] = token->key;
    }
    return slot;
}

/* Put the sum of the rows of data[at:stop] into `cache->whole`; returns how many there are. `last`: hash of the end. */
INLINE int64_t sum_document(u8_in data, int64_t at, int64_t stop, int64_t ngram, uint32_t last, u8_in points,
                            InputLayer *in, Cache *cache, int64_t width) {
    int64_t total = 0, words = 0, depth = 0;
    clear(cache->whole, width);
    clear(cache->some, width);
    cache->count = 0;
    while (at < stop) {
        if (TOKEN_SEPARATOR[data.at[at]]) {
            at++;
            continue;
        }
        Token token = token_at(data, at, stop, points);
        int64_t slot = cached(data, at, &token, in, cache, width), found = cache->found[slot];
        at = token.end;
        if (found == LABEL) continue;
        if (in->maxn > 0) {
            add(cache->some, cache->sums + slot * width, width);
            total += found;
        } else if (found >= 0) {
            note(found, in, cache);
            total++;
        }
        if (ngram > 1) {
            total += word_ngrams(cache->hashes[slot], depth, ngram, in, cache);
            depth = min_i64(depth + 1, ngram - 1);
        }
        if ((++words & 255) == 0) { /* sums of sums: long sums of floats lose digits */
            add(cache->whole, cache->some, width);
            clear(cache->some, width);
        }
    }
    if (ngram > 1) total += word_ngrams(last, depth, ngram, in, cache);
    add_noted(in, cache);
    add(cache->whole, cache->some, width);
    return total;
}

/* Score all documents; returns the first for which there are no numbers, or -1. */
KERNEL int64_t score_texts(
    u8_in data, i64_in offsets, int64_t ngram, int64_t target, f32_in end, u8_in points, u8_in eos,
    f32_rows_in rows, u8_rows_in codes, f32_in centroids, f32_in norms, u32_in bits, u32_in before, u8_in words,
    i64_in starts, i64_in ends, u64_in table, int64_t nwords, int64_t minn, int64_t maxn, int64_t bucket,
    int64_t width, int64_t last, f32_rows_in nodes, i32_in left, i32_in right, int64_t size, int64_t loss,
    i64_rows_in path, i32_out labels, f32_out scores, f32_out targets) {
    InputLayer in = {
        .rows = rows, .codes = codes, .centroids = centroids, .norms = norms, .bits = bits, .before = before,
        .words = words, .starts = starts, .ends = ends, .table = table, .nwords = nwords, .minn = minn, .maxn = maxn,
        .bucket = bucket, .width = width, .last = last};
    OutputLayer layer = {.nodes = nodes, .left = left, .right = right, .labels = size, .loss = loss, .path = path};
    bool ready = open_input(&in, offsets) & open_output(&layer);
    Cache *cache = open_cache(layer.width);
    int64_t fault = ready && cache ? -1 : NO_MEMORY;
    for (int64_t doc = 0; fault == -1 && doc < offsets.size - 1; doc++) {
        int64_t total = sum_document(data, offsets.at[doc], offsets.at[doc + 1], ngram,
                                     word_hash(eos, 0, eos.size), points, &in, cache, layer.width);
        if (total == 0 && end.at[layer.width] == 0) continue;
        mean_of(cache->whole, total, end, cache->mean, layer.width);
        likeliest(cache->mean, 1, &layer);
        if (layer.best[0] < 0 || !isfinite(layer.top[0])) fault = doc;
        if (fault == doc) break;
        labels.at[doc] = layer.best[0];
        scores.at[doc] = layer.top[0];
        if (target >= 0) targets.at[doc] = chance(cache->mean, target, &layer);
    }
    free(cache);
    close_output(&layer);
    close_input(&in);
    return fault;
}
