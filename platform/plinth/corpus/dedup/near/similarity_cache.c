#include "plinth/corpus/dedup/near/similarity_cache.h"

KERNEL void pair_ends(u64_in high, u64_in low, u64_out out) {
    for (int64_t i = 0; i < high.size; i++) out.at[i] = mix(high.at[i] ^ mix(low.at[i]));
}

KERNEL void look_up_pairs(u64_in first, u64_in second, u64_in pairs, u64_in values, u64_out key, u64_out fact) {
    for (int64_t i = 0; i < first.size; i++) {
        uint64_t check = pair_check(first.at[i], second.at[i]);
        key.at[i] = pair_key(first.at[i], second.at[i]);
        int64_t at = look_up_pair(pairs, values.at, key.at[i], check);
        fact.at[i] = check << 32 | (at < 0 ? 0xFFFFFFFFu : values.at[at] & 0xFFFFFFFFu); /* all ones: not a number */
    }
}
