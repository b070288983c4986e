#include "plinth_text/words/chunks.h"
#include "plinth/tokens/tokenizer/words.h"

#define FACTOR 0x9E3779B97F4A7C15u /* 2^64 / golden ratio: bits of a short key reach the whole hash */

/* True if two words of one length are equal. */
static bool same_word(u8_in data, int64_t at, int64_t size, u8_in known, int64_t first) {
    return memcmp(data.at + at, known.at + first, size) == 0;
}

/* Number every word of the texts and add new ones; `words` become the numbers, `used` how many words the texts have.
   Returns how many words the table has.

   A slot is a word's key and its length above its number + 1. The key of up to eight bytes is the bytes, which proves
   that words are equal; longer words are compared. */
KERNEL int64_t scan(
    u8_in data, i64_in offsets, u8_in table, int64_t letters, int64_t alone, int64_t group, bool lines,
    u64_rows_out slots, i64_out starts, u8_out known, int64_t held, i32_out words, i64_out counts, int64_t *used
) {
    WordPattern by = {letters, alone, group, lines};
    uint64_t mask = slots.rows - 1;
    int64_t filled = 0;
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t end = offsets.at[doc + 1], before = filled, stop;
        for (int64_t at = offsets.at[doc]; at < end; at = stop) {
            stop = word_end(data, at, end, table.at, &by);
            int64_t size = stop - at, number;
            uint64_t key = size <= 8 ? read_bytes(data, at, size) : hash_run_of(data, at, stop);
            uint64_t length = (uint64_t)size << 32, slot = spread(key * FACTOR + length) & mask;
            for (;; slot = (slot + 1) & mask) {
                uint64_t *own = slots.at + 2 * slot;
                if (own[1] == 0) {
                    own[0] = key;
                    own[1] = length | (uint64_t)(held + 1);
                    starts.at[held + 1] = starts.at[held] + size;
                    memcpy(known.at + starts.at[held], data.at + at, size);
                    number = held++;
                    break;
                }
                number = (int64_t)(own[1] & UINT32_MAX) - 1;
                bool equal = own[0] == key && (own[1] & ~(uint64_t)UINT32_MAX) == length;
                u8_in stored = {known.at, known.size};
                if (equal && (size <= 8 || same_word(data, at, size, stored, starts.at[number]))) break;
            }
            words.at[filled++] = number;
        }
        counts.at[doc] = filled - before;
    }
    *used = filled;
    return held;
}

/* Fill in where each text's tokens begin, from `first[0]` on; returns how many there are. */
KERNEL int64_t measure(i32_in words, i64_in counts, i64_in token_starts, i64_out first) {
    int64_t at = 0;
    for (int64_t doc = 0; doc < counts.size; doc++) {
        int64_t total = 0;
        for (int64_t k = 0; k < counts.at[doc]; k++, at++)
            total += token_starts.at[words.at[at] + 1] - token_starts.at[words.at[at]];
        first.at[doc + 1] = first.at[doc] + total;
    }
    return first.at[counts.size];
}

#define GATHER(T)                                                                                              \
    static void gather_into_##T(i32_in words, i64_in token_starts, u32_in tokens, T##_out out) {               \
        int64_t at = 0;                                                                                        \
        for (int64_t i = 0; i < words.size; i++)                                                               \
            for (int64_t k = token_starts.at[words.at[i]]; k < token_starts.at[words.at[i] + 1]; k++)          \
                out.at[at++] = tokens.at[k];                                                                   \
    }

GATHER(u16)
GATHER(u32)

KERNEL void gather_u16(i32_in words, i64_in token_starts, u32_in tokens, u16_out out) {
    gather_into_u16(words, token_starts, tokens, out);
}

KERNEL void gather_u32(i32_in words, i64_in token_starts, u32_in tokens, u32_out out) {
    gather_into_u32(words, token_starts, tokens, out);
}
