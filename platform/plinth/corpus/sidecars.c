#include "plinth_text/words/word_hashes.h"

KERNEL void hash_ids(u64_rows_in halves, uint64_t seed, u64_out out) {
    uint64_t key = mix(seed + 0x9E3779B97F4A7C15u);
    for (int64_t i = 0; i < halves.rows; i++) out.at[i] = mix(mix(halves.at[2 * i] ^ key) + halves.at[2 * i + 1]);
}
