#include "plinth_text/compiled/kernel.h"

/* The number of each token's document in its row. */
KERNEL void number_documents(i32_in starts, i32_rows_out segments) {
    int64_t width = segments.columns, at = 0;
    for (int64_t row = 0; row < segments.rows; row++) {
        int32_t *numbers = segments.at + row * width, number = -1;
        for (int64_t place = 0; place < width;) {
            number++;
            at++;
            int64_t end = at < starts.size ? min_i64(width, starts.at[at] - row * width) : width;
            for (int64_t k = place; k < end; k++) numbers[k] = number;
            place = end;
        }
    }
}
