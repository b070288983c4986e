/* Labels from a mean row, and the probability of a chosen label. */
#include "plinth_text/fasttext/scores.h"

enum { HIERARCHICAL = 1, SOFTMAX = 3 };
/* fastText reads the logistic function of its binary losses from a table, at the place below: to 0.008 of it. */
enum { STEPS = 512, LIMIT = 8 };
/* fastText adds this to a probability before the logarithm, so it is the least probability. */
static const double FLOOR = 1e-5;

static float LOGISTIC[STEPS + 1];

__attribute__((constructor)) static void fill_table_of_logistic(void) {
    for (int64_t i = 0; i <= STEPS; i++) LOGISTIC[i] = 1 / (1 + exp(-(i * 2.0 * LIMIT / STEPS - LIMIT)));
}

bool open_output(OutputLayer *layer) {
    int64_t groups = layer->nodes.rows, depth = 4 * layer->labels + 8;
    layer->width = layer->nodes.columns / LANES;
    layer->dots = calloc(groups * LANES + 1, sizeof *layer->dots);
    layer->ready = calloc(groups + 1, sizeof *layer->ready);
    layer->stack = calloc(depth, sizeof *layer->stack);
    layer->heights = calloc(depth, sizeof *layer->heights);
    return layer->dots && layer->ready && layer->stack && layer->heights;
}

void close_output(OutputLayer *layer) {
    free(layer->dots);
    free(layer->ready);
    free(layer->stack);
    free(layer->heights);
}

/* Products of the mean with the rows of one group, [width, LANES], into [LANES]. */
INLINE void products(const OutputLayer *layer, int64_t group, const float *mean) {
    const float *rows = layer->nodes.at + group * layer->nodes.columns;
    Lanes total = {0};
    for (int64_t i = 0; i < layer->width; i += 4) { /* not one by one: an addition waits for the one before it */
        const Lanes *row = (const Lanes *)(rows + i * LANES);
        total += (mean[i] * row[0] + mean[i + 1] * row[1]) + (mean[i + 2] * row[2] + mean[i + 3] * row[3]);
    }
    *(Lanes *)(layer->dots + group * LANES) = total;
}

static void all_products(const OutputLayer *layer, const float *mean) {
    for (int64_t group = 0; group < layer->nodes.rows; group++) products(layer, group, mean);
}

/* 1 / (1 + e^-x): e^x is 2^k e^r with |r| <= ln(2) / 2; its Taylor series is cut off below 1e-8. Beyond 40 a
   probability is 0 or 1 within far less than FLOOR. */
INLINE float sigmoid_of(float x) {
    const float far = 40.0f, log2_e = 1.4426950408889634, ln_2 = 0.6931471805599453;
    const float s7 = 1.0 / 7, s6 = 1.0 / 6, s5 = 1.0 / 5, s4 = 1.0 / 4, s3 = 1.0 / 3, s2 = 1.0 / 2;
    float value = -x;
    value = value < far ? value : far;
    value = value > -far ? value : -far;
    float power = floorf(value * log2_e + 0.5f), r = value - power * ln_2, scale;
    float series = 1 + r * (1 + r * s2 * (1 + r * s3 * (1 + r * s4 * (1 + r * s5 * (1 + r * s6 * (1 + r * s7))))));
    int32_t bits = ((int32_t)power + 127) << 23;
    memcpy(&scale, &bits, sizeof scale);
    return 1 / (1 + series * scale);
}

INLINE void sigmoids_of(float *dots) {
    for (int64_t lane = 0; lane < LANES; lane++) dots[lane] = sigmoid_of(dots[lane]);
}

/* For tests. */
KERNEL void sigmoids(f32_out dots) {
    for (int64_t at = 0; at + LANES <= dots.size; at += LANES) sigmoids_of(dots.at + at);
}

INLINE void rank(int32_t label, float score, int64_t most, OutputLayer *layer) {
    int32_t *best = layer->best;
    float *top = layer->top;
    if (score > top[0]) {
        if (most > 1) {
            best[1] = best[0];
            top[1] = top[0];
        }
        best[0] = label;
        top[0] = score;
    } else if (most > 1 && score > top[1]) {
        best[1] = label;
        top[1] = score;
    }
}

