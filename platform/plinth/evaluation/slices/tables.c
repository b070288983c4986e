#include "plinth_text/compiled/kernel.h"

/* Count bytes [before, last, byte], 256 each, of data[offsets[d] : offsets[d + 1]] for each document d. */
KERNEL void count_bytes(u32_out counts, u8_in data, i64_in offsets) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        uint32_t history = 0;
        for (int64_t i = offsets.at[doc]; i < offsets.at[doc + 1]; i++) {
            history = history << 8 | data.at[i];
            counts.at[history & 0xFFFFFF]++;
        }
    }
}

/* p(c | h) from p(c | shorter h); `mass` is the total and the kinds of h. */
INLINE double interpolated(double count, const double *mass, double p) {
    return mass[0] > 0 ? (count + mass[1] * p) / (mass[0] + mass[1]) : p;
}

KERNEL double total_bits(
    u32_in counts, f64_rows_in pairs, f64_rows_in pair_mass, f64_rows_in last_mass, f64_in order_1, u8_in text
) {
    uint32_t context = 0;
    double total = 0;
    for (int64_t i = 0; i < text.size; i++) {
        uint32_t byte = text.at[i], last = context & 0xFF, slot = context << 8 | byte;
        double p = interpolated(pairs.at[last * 256 + byte], last_mass.at + 2 * last, order_1.at[byte]);
        p = interpolated(counts.at[slot], pair_mass.at + 2 * context, p);
        total -= log2(p);
        context = slot & 0xFFFF;
    }
    return total;
}
