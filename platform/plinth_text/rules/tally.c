#include "plinth_text/unicode/classes.h"
#include "plinth_text/unicode/codepoints.h"

enum { CHARACTERS, BY_CLASS, NON_ASCII = 9, LINES, IN_LINES, LONGEST, COLUMNS };
static const uint16_t CLASS_FLAGS[] = {
    C_LETTER, C_UPPER, C_DIGIT, C_ALNUM, C_SPACE, C_PUNCTUATION, C_SYMBOL, C_CONTROL,
};

INLINE void end_line(int64_t *row, int64_t size) {
    row[LINES]++;
    row[IN_LINES] += size;
    row[LONGEST] = max_i64(row[LONGEST], size);
}

INLINE void add_classes(int64_t *row, uint16_t flags, int64_t times) {
    for (int k = 0; k < 8; k++) row[BY_CLASS + k] += (flags & CLASS_FLAGS[k]) ? times : 0;
}

KERNEL void tally_all(u8_in data, i64_in offsets, u16_in table, i64_rows_out out) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t *row = out.at + doc * COLUMNS, end = offsets.at[doc + 1], size = 0, previous = -1;
        /* Of ASCII only how often each byte occurs: classes are added up once. Two tables, so that a byte that repeats
           does not wait for its own count. */
        int64_t ascii[2][128] = {0};
        for (int64_t at = offsets.at[doc]; at < end;) {
            int64_t step = 1, point = data.at[at];
            if (point < 128) {
                ascii[at & 1][point]++;
            } else {
                point = decode(data, at, end, &step);
                row[CHARACTERS]++;
                row[NON_ASCII]++;
                add_classes(row, table.at[point], 1);
            }
            if (table.at[point] & C_BREAK) {
                if (!(point == 10 && previous == 13)) end_line(row, size); /* \r\n is one line end */
                size = 0;
            } else {
                size++;
            }
            previous = point;
            at += step;
        }
        if (size) end_line(row, size);
        for (int byte = 0; byte < 128; byte++) {
            int64_t times = ascii[0][byte] + ascii[1][byte];
            row[CHARACTERS] += times;
            add_classes(row, table.at[byte], times);
        }
    }
}
