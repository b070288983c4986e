#include "kernels/kernel.h"

KERNEL bool is_sorted(u64_in table) {
    bool ascending = true;
    for (int64_t i = 1; i < table.size; i++) ascending &= table.at[i - 1] < table.at[i];
    return ascending;
}

KERNEL void mark(u64_in table, u64_out bits, int64_t shift) {
    for (int64_t i = 0; i < table.size; i++) {
        uint64_t bit = table.at[i] >> shift;
        bits.at[bit >> 6] |= (uint64_t)1 << (bit & 63);
    }
}

static int64_t position(u64_in table, uint64_t value) {
    int64_t low = 0, high = table.size;
    while (low < high) {
        int64_t middle = (low + high) >> 1;
        if (table.at[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low < table.size && table.at[low] == value ? low : -1;
}

KERNEL void find(u64_in table, u64_in bits, int64_t shift, u64_in hashes, i64_out out) {
    for (int64_t i = 0; i < hashes.size; i++) {
        uint64_t bit = hashes.at[i] >> shift;
        out.at[i] = bits.at[bit >> 6] >> (bit & 63) & 1 ? position(table, hashes.at[i]) : -1;
    }
}
