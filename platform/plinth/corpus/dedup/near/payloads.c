#include "plinth_text/words/word_hashes.h"

/* 64 bits over values in their order. */
static uint64_t check_of(const uint64_t *values, int64_t size) {
    uint64_t state = size;
    for (int64_t i = 0; i < size; i++) state = mix(state ^ values[i]);
    return state;
}

KERNEL void checksums(u64_in values, i64_in start, i64_in size, u64_out out) {
    for (int64_t i = 0; i < start.size; i++) out.at[i] = check_of(values.at + start.at[i], size.at[i]);
}

KERNEL void rearrange(u64_in values, i64_in start, i64_in size, u64_out out) {
    int64_t at = 0;
    for (int64_t i = 0; i < start.size; i++) {
        memcpy(out.at + at, values.at + start.at[i], size.at[i] * sizeof *out.at);
        at += size.at[i];
    }
}

KERNEL bool is_corrupted(u64_in values, i64_in start, i64_in size, u64_in check) {
    bool bad = false;
    for (int64_t i = 0; i < start.size; i++)
        bad |= check_of(values.at + start.at[i], size.at[i]) != check.at[i];
    return bad;
}
