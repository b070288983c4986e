#include "plinth_text/unicode/classes.h"
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/hash_sets.h"

enum { MAX_PERIOD = 13, MIN_TIMES = 3 }; /* as in `gopher.py` */
enum { TOKENS, TIMES, LONGEST };

static int64_t split_tokens(u8_in data, int64_t start, int64_t end, u16_in table, uint64_t *tokens) {
    int64_t n = 0;
    int kind = 0;
    uint64_t value = FNV;
    for (int64_t at = start; at < end;) {
        int64_t step = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &step);
        uint16_t flag = table.at[point];
        int now = flag & C_SPACE ? 0 : flag & C_WORD ? 1 : 2;
        if (now != kind) {
            tokens[n] = value;
            n += kind > 0;
            kind = now;
            value = FNV;
        }
        value = (value ^ (uint64_t)point) * PRIME;
        at += step;
    }
    tokens[n] = value;
    return n + (kind > 0);
}

/* Length of the longest run in which every token equals the one a period before. */
static int64_t longest_run(const uint64_t *tokens, int64_t n, int64_t period) {
    int64_t run = 0, longest = 0;
    for (int64_t k = period; k < n; k++) {
        run = tokens[k] == tokens[k - period] ? run + 1 : 0;
        longest = max_i64(longest, run);
    }
    return longest;
}

KERNEL void find_periods(u8_in data, i64_in offsets, u16_in table, u64_out tokens, i64_rows_out out) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t *row = out.at + 3 * doc;
        int64_t n = split_tokens(data, offsets.at[doc], offsets.at[doc + 1], table, tokens.at);
        row[TOKENS] = n;
        for (int64_t period = 1; period <= min_i64(MAX_PERIOD, n / MIN_TIMES); period++) {
            int64_t longest = longest_run(tokens.at, n, period) + period;
            if (longest / period < MIN_TIMES) continue;
            row[TIMES] = max_i64(row[TIMES], longest / period);
            row[LONGEST] = max_i64(row[LONGEST], longest);
        }
    }
}
