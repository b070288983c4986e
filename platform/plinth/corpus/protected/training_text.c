#include "plinth_text/compiled/kernel.h"

KERNEL void count_once(
    i64_in starts, i64_in where, bool_in drawn, int64_t first, i32_out last, i64_out counts, int64_t most
) {
    for (int64_t doc = 0; doc < starts.size - 1; doc++) {
        if (!drawn.at[doc]) continue;
        for (int64_t i = starts.at[doc]; i < starts.at[doc + 1]; i++) {
            int64_t at = where.at[i];
            if (at < 0 || last.at[at] == first + doc) continue;
            last.at[at] = first + doc;
            counts.at[at] = min_i64(counts.at[at] + 1, most);
        }
    }
}
