#include "plinth_text/words/chunks.h"

/* Number of code points before each position of a text; `order` sorts the positions. */
KERNEL void sorted_points(u8_in data, int64_t start, i64_in at, i64_in order, i64_out out) {
    int64_t passed = start, points = 0;
    for (int64_t i = 0; i < order.size; i++) {
        int64_t place = order.at[i], stop = start + at.at[place];
        for (; passed < stop; passed++) points += (data.at[passed] & 0xC0) != 0x80;
        out.at[place] = points;
    }
}

KERNEL void text_characters(u8_in data, i64_in offsets, i64_out out) {
    for (int64_t row = 0; row < offsets.size - 1; row++)
        out.at[row] = count_characters(data, offsets.at[row], offsets.at[row + 1]);
}
