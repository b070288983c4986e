#include "plinth/tokens/tokenizer/words.h"

KERNEL int64_t word_ends(
    u8_in data, u8_in table, int64_t letters, int64_t alone, int64_t group, bool lines, i64_out out
) {
    WordPattern by = {letters, alone, group, lines};
    int64_t count = 0;
    for (int64_t at = 0; at < data.size;) out.at[count++] = at = word_end(data, at, data.size, table.at, &by);
    return count;
}
