/* Tokens are copied as they are stored, 64 at a time, and compared with the end-of-text in the same registers. */
#include "plinth_text/compiled/kernel.h"

/* Tokens copied at a time; bytes at the beginning of a piece that are prefetched, and how many pieces ahead; by
   measurement. */
enum { LANES = 64, PREFETCH_BYTES = 1024, PREFETCH_PIECES = 2, CACHE_LINE = 64 };

/* The last index of `bounds` that is at most a value. */
static int64_t shard_of(i64_in bounds, int64_t value) {
    int64_t low = 0, high = bounds.size;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (bounds.at[middle] <= value)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

KERNEL bool locate_pieces(
    i64_in addresses, i64_in bounds, int64_t itemsize, i64_in starts, i32_in lengths, i64_out sources, i64_out rests
) {
    int64_t shard = 0;
    for (int64_t i = 0; i < starts.size; i++) {
        int64_t start = starts.at[i];
        if (start < bounds.at[shard] || start >= bounds.at[shard + 1]) shard = shard_of(bounds, start);
        sources.at[i] = addresses.at[shard] + (start - bounds.at[shard]) * itemsize;
        rests.at[i] = bounds.at[shard + 1] - start;
        int64_t last = shard;
        while (addresses.at[last] && bounds.at[last + 1] < start + lengths.at[i]) last++;
        if (!addresses.at[last]) return false;
    }
    return true;
}

/* Where documents begin, in the flat array; those beyond its length are counted only. */
typedef struct {
    i32_out at;
    int64_t count;
} Begins;

INLINE void put_begin(Begins *begins, int64_t at) {
    if (begins->count < begins->at.size) begins->at.at[begins->count] = at;
    begins->count++;
}

INLINE void prefetch_lines(const char *at, int64_t from, int64_t to) {
    for (int64_t line = from; line < to; line += CACHE_LINE) __builtin_prefetch(at + line, 0, 2);
}

/* copy_T: copy tokens; note where documents begin after an end-of-text, before `end`. `following` is copied next. */
#define COPY(T, ELEMENT)                                                                                       \
    static void copy_##T(                                                                                      \
        const ELEMENT *source, ELEMENT *out, int64_t count, ELEMENT end_of_text, bool contiguous, Begins *begins, \
        int64_t at, int64_t end, const char *following                                                         \
    ) {                                                                                                        \
        int64_t whole = count / LANES * LANES, size = sizeof(ELEMENT);                                         \
        for (int64_t done = 0; done < whole; done += LANES) {                                                  \
            if (done * size >= PREFETCH_BYTES) prefetch_lines(following, done * size, (done + LANES) * size);  \
            uint64_t ends = copy_and_match_##T(source + done, out + done, end_of_text);                        \
            for (; contiguous && ends; ends &= ends - 1) {                                                     \
                int64_t place = at + done + __builtin_ctzll(ends) + 1;                                         \
                if (place < end) put_begin(begins, place);                                                     \
            }                                                                                                  \
        }                                                                                                      \
        for (int64_t i = whole; i < count; i++) {                                                              \
            out[i] = source[i];                                                                                \
            if (contiguous && source[i] == end_of_text && at + i + 1 < end) put_begin(begins, at + i + 1);     \
        }                                                                                                      \
    }

/* Copy LANES tokens; bit i of the result is set where token i is `wanted`. */
#define MATCH(T, ELEMENT)                                                                                      \
    INLINE uint64_t copy_and_match_##T(const ELEMENT *source, ELEMENT *target, ELEMENT wanted) {               \
        uint64_t bits = 0;                                                                                     \
        for (int k = 0; k < LANES; k++) {                                                                      \
            target[k] = source[k];                                                                             \
            bits |= (uint64_t)(source[k] == wanted) << k;                                                      \
        }                                                                                                      \
        return bits;                                                                                           \
    }

