#include "plinth_text/words/chunks.h"

enum { FIRES, FIRST, ALONE, FIRES_BYTES, FIRST_BYTES, ALONE_BYTES, TALLY_COLUMNS }; /* as in policy.py */

/* Where a rule fires, in order, into `places`; returns how often. */
static int64_t rule_places(const bool *row, int64_t size, int64_t *places) {
    int64_t count = 0, at = 0;
    for (; at + 8 <= size; at += 8)
        for (uint64_t left = read8((const uint8_t *)row, at); left; left &= left - 1)
            places[count++] = at + (__builtin_ctzll(left) >> 3);
    for (; at < size; at++) {
        places[count] = at;
        count += row[at];
    }
    return count;
}

/* `places` holds one more than there are documents. */
KERNEL void count_rules(
    bool_rows_in fires, i64_in size, i64_out places, i64_out first, i32_out count, i64_rows_out counts
) {
    for (int64_t rule = 0; rule < fires.rows; rule++) {
        int64_t *row = counts.at + rule * TALLY_COLUMNS;
        int64_t fired = rule_places(fires.at + rule * fires.columns, fires.columns, places.at);
        for (int64_t i = 0; i < fired; i++) {
            int64_t at = places.at[i];
            row[FIRES]++;
            row[FIRES_BYTES] += size.at[at];
            if (first.at[at] < 0) {
                first.at[at] = rule;
                row[FIRST]++;
                row[FIRST_BYTES] += size.at[at];
            }
            count.at[at]++;
        }
    }
    for (int64_t at = 0; at < size.size; at++) {
        if (count.at[at] != 1) continue;
        counts.at[first.at[at] * TALLY_COLUMNS + ALONE]++;
        counts.at[first.at[at] * TALLY_COLUMNS + ALONE_BYTES] += size.at[at];
    }
}

KERNEL void list_rules(bool_rows_in fires, i64_out places, i32_out cursor, i32_out values) {
    for (int64_t rule = 0; rule < fires.rows; rule++) {
        int64_t fired = rule_places(fires.at + rule * fires.columns, fires.columns, places.at);
        for (int64_t i = 0; i < fired; i++) values.at[cursor.at[places.at[i]]++] = rule;
    }
}
