#include "plinth_text/words/chunks.h"

KERNEL uint64_t hash_run(u8_in data, int64_t start, int64_t end) { return hash_run_of(data, start, end); }

KERNEL int64_t characters(u8_in data, int64_t start, int64_t end) { return count_characters(data, start, end); }

KERNEL bool is_ascii(u8_in data, int64_t start, int64_t end) { return all_ascii(data, start, end); }

/* For tests: out[at][size] is read_bytes(data, at, size), and out[0][0] the first eight bytes. */
KERNEL void reads(u8_in data, u64_rows_out out) {
    for (int64_t at = 0; at < data.size; at++)
        for (int64_t size = 1; size <= min_i64(8, data.size - at); size++)
            out.at[at * out.columns + size] = read_bytes(data, at, size);
    if (data.size >= 8) out.at[0] = low_bytes(read8(data.at, 0), 8);
}
