#include "plinth_text/words/word_hashes.h"

/* As in proxy.py. */
enum { ORDER = 5, TABLE_BITS = 22 };
enum { AHEAD = 16 }; /* bytes whose places are found and fetched together */

/* Place of a context, or of a context with its byte, in the table of an order. */
INLINE uint64_t slot(uint64_t state, uint64_t order) {
    return mix(state + order * 0x9E3779B97F4A7C15u) >> (64 - TABLE_BITS);
}

/* The last `order` bytes of the history. */
INLINE uint64_t context_of(uint64_t history, uint64_t order) { return history & ((1ull << 8 * order) - 1); }

INLINE uint64_t slot_with_byte(uint64_t context, uint8_t byte, uint64_t order) {
    return slot(context << 8 | byte | 1ull << 62, order);
}

/* Where the tables have the counts of one byte: after each context, and total and kinds of the context. */
typedef struct {
    uint32_t count[ORDER], mass[ORDER];
} Places;

/* Fill in the places of the next bytes, and go on to their history; returns how many bytes. The tables are larger than a
   cache: places are known, and fetched, a block before they are read. */
INLINE int64_t find_places(
    u8_in text, int64_t first, uint64_t *history, u32_rows_in counts, u32_rows_in contexts, Places *block
) {
    int64_t size = min_i64(AHEAD, text.size - first);
    for (int64_t i = 0; i < size; i++) {
        uint8_t byte = text.at[first + i];
        for (uint64_t order = 0; order < ORDER; order++) {
            uint64_t context = context_of(*history, order);
            block[i].count[order] = order * counts.columns + slot_with_byte(context, byte, order);
            block[i].mass[order] = order * contexts.columns + 2 * slot(context, order);
            __builtin_prefetch(counts.at + block[i].count[order], 1);
            __builtin_prefetch(contexts.at + block[i].mass[order], 1);
        }
        *history = *history << 8 | byte;
    }
    return size;
}

KERNEL void count_text(u8_in text, u32_rows_out counts, u32_rows_out contexts) {
    u32_rows_in read_counts = {counts.at, counts.rows, counts.columns};
    u32_rows_in read_contexts = {contexts.at, contexts.rows, contexts.columns};
    uint64_t history = 0;
    Places block[AHEAD];
    for (int64_t first = 0, size; first < text.size; first += size) {
        size = find_places(text, first, &history, read_counts, read_contexts, block);
        for (int64_t at = first; at < first + size; at++)
            for (int64_t order = 0; order < ORDER && order <= at; order++) {
                uint32_t *count = counts.at + block[at - first].count[order];
                uint32_t *mass = contexts.at + block[at - first].mass[order];
                mass[0]++;
                mass[1] += *count == 0;
                ++*count;
            }
    }
}

/* From the last byte to the first, so that each count goes back to what it was, also where contexts collide. */
KERNEL void uncount_text(u8_in text, u32_rows_out counts, u32_rows_out contexts) {
    u32_rows_in read_counts = {counts.at, counts.rows, counts.columns};
    u32_rows_in read_contexts = {contexts.at, contexts.rows, contexts.columns};
    Places block[AHEAD];
    for (int64_t first = (text.size - 1) / AHEAD * AHEAD; first >= 0; first -= AHEAD) {
        uint64_t history = 0;
        for (int64_t at = first < ORDER ? 0 : first - ORDER; at < first; at++) history = history << 8 | text.at[at];
        int64_t size = find_places(text, first, &history, read_counts, read_contexts, block);
        for (int64_t at = first + size - 1; at >= first; at--)
            for (int64_t order = 0; order < ORDER && order <= at; order++) {
                uint32_t *count = counts.at + block[at - first].count[order];
                uint32_t *mass = contexts.at + block[at - first].mass[order];
                --*count;
                mass[0]--;
                mass[1] -= *count == 0;
            }
    }
}

KERNEL double total_bits(u8_in text, u32_rows_in counts, u32_rows_in contexts) {
    uint64_t history = 0;
    double bits = 0;
    Places block[AHEAD];
    for (int64_t first = 0, size; first < text.size; first += size) {
        size = find_places(text, first, &history, counts, contexts, block);
        for (int64_t at = first; at < first + size; at++) {
            double p = 1.0 / 256;
            for (int64_t order = 0; order < ORDER && order <= at; order++) {
                const uint32_t *mass = contexts.at + block[at - first].mass[order];
                if (mass[0] == 0) continue;
                /* A collision can hide that a byte was new; every context was followed by one kind at least. */
                uint64_t kinds = mass[1] ? mass[1] : 1;
                uint32_t count = counts.at[block[at - first].count[order]];
                p = (count + kinds * p) / (mass[0] + kinds);
            }
            bits -= log2(p);
        }
    }
    return bits;
}