/* The probability of a node of the tree that its right side is taken. */
INLINE double at_node(const float *mean, int64_t place, OutputLayer *layer) {
    int64_t group = place / LANES;
    if (layer->ready[group] != layer->prediction) {
        products(layer, group, mean);
        sigmoids_of(layer->dots + group * LANES);
        layer->ready[group] = layer->prediction;
    }
    return layer->dots[place];
}

static void down_the_tree(const float *mean, int64_t most, OutputLayer *layer) {
    const int32_t *left = layer->left.at, *right = layer->right.at;
    int64_t root = layer->left.size - 1, depth = 1;
    layer->prediction++;
    layer->stack[0] = root;
    layer->heights[0] = 1;
    while (depth) {
        int64_t node = layer->stack[--depth];
        float score = layer->heights[depth];
        while (score >= FLOOR && score >= layer->top[most - 1]) {
            if (left[node] < 0) {
                rank(node, score, most, layer);
                break;
            }
            double chosen = at_node(mean, root - node, layer);
            /* fastText adds log(x + 1e-5): the product of the same numbers */
            float no = score * (1.0 - chosen + FLOOR), yes = score * (chosen + FLOOR);
            /* the more likely side is visited first: it raises the bound for the other */
            bool right_first = yes >= no;
            layer->stack[depth] = right_first ? left[node] : right[node];
            layer->heights[depth++] = right_first ? no : yes;
            node = right_first ? right[node] : left[node];
            score = right_first ? yes : no;
        }
    }
    for (int64_t place = 0; place < 2; place++)
        if (layer->top[place] > 1) layer->top[place] = 1;
}

static void by_softmax(const float *mean, int64_t most, OutputLayer *layer) {
    float *top = layer->top, highest = -INFINITY;
    double total = 0;
    top[0] = top[1] = -INFINITY;
    all_products(layer, mean);
    for (int64_t label = 0; label < layer->labels; label++) {
        if (layer->dots[label] > highest) highest = layer->dots[label];
        rank(label, layer->dots[label], most, layer);
    }
    for (int64_t label = 0; label < layer->labels; label++) total += exp((double)(layer->dots[label] - highest));
    layer->highest = highest;
    layer->total = total;
    for (int64_t place = 0; place < 2; place++) {
        double share = exp((double)(top[place] - highest)) / total + FLOOR;
        top[place] = layer->best[place] < 0 ? 0.0 : share < 1 ? share : 1.0;
    }
}

/* Also for what is not a number, 0. */
INLINE float logistic(float x) {
    if (!(x >= -LIMIT)) return 0;
    if (x > LIMIT) return 1;
    return LOGISTIC[(int64_t)((x + (float)LIMIT) * (float)STEPS / (float)LIMIT / 2.0f)];
}

/* One logistic function for each label. Of equal ones fastText keeps the last; its table makes many equal. */
static void by_logistic(const float *mean, int64_t most, OutputLayer *layer) {
    layer->top[0] = layer->top[1] = -1;
    all_products(layer, mean);
    for (int64_t label = layer->labels - 1; label >= 0; label--) {
        layer->dots[label] = logistic(layer->dots[label]);
        rank(label, layer->dots[label], most, layer);
    }
    for (int64_t place = 0; place < 2; place++) {
        double share = layer->top[place] + FLOOR;
        layer->top[place] = layer->best[place] < 0 ? 0.0 : share < 1 ? share : 1.0;
    }
}

void likeliest(const float *mean, int64_t most, OutputLayer *layer) {
    layer->best[0] = layer->best[1] = -1;
    layer->top[0] = layer->top[1] = 0;
    if (layer->loss == HIERARCHICAL)
        down_the_tree(mean, most, layer);
    else if (layer->loss == SOFTMAX)
        by_softmax(mean, most, layer);
    else
        by_logistic(mean, most, layer);
}

double chance(const float *mean, int64_t target, OutputLayer *layer) {
    if (layer->loss != HIERARCHICAL) {
        double share = layer->dots[target];
        if (layer->loss == SOFTMAX) share = exp(share - layer->highest) / layer->total;
        share += FLOOR;
        return share < 1 ? share : 1;
    }
    float score = 1;
    for (int64_t step = 0; step < layer->path.rows; step++) {
        const int64_t *node = layer->path.at + 2 * step;
        double chosen = at_node(mean, node[0], layer);
        score = score * ((node[1] ? chosen : 1.0 - chosen) + FLOOR);
    }
    return !(score >= FLOOR) ? 0 : score < 1 ? score : 1;
}
