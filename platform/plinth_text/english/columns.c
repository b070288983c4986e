#include "plinth_text/english/words.h"

KERNEL void split_all(
    u8_in data, i64_in offsets, u16_in flags, u64_in tables, u64_in pairs, u64_in rows, u8_in whole, int64_t most,
    i32_out points, i32_out places, u64_out matched, i64_out starts, u8_out taken, i32_out copy, i64_out first,
    i32_out edges
) {
    EnglishSplitter by = ENGLISH_SPLITTER;
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        u8_in text = {data.at + offsets.at[doc], data.size - offsets.at[doc]};
        int64_t size = offsets.at[doc + 1] - offsets.at[doc], filled = first.at[doc];
        first.at[doc + 1] = filled + english_split(text, 0, size, &by, edges.at + 2 * filled);
    }
}
