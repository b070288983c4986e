#include "plinth_text/words/boundary_models.h"

enum { BEFORE = 2 }; /* how far before its first character the first place of a feature is */

INLINE uint64_t number(const uint16_t *ids, int32_t point) { return point < MODEL_LIMIT ? ids[point] : 0; }

/* The slot of a key, or the empty one where it would be. */
INLINE int64_t model_slot(const uint64_t *keys, uint64_t key) {
    int64_t slot = (key * 0x9E3779B97F4A7C15u) >> (64 - MODEL_BITS);
    while (keys[slot] != 0 && keys[slot] != key) slot = (slot + 1) & ((1 << MODEL_BITS) - 1);
    return slot;
}

INLINE void add_weights(const uint64_t *keys, const int32_t *weights, uint64_t key, int32_t *scores, int places) {
    int64_t slot = model_slot(keys, key);
    if (keys[slot] == 0) return;
    for (int k = 0; k < places; k++) scores[k] += weights[slot * MODEL_LONG_PLACES + k];
}

void begins(const BoundaryModels *models, int64_t model, const int32_t *points, int64_t n, int32_t *scores, bool *out) {
    const uint16_t *ids = models->ids + model * MODEL_LIMIT;
    const int32_t *singles = models->singles + model * models->characters * MODEL_PLACES;
    const uint64_t *keys = models->keys + (model << MODEL_BITS);
    const int32_t *weights = models->weights + (model << MODEL_BITS) * MODEL_LONG_PLACES;
    memset(scores, 0, (n + 6) * sizeof *scores);
    uint64_t first, second = number(ids, points[0]), third = n > 1 ? number(ids, points[1]) : 0;
    for (int64_t i = 0; i < n; i++) {
        first = second;
        second = third;
        third = i + 2 < n ? number(ids, points[i + 2]) : 0;
        if (first == 0) continue;
        for (int k = 0; k < MODEL_PLACES; k++) scores[i + k] += singles[first * MODEL_PLACES + k];
        if (second == 0) continue;
        uint64_t pair = first | second << 16;
        add_weights(keys, weights, pair, scores + i + BEFORE, 3);
        if (third != 0) add_weights(keys, weights, pair | third << 32, scores + i + BEFORE, 4);
    }
    for (int64_t i = 0; i < n; i++) out[i] = 2 * (int64_t)scores[i + BEFORE] + models->bases[model] > 0;
    out[0] = true;
}

KERNEL void word_begins(
    u16_in ids, i32_in singles, u64_in keys, i32_in weights, i64_in bases, int64_t model, i32_in points, int64_t n,
    i32_out scratch, bool_out out
) {
    int64_t characters = singles.size / (bases.size * MODEL_PLACES);
    BoundaryModels models = {ids.at, singles.at, characters, keys.at, weights.at, bases.at};
    begins(&models, model, points.at, n, scratch.at, out.at);
}
