#include "plinth_text/compiled/kernel.h"

/* `row` has b.size + 1 places: the distances from the first tokens of `a` to the first 0, 1, … of `b`. */
KERNEL int64_t distance(i64_in a, i64_in b, i64_out row) {
    for (int64_t j = 0; j <= b.size; j++) row.at[j] = j;
    for (int64_t i = 0; i < a.size; i++) {
        int64_t before = row.at[0], left = i + 1; /* above and to the left; to the left */
        row.at[0] = left;
        for (int64_t j = 0; j < b.size; j++) {
            int64_t above = row.at[j + 1], kept = before + (a.at[i] != b.at[j]);
            left = min_i64(min_i64(kept, above + 1), left + 1);
            row.at[j + 1] = left;
            before = above;
        }
    }
    return row.at[b.size];
}
