#include "plinth_text/rules/c4_line.h"
#include "plinth_text/words/chunks.h"
#include "plinth_text/words/hash_sets.h"
#include "plinth_text/words/split.h"

enum { FULL_LINES, ENDED, SHORT, DUPLICATE_CHARACTERS, CHARACTERS, NEWLINES, WORDS, FINEWEB_COLUMNS };

/* True if there is nothing but white space. */
static bool is_blank(u8_in data, int64_t start, int64_t end, u8_in table) {
    for (int64_t at = start; at < end;) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        if (!(table.at[point] & SPACE)) return false;
        at += size;
    }
    return true;
}

KERNEL void fineweb(
    u8_in data, i64_in offsets, u8_in table, int64_t short_line, i64_in words, i64_out ends, u64_out keys,
    i64_rows_out out
) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t *counts = out.at + doc * FINEWEB_COLUMNS, start = offsets.at[doc], end = offsets.at[doc + 1];
        bool plain = all_ascii(data, start, end);
        counts[WORDS] = words.size ? words.at[doc] : words_of(data, start, end, plain, table);
        int64_t found = line_ends_i64(data, start, end, ends);
        counts[NEWLINES] = found;
        counts[CHARACTERS] = (plain ? end - start : count_characters(data, start, end)) - found;
        int64_t slots = slots_for(min_i64(found, (end - start) / 2) + 1);
        int shift = shift_for(slots);
        memset(keys.at, 0, slots * sizeof *keys.at);
        ends.at[found] = end;
        for (int64_t i = 0, begin = start; i <= found; begin = ends.at[i++] + 1) {
            int64_t stop = ends.at[i], point;
            if (is_blank(data, begin, stop, table)) continue;
            int64_t size = plain ? stop - begin : count_characters(data, begin, stop);
            last_character(data, begin, stop, &point);
            counts[FULL_LINES]++;
            counts[ENDED] += (table.at[point] & TERMINAL) != 0;
            counts[SHORT] += size <= short_line;
            if (seen(keys.at, slots, shift, hash_run_of(data, begin, stop))) counts[DUPLICATE_CHARACTERS] += size;
        }
    }
}
