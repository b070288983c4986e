#include "plinth_text/compiled/kernel.h"

/* The columns of a mapped window by their addresses: offsets, first tokens, lengths, contexts. */
typedef struct {
    const int32_t *offsets;
    const int64_t *starts;
    const int32_t *tokens;
    const int8_t *context;
} Window;

INLINE Window window_at(i64_rows_in addresses, int64_t number) {
    const int64_t *own = addresses.at + 4 * number;
    return (Window){(const int32_t *)own[0], (const int64_t *)own[1], (const int32_t *)own[2], (const int8_t *)own[3]};
}

/* Fill in `offsets`, which start with 0; returns the number of pieces of all rows. */
KERNEL int64_t count_pieces(i64_rows_in addresses, i64_in windows, i64_in rows, i32_out offsets) {
    for (int64_t i = 0; i < rows.size; i++) {
        const int32_t *bounds = window_at(addresses, windows.at[i]).offsets + rows.at[i];
        offsets.at[i + 1] = offsets.at[i] + bounds[1] - bounds[0];
    }
    return offsets.at[rows.size];
}

KERNEL void copy_pieces(
    i64_rows_in addresses, i64_in windows, i64_in rows, i32_in offsets, i64_out starts, i32_out tokens, i8_out context
) {
    for (int64_t i = 0; i < rows.size; i++) {
        Window own = window_at(addresses, windows.at[i]);
        int64_t first = own.offsets[rows.at[i]], at = offsets.at[i], number = offsets.at[i + 1] - at;
        memcpy(starts.at + at, own.starts + first, number * sizeof *starts.at);
        memcpy(tokens.at + at, own.tokens + first, number * sizeof *tokens.at);
        memcpy(context.at + at, own.context + first, number);
    }
}
