#include "plinth_text/compiled/kernel.h"

/* Ranks in blocks: `pairs` holds [most, 2]; `numbers` is -1 for each pair of stream and epoch that may occur, those of
   a stream from `begins` on. Returns how many pairs occur. */
KERNEL int64_t place(
    i64_in ranks, i64_in blocks, i64_rows_in counts, i64_rows_in before, i64_in sizes, i64_in lowest, i64_in begins,
    i64_out numbers, i16_out streams, i32_out epochs, i64_out turns, i64_out owners, i64_rows_out pairs
) {
    int64_t found = 0;
    for (int64_t i = 0; i < ranks.size; i++) {
        const int64_t *own = counts.at + blocks.at[i] * counts.columns;
        int64_t stream = 0, left = ranks.at[i];
        for (; left >= own[stream]; stream++) left -= own[stream];
        int64_t ordinal = before.at[blocks.at[i] * before.columns + stream] + left;
        int64_t epoch = floor_div(ordinal, sizes.at[stream]);
        streams.at[i] = stream;
        epochs.at[i] = epoch;
        turns.at[i] = ordinal - epoch * sizes.at[stream];
        int64_t *number = numbers.at + begins.at[stream] + epoch - lowest.at[stream];
        if (*number < 0) {
            *number = found;
            pairs.at[2 * found] = stream;
            pairs.at[2 * found++ + 1] = epoch;
        }
        owners.at[i] = *number;
    }
    return found;
}
