#include "plinth_text/words/hash_sets.h"

KERNEL int64_t slot_count(int64_t entries) { return slots_for(entries); }

KERNEL int64_t slot(u64_in keys, uint64_t value) {
    return slot_of(keys.at, keys.size, shift_for(keys.size), value);
}

/* For tests: whether each value came before, by a set of `room` slots. */
KERNEL void repeats(u64_in values, u64_out keys, int64_t room, bool_out out) {
    memset(keys.at, 0, room * sizeof *keys.at);
    for (int64_t i = 0; i < values.size; i++) out.at[i] = seen(keys.at, room, shift_for(room), values.at[i]);
}
