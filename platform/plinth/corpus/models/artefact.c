#include "plinth_text/compiled/kernel.h"

KERNEL void add_margins(
    f64_rows_in features, i32_in feature, i32_in left, i32_in right, f64_in threshold, f64_in value, i64_in starts,
    f64_out out
) {
    for (int64_t doc = 0; doc < out.size; doc++)
        for (int64_t tree = 0; tree < starts.size - 1; tree++) {
            int64_t node = starts.at[tree];
            while (left.at[node] >= 0) {
                bool small = features.at[doc * features.columns + feature.at[node]] <= threshold.at[node];
                node = small ? left.at[node] : right.at[node];
            }
            out.at[doc] += value.at[node];
        }
}
