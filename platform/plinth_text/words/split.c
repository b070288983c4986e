/* Positions of the words and line ends of a text, for the kernels that count by word or line. */
#include "plinth_text/words/split.h"

KERNEL int64_t split_i32(u8_in data, int64_t start, int64_t end, u8_in table, i32_out edges) {
    return words_i32(data, start, end, table, edges);
}

KERNEL int64_t split_i64(u8_in data, int64_t start, int64_t end, u8_in table, i64_out edges) {
    return words_i64(data, start, end, table, edges);
}

KERNEL int64_t count_words(u8_in data, int64_t start, int64_t end, bool plain, u8_in table) {
    return words_of(data, start, end, plain, table);
}

KERNEL int64_t line_ends(u8_in data, int64_t start, int64_t end, i64_out out) {
    return line_ends_i64(data, start, end, out);
}

KERNEL int64_t breaks(u8_in data, int64_t start, int64_t end, u8_in table, i64_out out) {
    return line_breaks(data, start, end, table, out);
}
