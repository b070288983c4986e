#include "text/words/word_hashes.h"

/* As in byte_model.py. */
enum { ORDER = 5, TABLE_BITS = 22 };

/* Place of a context, or of a context with its byte, in the table of an order. */
INLINE uint64_t slot(uint64_t state, uint64_t order) {
    return mix(state + order * 0x9E3779B97F4A7C15u) >> (64 - TABLE_BITS);
}

/* The last `order` bytes of the history. */
INLINE uint64_t context_of(uint64_t history, uint64_t order) { return history & ((1ull << 8 * order) - 1); }

INLINE uint64_t slot_with_byte(uint64_t context, uint8_t byte, uint64_t order) {
    return slot(context << 8 | byte | 1ull << 62, order);
}

KERNEL void count_text(u8_in text, u32_rows_out counts, u32_rows_out contexts) {
    uint64_t history = 0;
    for (int64_t at = 0; at < text.size; at++) {
        uint8_t byte = text.at[at];
        for (int64_t order = 0; order < ORDER && order <= at; order++) {
            uint64_t context = context_of(history, order);
            uint32_t *count = counts.at + order * counts.columns + slot_with_byte(context, byte, order);
            uint32_t *mass = contexts.at + order * contexts.columns + 2 * slot(context, order);
            mass[0]++;
            mass[1] += *count == 0;
            ++*count;
        }
        history = history << 8 | byte;
    }
}

KERNEL double total_bits(u8_in text, u32_rows_in counts, u32_rows_in contexts) {
    uint64_t history = 0;
    double bits = 0;
    for (int64_t at = 0; at < text.size; at++) {
        uint8_t byte = text.at[at];
        double p = 1.0 / 256;
        for (int64_t order = 0; order < ORDER && order <= at; order++) {
            uint64_t context = context_of(history, order);
            const uint32_t *mass = contexts.at + order * contexts.columns + 2 * slot(context, order);
            if (mass[0] == 0) continue;
            /* A collision can hide that a byte was new; every context was followed by one kind at least. */
            uint64_t kinds = mass[1] ? mass[1] : 1;
            uint32_t count = counts.at[order * counts.columns + slot_with_byte(context, byte, order)];
            p = (count + kinds * p) / (mass[0] + kinds);
        }
        bits -= log2(p);
        history = history << 8 | byte;
    }
    return bits;
}
