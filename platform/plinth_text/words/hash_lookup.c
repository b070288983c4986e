#include "plinth_text/words/hash_lookup.h"

KERNEL bool is_sorted(u64_in table) {
    bool ascending = true;
    for (int64_t i = 1; i < table.size; i++) ascending &= table.at[i - 1] < table.at[i];
    return ascending;
}

KERNEL void mark_filter(u64_in table, u64_out bits, int64_t shift) {
    for (int64_t i = 0; i < table.size; i++) {
        uint64_t bit = table.at[i] >> shift;
        bits.at[bit >> 6] |= (uint64_t)1 << (bit & 63);
    }
}

KERNEL void find_hashes(u64_in table, u64_in bits, int64_t shift, u64_in hashes, i64_out out) {
    for (int64_t i = 0; i < hashes.size; i++) {
        uint64_t bit = hashes.at[i] >> shift;
        out.at[i] = bits.at[bit >> 6] >> (bit & 63) & 1 ? position_of(table, hashes.at[i]) : -1;
    }
}
