/* BudouX's models of word boundaries, for scripts without spaces. */
#pragma once
#include "plinth_text/compiled/kernel.h"

enum { SIMPLIFIED, TRADITIONAL, JAPANESE, THAI_MODEL };
enum { MODEL_BITS = 13, MODEL_LIMIT = 0x10000, MODEL_PLACES = 6, MODEL_LONG_PLACES = 4 };

/* All models, as `script_words.BoundaryModels` has them: [models, ...]. */
typedef struct {
    const uint16_t *ids;
    const int32_t *singles;
    int64_t characters; /* of `singles` per model */
    const uint64_t *keys;
    const int32_t *weights;
    const int64_t *bases;
} BoundaryModels;

/* Whether a word begins at each of points[0:n] (n > 0), a text on its own, into out[0:n]; the first always does.
   `scores` holds at least n + 6. */
void begins(const BoundaryModels *models, int64_t model, const int32_t *points, int64_t n, int32_t *scores, bool *out)
    __attribute__((visibility("hidden")));
