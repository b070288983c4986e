#include "plinth_text/compiled/kernel.h"

enum { OTHERS = 3, SUBSETS = 7 }; /* as in sample.py */

/* Merges the sets of a row and counts the values by the sets that have them. */
KERNEL void overlaps(u64_in values, i64_rows_in start, i64_rows_in size, f32_rows_out out) {
    for (int64_t row = 0; row < start.rows; row++) {
        const uint64_t *at[1 + OTHERS], *end[1 + OTHERS];
        int64_t counts[2 << OTHERS] = {0};
        for (int i = 0; i <= OTHERS; i++) {
            at[i] = values.at + start.at[row * start.columns + i];
            end[i] = at[i] + size.at[row * size.columns + i];
        }
        for (;;) {
            uint64_t least = UINT64_MAX;
            int members = 0;
            for (int i = 0; i <= OTHERS; i++) {
                if (at[i] == end[i] || *at[i] > least) continue;
                members = *at[i] < least ? 1 << i : members | 1 << i;
                least = *at[i];
            }
            if (!members) break;
            for (int i = 0; i <= OTHERS; i++) at[i] += members >> i & 1;
            counts[members]++;
        }
        for (int subset = 1; subset <= SUBSETS; subset++) {
            int wanted = subset << 1 | 1;
            int64_t common = 0, both = 0;
            for (int members = 1; members < 2 << OTHERS; members++) {
                if ((members & wanted) == wanted) common += counts[members];
                if (members & wanted) both += counts[members];
            }
            out.at[row * out.columns + subset - 1] = both ? (float)((double)common / (double)both) : 0;
        }
    }
}
