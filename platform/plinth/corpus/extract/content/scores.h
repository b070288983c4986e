#pragma once
/* Log-odds of blocks by decision trees, without a walk down a tree, whose turns no processor can predict. QuickScorer
   (Lucchese et al., SIGIR 2015): a set of leaves for each tree; every condition that is false takes away the leaves on
   its left side; the first leaf that stays is the one that a walk would reach. */
#include "plinth/corpus/extract/content/features.h"

/* Blocks side by side: their values of one feature, and their sets of leaves of one tree. */
enum { LANES = 8 };
typedef double Values __attribute__((vector_size(8 * LANES)));
typedef uint64_t Sets __attribute__((vector_size(8 * LANES)));

/* Trees as `Conditions` in `engine.py`. */
typedef struct {
    i32_in starts, tree, first;
    f32_in threshold, leaf;
    u64_in others;
} Trees;

/* Take away the leaves that the features of `LANES` blocks exclude; `count`: blocks that are there. Not inlined: in a
   large caller the loop would keep its addresses in memory. */
static __attribute__((noinline)) void exclude_leaves(const Trees *trees, const float *features, int64_t count, Sets *leaves) {
    const int32_t *starts = trees->starts.at, *tree = trees->tree.at;
    const float *threshold = trees->threshold.at;
    const uint64_t *others = trees->others.at;
    for (int64_t k = 0; k < FEATURES; k++) {
        Values values;
        double highest = -INFINITY;
        for (int64_t lane = 0; lane < LANES; lane++) {
            values[lane] = features[min_i64(lane, count - 1) * FEATURES + k];
            highest = values[lane] > highest ? values[lane] : highest;
        }
        for (int64_t i = starts[k]; i < starts[k + 1] && highest > threshold[i]; i++)
            leaves[tree[i]] &= others[i] | (Sets)(values <= (double)threshold[i]);
    }
}

/* Sum the trees' leaves for each block, in the order of the trees. `leaves`: memory for a set of each tree. */
static void score_blocks(const Trees *trees, const float *features, int64_t count, Sets *leaves, float *scores) {
    for (int64_t k = 0; k < count; k += LANES) {
        Values sums = {0};
        memset(leaves, 0xFF, (size_t)trees->first.size * sizeof *leaves);
        exclude_leaves(trees, features + k * FEATURES, count - k, leaves);
        for (int64_t tree = 0; tree < trees->first.size; tree++)
            for (int64_t lane = 0; lane < LANES; lane++)
                sums[lane] += trees->leaf.at[trees->first.at[tree] + __builtin_ctzll(leaves[tree][lane])];
        for (int64_t lane = 0; lane < min_i64(LANES, count - k); lane++) scores[k + lane] = (float)sums[lane];
    }
}
