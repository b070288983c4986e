#include "plinth/corpus/dedup/crowds.h"

enum { ALL_PAIRS = 64, NEIGHBOURS = 16 }; /* as in semantic.py */

/* Random signs [dimensions, count]: a function of the place alone. */
KERNEL void random_planes(int64_t first, uint64_t row_factor, uint64_t column_factor, f32_rows_out out) {
    for (int64_t i = 0; i < out.rows; i++)
        for (int64_t j = 0; j < out.columns; j++) {
            uint64_t place = (uint64_t)i * row_factor ^ (uint64_t)(first + j + 1) * column_factor;
            out.at[i * out.columns + j] = mix(place) >> 63 ? 1.0f : -1.0f;
        }
}

KERNEL void pack_sides(bool_rows_in sides, int64_t bits, u64_rows_out out) {
    for (int64_t row = 0; row < out.rows; row++)
        for (int64_t table = 0; table < out.columns; table++) {
            uint64_t key = table + 1;
            for (int64_t bit = table * bits; bit < (table + 1) * bits; bit++)
                key = key << 1 | sides.at[row * sides.columns + bit];
            out.at[row * out.columns + table] = mix(key);
        }
}

/* Pairs of a crowd: each with the first, then with the next ones in an order of its own. */
static int64_t pair_crowd(const uint64_t *members, int64_t size, uint64_t key, uint64_t *left, uint64_t *right) {
    int64_t count = 0;
    Member *order = order_crowd((const int64_t *)members, size, key, NULL);
    if (order == NULL) return NO_MEMORY;
    for (int64_t i = 1; i < size; i++) {
        left[count] = members[0];
        right[count++] = members[i];
    }
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = i + 1; j < min_i64(size, i + 1 + NEIGHBOURS); j++) {
            uint64_t one = order[i].document, other = order[j].document;
            left[count] = one < other ? one : other;
            right[count++] = one < other ? other : one;
        }
    free(order);
    return count;
}

KERNEL int64_t nominate_pairs(u64_in key, u64_in at, i64_in starts, u64_out left, u64_out right) {
    int64_t count = 0;
    for (int64_t group = 0; group < starts.size - 1; group++) {
        const uint64_t *members = at.at + starts.at[group];
        int64_t size = starts.at[group + 1] - starts.at[group];
        if (size > ALL_PAIRS) {
            int64_t more = pair_crowd(members, size, key.at[starts.at[group]], left.at + count, right.at + count);
            if (more == NO_MEMORY) return NO_MEMORY;
            count += more;
            continue;
        }
        for (int64_t i = 0; i < size; i++)
            for (int64_t j = i + 1; j < size; j++) {
                left.at[count] = members[i] < members[j] ? members[i] : members[j];
                right.at[count++] = members[i] < members[j] ? members[j] : members[i];
            }
    }
    return count;
}

KERNEL void hash_pairs(u64_in left, u64_in right, u64_out out) {
    for (int64_t i = 0; i < left.size; i++) out.at[i] = mix(mix(left.at[i]) + right.at[i]);
}
