/* Positions of the words and line ends of a text, for the kernels that count by word or line. */
#include "text/words/split.h"

KERNEL int64_t split_i32(u8_in data, int64_t start, int64_t end, u8_in table, i32_out edges) {
    return words_i32(data, start, end, table, edges);
}

KERNEL int64_t split_i64(u8_in data, int64_t start, int64_t end, u8_in table, i64_out edges) {
    return words_i64(data, start, end, table, edges);
}

INLINE bool ascii_space(uint8_t byte) {
    return (byte == 32) | ((byte >= 9) & (byte <= 13)) | ((byte >= 28) & (byte <= 31));
}

KERNEL int64_t count_words(u8_in data, int64_t start, int64_t end, bool plain, u8_in table) {
    int64_t count = 0;
    if (plain) {
        const uint8_t *text = data.at + start;
        int64_t size = end - start;
        for (int64_t i = 1; i < size; i++) count += ascii_space(text[i - 1]) & !ascii_space(text[i]);
        return count + (size > 0 && !ascii_space(text[0]));
    }
    int64_t inside = 0;
    for (int64_t at = start; at < end;) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        int64_t word = 1 - (table.at[point] & SPACE);
        count += word & (inside ^ 1);
        inside = word;
        at += size;
    }
    return count;
}
