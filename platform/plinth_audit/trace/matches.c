#include "plinth_text/compiled/kernel.h"

enum { GRAM = 16, STRIDE = 17 }; /* as in trace_index.py */

/* Extend each hit in both directions; returns how many matches. `crossing`: how many hits meet an edge. */
#define COMPARE(T)                                                                                             \
    static int64_t compare_in_##T(                                                                             \
        T##_in held, int64_t first, bool begins, bool ends, i64_in query, i64_in at, i64_in positions,         \
        int64_t base, int64_t least, int64_t end_of_text, i64_rows_out made, i64_out edge, int64_t *crossing   \
    ) {                                                                                                        \
        int64_t found = 0, met = 0;                                                                            \
        for (int64_t hit = 0; hit < at.size; hit++) {                                                          \
            int64_t own = at.at[hit], position = positions.at[hit], place = base + position - first, left = 0; \
            while (left < own && left < place && held.at[place - left - 1] == query.at[own - left - 1] &&      \
                   held.at[place - left - 1] != end_of_text && (left < STRIDE || position < STRIDE))           \
                left++;                                                                                        \
            if (left >= STRIDE && position >= STRIDE) continue; /* the anchor before is in this match */       \
            int64_t right = 0, rest = min_i64(query.size - own, held.size - place);                            \
            while (right < rest && held.at[place + right] == query.at[own + right] &&                          \
                   held.at[place + right] != end_of_text)                                                      \
                right++;                                                                                       \
            bool before = left == place && left < own && !begins;                                              \
            bool behind = place + right == held.size && own + right < query.size && !ends;                     \
            if (before || behind) {                                                                            \
                edge.at[met++] = hit;                                                                          \
            } else if (left + right >= least && right >= GRAM) {                                               \
                made.at[3 * found] = own - left;                                                               \
                made.at[3 * found + 1] = first + place - left;                                                 \
                made.at[3 * found++ + 2] = left + right;                                                       \
            }                                                                                                  \
        }                                                                                                      \
        *crossing = met;                                                                                       \
        return found;                                                                                          \
    }

COMPARE(u16)
COMPARE(u32)

KERNEL int64_t compare_u16(
    u16_in held, int64_t first, bool begins, bool ends, i64_in query, i64_in at, i64_in positions, int64_t base,
    int64_t least, int64_t end_of_text, i64_rows_out made, i64_out edge, int64_t *crossing
) {
    return compare_in_u16(held, first, begins, ends, query, at, positions, base, least, end_of_text, made, edge, crossing);
}

KERNEL int64_t compare_u32(
    u32_in held, int64_t first, bool begins, bool ends, i64_in query, i64_in at, i64_in positions, int64_t base,
    int64_t least, int64_t end_of_text, i64_rows_out made, i64_out edge, int64_t *crossing
) {
    return compare_in_u32(held, first, begins, ends, query, at, positions, base, least, end_of_text, made, edge, crossing);
}
