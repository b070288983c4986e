/* The words of a text in any script. */
#pragma once
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/unicode/scripts.h"
#include "plinth_text/words/boundary_models.h"

/* Tables, and scratch memory for the longest text of a column, as `script_words.ScriptSplitter` has them. */
typedef struct {
    const uint8_t *kinds;
    i8_in variants;
    BoundaryModels models;
    int32_t *points, *places;
    uint8_t *here;
    int32_t *scores;
    bool *first, *thai;
} ScriptSplitter;

/* Parameters of a kernel that takes a splitter, and the splitter that they make. */
#define SPLITTER                                                                                            \
    ((ScriptSplitter){                                                                                      \
        kinds.at, variants, {ids.at, singles.at, singles.size / (bases.size * MODEL_PLACES), keys.at,       \
        weights.at, bases.at}, points.at, places.at, here.at, scores.at, first.at, thai.at})

/* The words of data[start:end]: word i is data[edges[2 * i] : edges[2 * i + 1]]; returns how many. */
int64_t script_split(u8_in data, int64_t start, int64_t end, const ScriptSplitter *by, int32_t *edges)
    __attribute__((visibility("hidden")));
