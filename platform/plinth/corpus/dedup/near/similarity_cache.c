#include "plinth/corpus/dedup/near/similarity_cache.h"

KERNEL void pair_ends(u64_in high, u64_in low, u64_out out) {
    for (int64_t i = 0; i < high.size; i++) out.at[i] = mix(high.at[i] ^ mix(low.at[i]));
}
