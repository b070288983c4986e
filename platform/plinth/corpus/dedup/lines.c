#include "plinth_text/words/word_hashes.h"

KERNEL void salt_hashes(u64_in high, u64_in salt, uint64_t kind, u64_out out) {
    for (int64_t i = 0; i < high.size; i++) out.at[i] = mix((high.at[i] ^ salt.at[i]) + (kind + 1));
}
