#include "plinth_text/english/sentences.h"

KERNEL int64_t sentences(
    u8_in data, int64_t start, int64_t end, u16_in flags, u64_in tables, u64_in pairs, u64_in rows, u8_in whole,
    int64_t most, i32_out points, i32_out places, u64_out matched, i64_out starts, u8_out taken, i32_out copy,
    i32_out edges
) {
    EnglishSplitter by = ENGLISH_SPLITTER;
    return count_sentences(data, start, end, &by, edges.at);
}
