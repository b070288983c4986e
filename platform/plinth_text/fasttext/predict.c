/* Labels of whole documents, and of blocks of lines within them. */
#include "plinth_text/fasttext/scores.h"

/* Words whose sums are kept, a power of two: half a megabyte for 16 dimensions, which stays in the processor's cache. */
enum { CACHE = 1 << 13 };
enum { LETTERS, CHARACTERS, DAMAGED, COUNTS }; /* columns of the counts by document */

/* Sums of the rows of recent words by key (0: free), and the sums of a block and of a text. */
typedef struct {
    uint64_t keys[CACHE];
    int64_t sizes[CACHE];
    float *block, *whole, *mean, sums[];
} Cache;

static Cache *open_cache(int64_t width) {
    Cache *cache = calloc(1, sizeof *cache + (CACHE + 3) * width * sizeof *cache->sums);
    if (!cache) return NULL;
    cache->block = cache->sums + CACHE * width;
    cache->whole = cache->block + width;
    cache->mean = cache->whole + width;
    return cache;
}

/* Labeled blocks, and their number. */
typedef struct {
    int64_t *blocks, count;
    float *sure;
} Found;

/* Move a position over `count` code points. */
static int64_t passed(u8_in data, int64_t at, int64_t end, int64_t count) {
    for (int64_t i = 0; at < end && i < count; i++)
        do at++;
        while (at < end && (data.at[at] & 0xC0) == 0x80);
    return at;
}

/* Bytes of the middle `most` code points (0: all); returns the number of code points before them. */
static int64_t middle(u8_in data, int64_t most, int64_t *start, int64_t *end) {
    if (most == 0 || *end - *start <= most) return 0;
    int64_t skipped = max_i64(0, (count_characters(data, *start, *end) - most) / 2);
    *start = passed(data, *start, *end, skipped);
    *end = passed(data, *start, *end, most);
    return skipped;
}

/* The slot of the cache that has a token's sum. */
INLINE int64_t cached(u8_in data, int64_t start, const Token *token, InputLayer *in, Cache *cache, int64_t width) {
    int64_t slot = (token->key >> 40) & (CACHE - 1);
    if (__builtin_expect(cache->keys[slot] != token->key, 0)) {
        bool plain = token->characters == token->end - start;
        float *sum = cache->sums + slot * width;
        cache->sizes[slot] = max_i64(0, features(data, start, token->end, token->key, plain, in, sum, width));
        cache->keys[slot] = token->key;
    }
    return slot;
}

/* Label one document, [start, stop); its blocks go to `found`. */
INLINE void predict_document(u8_in data, int64_t start, int64_t stop, int64_t doc, int64_t min_letters,
                             int64_t max_characters, InputLayer *in, OutputLayer *layer, Cache *cache, f32_in end,
                             u8_in points, int32_t *labels, float *scores, int64_t *counts, Found *found) {
    int64_t at = start, width = layer->width, point = middle(data, max_characters, &at, &stop);
    int64_t first_point = point, begin_point = point, total = 0, size = 0, letters = 0, all_letters = 0, damaged = 0;
    bool line_filled = false;
    clear(cache->whole, width);
    clear(cache->block, width);
    while (at <= stop) {
        bool over = at == stop;
        uint8_t byte = over ? '\n' : data.at[at];
        if (!TOKEN_SEPARATOR[byte]) {
            Token token = token_at(data, at, stop, points);
            int64_t slot = cached(data, at, &token, in, cache, width);
            line_filled = true;
            at = token.end;
            letters += token.letters;
            damaged += token.damaged;
            point += token.characters;
            add(cache->block, cache->sums + slot * width, width);
            size += cache->sizes[slot];
            continue;
        }
        at++;
        point += !over;
        if (byte != '\n') continue;
        if (over || !line_filled || letters >= min_letters) {
            if (letters >= min_letters) {
                mean_of(cache->block, size, end, cache->mean, width);
                likeliest(cache->mean, 1, layer);
                memcpy(found->blocks + 4 * found->count, (int64_t[]){doc, layer->best[0], first_point, point}, 32);
                found->sure[found->count++] = layer->top[0];
            }
            all_letters += letters;
            if (size) {
                add(cache->whole, cache->block, width);
                clear(cache->block, width);
            }
            total += size;
            size = letters = 0;
            first_point = point;
        }
        line_filled = false;
    }
    counts[LETTERS] = all_letters;
    counts[CHARACTERS] = point - begin_point;
    counts[DAMAGED] = damaged;
    if (!all_letters) return;
    mean_of(cache->whole, total, end, cache->mean, width);
    likeliest(cache->mean, 2, layer);
    memcpy(labels, layer->best, sizeof layer->best);
    memcpy(scores, layer->top, sizeof layer->top);
}

KERNEL int64_t predict_texts(
    u8_in data, i64_in offsets, int64_t min_letters, int64_t max_characters, f32_in end, u8_in points,
    f32_rows_in rows, u8_rows_in codes, f32_in centroids, f32_in norms, u32_in bits, u32_in before, u8_in words,
    i64_in starts, i64_in ends, u64_in table, int64_t nwords, int64_t minn, int64_t maxn, int64_t bucket,
    int64_t width, int64_t last, f32_rows_in nodes, i32_in left, i32_in right, int64_t size, int64_t loss,
    i64_rows_in path, i32_rows_out labels, f32_rows_out scores, i64_rows_out counts, i64_rows_out blocks,
    f32_out sure) {
    InputLayer in = {
        .rows = rows, .codes = codes, .centroids = centroids, .norms = norms, .bits = bits, .before = before,
        .words = words, .starts = starts, .ends = ends, .table = table, .nwords = nwords, .minn = minn, .maxn = maxn,
        .bucket = bucket, .width = width, .last = last};
    OutputLayer layer = {.nodes = nodes, .left = left, .right = right, .labels = size, .loss = loss, .path = path};
    Found found = {blocks.at, 0, sure.at};
    bool ready = open_input(&in, offsets) & open_output(&layer);
    Cache *cache = open_cache(layer.width);
    for (int64_t doc = 0; ready && cache && doc < offsets.size - 1; doc++)
        predict_document(data, offsets.at[doc], offsets.at[doc + 1], doc, min_letters, max_characters, &in, &layer,
                         cache, end, points, labels.at + 2 * doc, scores.at + 2 * doc, counts.at + COUNTS * doc, &found);
    ready = ready && cache;
    free(cache);
    close_output(&layer);
    close_input(&in);
    return ready ? found.count : NO_MEMORY;
}
