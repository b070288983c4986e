#include "plinth/corpus/dedup/crowds.h"
#include "plinth/corpus/dedup/near/similarity_cache.h"
#include "plinth_text/similarity/bags.h"
#include "plinth_text/words/ngrams.h"

enum { NEIGHBOURS = 8 }; /* as in linking.py */
enum { LOOK_UP, MARK, SETS, SIGNATURES, COSINES };

KERNEL void flatten(i64_out parent) {
    for (int64_t node = 0; node < parent.size; node++) /* a parent is never above its child: one pass finishes */
        parent.at[node] = parent.at[parent.at[node]];
}

/* Of each group the document with the smallest id, of equal ids the first. */
KERNEL void smallest(i64_in bounds, i64_in node, u64_in high, u64_in low, i64_out out) {
    for (int64_t group = 0; group < out.size; group++) {
        int64_t best = node.at[bounds.at[group]];
        for (int64_t i = bounds.at[group] + 1; i < bounds.at[group + 1]; i++) {
            int64_t other = node.at[i];
            uint64_t left = high.at[other], right = high.at[best];
            if (left < right || (left == right && low.at[other] < low.at[best])) best = other;
        }
        out.at[group] = best;
    }
}

static int64_t find_root(int64_t *parent, int64_t node) {
    while (parent[node] != node) {
        parent[node] = parent[parent[node]];
        node = parent[node];
    }
    return node;
}

/* Where a value (not 0) is in the table, or the empty slot where it belongs; the size is a power of two. */
static uint64_t table_slot(const uint64_t *table, int64_t size, uint64_t value) {
    uint64_t mask = size - 1, at = mix(value) & mask;
    while (table[at] != 0 && table[at] != value) at = (at + 1) & mask;
    return at;
}

KERNEL void move_values(u64_in table, u64_out larger) {
    for (int64_t i = 0; i < table.size; i++) {
        uint64_t value = table.at[i];
        if (value) larger.at[table_slot(larger.at, larger.size, value)] = value;
    }
}

/* What is compared: by document, values[start : start + size], seen as the elements of its kind. */
typedef struct {
    const int64_t *start, *size;
    const uint64_t *values;
    const uint32_t *halves;
    const int16_t *shorts;
    int64_t minima;
} Payload;

/* Jaccard similarity of two sets, the share of equal minima of two signatures, or the cosine of two vectors. */
static float similarity(int64_t what, int64_t a, int64_t b, const Payload *by) {
    if (what == COSINES) return bag_cosine(by->shorts + 4 * by->start[a], by->shorts + 4 * by->start[b], 4 * by->size[a]);
    if (what == SETS) {
        u64_in left = {by->values + by->start[a], by->size[a]}, right = {by->values + by->start[b], by->size[b]};
        int64_t common = shared_values(left, right), both = left.size + right.size - common;
        return both ? (float)((double)common / (double)both) : 0;
    }
    int64_t equal = 0;
    const uint32_t *left = by->halves + 2 * by->start[a], *right = by->halves + 2 * by->start[b];
    for (int64_t i = 0; i < by->minima; i++) equal += left[i] == right[i];
    return (float)((double)equal / (double)by->minima);
}

INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The places of documents in the order of the crowd that shares a key. */
KERNEL void crowd_places(u64_in low, uint64_t key, u64_out out) {
    for (int64_t i = 0; i < out.size; i++) out.at[i] = crowd_place(low.at[i], key);
}

/* Go over the pairs of groups from `group` on, as long as the tables have room for all pairs of one more: `refused` is
   at most half full, and what is found fits. Returns the group to go on with; `held` and `found` are counted on.

   `order` is scratch, as long as the largest group. */
KERNEL int64_t walk(
    int64_t what, int64_t all_pairs, int64_t group, i64_in bounds, u64_in key, i64_in node, u64_in low, u64_in ends,
    i64_in least, i64_out parent, bool_out needed, u64_out refused, int64_t held, u64_in pairs, u64_in values, i64_in start,
    i64_in size, u64_in data, u32_in halves, i16_in shorts, int64_t minima, double limit, i64_out order,
    u64_out found_pairs, u64_out found_values, int64_t found, int64_t *now_held, int64_t *now_found
) {
    Payload by = {start.at, size.at, data.at, halves.at, shorts.at, minima};
    for (; group < bounds.size - 1; group++) {
        int64_t first = bounds.at[group], count = bounds.at[group + 1] - first;
        bool crowd = count > all_pairs;
        int64_t most = crowd ? count * (NEIGHBOURS + 1) : count * (count - 1) / 2;
        if (refused.size < 2 * (held + most) || found + most > found_pairs.size) break;
        memcpy(order.at, node.at + first, count * sizeof *order.at);
        if (crowd) {
            Member *members = order_crowd(node.at + first, count, key.at[first], low.at);
            if (members == NULL) return NO_MEMORY;
            for (int64_t i = 0; i < count; i++) order.at[i] = members[i].document;
            free(members);
        }
        for (int64_t i = 0; i < count; i++) {
            int64_t a = order.at[i], reach = crowd ? min_i64(count, i + 1 + NEIGHBOURS) : count;
            int64_t star = crowd && a != least.at[group]; /* the pair with the smallest id comes first */
            for (int64_t j = i + 1 - star; j < reach; j++) {
                int64_t b = j > i ? order.at[j] : least.at[group];
                int64_t root_a = find_root(parent.at, a), root_b = find_root(parent.at, b);
                if (root_a == root_b) continue;
                uint64_t pair = (uint64_t)min_i64(a, b) << 32 | (uint64_t)max_i64(a, b);
                uint64_t place = table_slot(refused.at, refused.size, pair);
                if (refused.at[place] == pair) continue;
                if (what == MARK) {
                    needed.at[a] = needed.at[b] = true;
                    continue;
                }
                uint64_t own = pair_key(ends.at[a], ends.at[b]), check = pair_check(ends.at[a], ends.at[b]);
                float found_similarity;
                if (what == LOOK_UP) {
                    int64_t at = look_up_pair(pairs, values.at, own, check);
                    if (at < 0) continue;
                    found_similarity = as_float((uint32_t)values.at[at]);
                } else {
                    found_similarity = similarity(what, a, b, &by);
                    found_pairs.at[found] = own;
                    found_values.at[found++] = check << 32 | as_bits(found_similarity);
                }
                if (found_similarity >= limit) {
                    parent.at[max_i64(root_a, root_b)] = min_i64(root_a, root_b);
                } else {
                    refused.at[place] = pair;
                    held++;
                }
            }
        }
    }
    *now_held = held;
    *now_found = found;
    return group;
}