/* Returns documents; `runs` are the spans of targets that are not scored. */
#define FILL(T, ELEMENT)                                                                                       \
    static int64_t gather_##T(                                                                                   \
        i64_in addresses, i64_in bounds, i64_in starts, i64_in sources, i64_in rests, i32_in offsets, i32_in lengths, \
        i8_in context, int64_t end_of_text, bool contiguous, T##_rows_out tokens, i32_out begins, i32_rows_out unscored, \
        int64_t *runs                                                                                          \
    ) {                                                                                                        \
        int64_t width = tokens.columns, found = 0;                                                             \
        Begins documents = {begins, 0};                                                                        \
        for (int64_t row = 0; row < tokens.rows; row++) {                                                      \
            ELEMENT *out = tokens.at + row * width;                                                            \
            int64_t base = row * width, targets = row * (width - 1) - 1, place = 0;                            \
            int64_t first = offsets.at[row], stop = offsets.at[row + 1];                                       \
            if (first == stop || lengths.at[first] < width) {                                                  \
                out[0] = end_of_text;                                                                          \
                put_begin(&documents, base);                                                                   \
                place = 1;                                                                                     \
            }                                                                                                  \
            for (int64_t piece = first; piece < stop; piece++) {                                               \
                int64_t ahead = sources.at[min_i64(piece + PREFETCH_PIECES, sources.size - 1)];                \
                int64_t following = sources.at[min_i64(piece + 1, sources.size - 1)];                          \
                prefetch_lines((const char *)ahead, 0, PREFETCH_BYTES);                                        \
                if (place && context.at[piece]) put_run(unscored, &found, targets + place, targets + place + 1); \
                put_begin(&documents, base + place);                                                           \
                int64_t end = place + lengths.at[piece], rest = rests.at[piece], source = sources.at[piece];   \
                int64_t at = starts.at[piece];                                                                 \
                while (place < end) {                                                                          \
                    if (!rest) {                                                                               \
                        int64_t shard = shard_of(bounds, at);                                                  \
                        source = addresses.at[shard];                                                          \
                        rest = bounds.at[shard + 1] - at;                                                      \
                    }                                                                                          \
                    int64_t count = min_i64(end - place, rest);                                                \
                    copy_##T(                                                                                  \
                        (const ELEMENT *)source, out + place, count, end_of_text, contiguous, &documents,      \
                        base + place, base + width, (const char *)following);                                  \
                    place += count;                                                                            \
                    at += count;                                                                               \
                    rest -= count;                                                                             \
                }                                                                                              \
            }                                                                                                  \
            if (place < width) {                                                                               \
                put_begin(&documents, base + place);                                                           \
                put_run(unscored, &found, targets + place, targets + width);                                   \
                for (; place < width; place++) out[place] = end_of_text;                                       \
            }                                                                                                  \
        }                                                                                                      \
        *runs = found;                                                                                         \
        return documents.count;                                                                                \
    }

INLINE void put_run(i32_rows_out unscored, int64_t *found, int64_t begin, int64_t end) {
    unscored.at[2 * *found] = begin;
    unscored.at[2 * (*found)++ + 1] = end;
}

MATCH(u16, uint16_t)
MATCH(u32, uint32_t)
COPY(u16, uint16_t)
COPY(u32, uint32_t)
FILL(u16, uint16_t)
FILL(u32, uint32_t)

KERNEL int64_t fill_u16(
    i64_in addresses, i64_in bounds, i64_in starts, i64_in sources, i64_in rests, i32_in offsets, i32_in lengths,
    i8_in context, int64_t end_of_text, bool contiguous, u16_rows_out tokens, i32_out begins, i32_rows_out unscored,
    int64_t *runs
) {
    return gather_u16(
        addresses, bounds, starts, sources, rests, offsets, lengths, context, end_of_text, contiguous, tokens, begins,
        unscored, runs);
}

KERNEL int64_t fill_u32(
    i64_in addresses, i64_in bounds, i64_in starts, i64_in sources, i64_in rests, i32_in offsets, i32_in lengths,
    i8_in context, int64_t end_of_text, bool contiguous, u32_rows_out tokens, i32_out begins, i32_rows_out unscored,
    int64_t *runs
) {
    return gather_u32(
        addresses, bounds, starts, sources, rests, offsets, lengths, context, end_of_text, contiguous, tokens, begins,
        unscored, runs);
}
