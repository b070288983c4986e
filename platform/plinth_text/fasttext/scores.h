/* Labels from a mean row: down fastText's Huffman tree, by softmax over all labels, or by a logistic function for each.

   The products of a mean with the rows of `LANES` nodes are taken at once, so that the processor's vectors are full.
   Sums run in one fixed order and the exponential is written out: the same bits on every machine. */
#pragma once
#include "plinth_text/fasttext/rows.h"

/* Output side of a model, as `predict.OutputLayer` has it, and buffers for one caller. */
typedef struct {
    f32_rows_in nodes;
    i32_in left, right;
    int64_t labels, loss;
    i64_rows_in path;
    int64_t width;      /* padded dimensions */
    float *dots;        /* products of all nodes with the mean, or their probabilities */
    int64_t prediction; /* number of this prediction */
    int64_t *ready;     /* for each group of nodes, the last prediction that computed it */
    int64_t *stack;     /* nodes still to visit, with their probabilities */
    float *heights;
    int32_t best[2]; /* the two likeliest labels (-1: none) and their probabilities */
    float top[2];
    double highest, total; /* of a softmax: the highest product, and the sum of the exponentials next to it */
} OutputLayer;

/* Allocate buffers; false if there is no memory. `close_output` frees them in either case. */
bool open_output(OutputLayer *layer) HIDDEN;
void close_output(OutputLayer *layer) HIDDEN;

/* The `most` (1 or 2) likeliest labels into `best`, their probabilities into `top`.

   In a tree, branches below the last place, or below fastText's own floor of 1e-5, are not entered. */
void likeliest(const float *mean, int64_t most, OutputLayer *layer) HIDDEN;

/* Probability of the layer's target, after `likeliest` of the same mean; 0 below fastText's floor of 1e-5. */
double chance(const float *mean, int64_t target, OutputLayer *layer) HIDDEN;
