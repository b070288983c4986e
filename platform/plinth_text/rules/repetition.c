#include "plinth_text/rules/copies.h"
#include "plinth_text/words/split.h"

enum { REPETITION_COLUMNS = 13 };

/* Pieces of a text: how many, those that came before, and the characters of these. */
typedef struct {
    int64_t all, again, characters;
} Pieces;

/* Split at runs of at least `breaks` line ends. */
static Pieces split_pieces(
    u8_in data, int64_t start, int64_t end, const int32_t *ends, int64_t found, int64_t breaks, bool plain,
    uint64_t *keys
) {
    int64_t size = slots_for(min_i64(found + 1, (end - start) / 2 + 3)), begin = start, i = 0;
    int shift = shift_for(size);
    memset(keys, 0, size * sizeof *keys);
    Pieces pieces = {0};
    while (i < found && ends[i] < start) i++;
    for (bool last = false; !last;) {
        int64_t stop = end, after = end; /* the piece ends at `stop`; the next one starts at `after` */
        last = true;
        while (i < found && ends[i] < end) {
            stop = ends[i];
            int64_t run = 1;
            while (i + run < found && ends[i + run] == stop + run && stop + run < end) run++;
            i += run;
            if (run >= breaks) {
                after = stop + run;
                last = false;
                break;
            }
            stop = end;
        }
        pieces.all++;
        if (seen(keys, size, shift, hash_run_of(data, begin, stop))) {
            pieces.again++;
            pieces.characters += plain ? stop - begin : count_characters(data, begin, stop);
        }
        begin = after;
    }
    return pieces;
}

INLINE void put_shares(double *out, Pieces pieces, int64_t total) {
    out[0] = (double)pieces.again / (double)pieces.all;
    out[1] = (double)pieces.characters / (double)total;
}

KERNEL void repetition(
    u8_in data, i64_in offsets, u8_in table, i64_in word_first, i32_in word_edges, i32_out edges, u8_out packed,
    i32_out places, u64_out words, u64_out grams, i32_out buckets, i32_out starts, i32_out limits, i32_out active,
    i32_out counts, u64_out keys, i32_out tally, i32_out firsts, f64_rows_out out
) {
    CopyBuffers buffers = COPY_BUFFERS;
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        u8_in text = {data.at + offsets.at[doc], data.size - offsets.at[doc]};
        int64_t size = offsets.at[doc + 1] - offsets.at[doc], n, shared[9];
        if (!size) continue;
        double *row = out.at + doc * REPETITION_COLUMNS;
        bool plain = all_ascii(text, 0, size);
        int64_t total = plain ? size : count_characters(text, 0, size);
        const int32_t *found = edges.at;
        if (word_first.size) {
            found = word_edges.at + 2 * word_first.at[doc];
            n = word_first.at[doc + 1] - word_first.at[doc];
        } else {
            n = words_i32(text, 0, size, table, edges);
        }
        int64_t left = n ? found[0] : 0, right = n ? found[2 * n - 1] : 0;
        pack_words(text, found, n, &buffers);
        top_ngrams(n, plain, &buffers, shared);
        repeated_ngrams(n, plain, &buffers, shared + 3);
        for (int k = 0; k < 9; k++) row[4 + k] = (double)shared[k] / (double)total;
        int64_t lines = line_ends_i32(text, 0, size, edges); /* the words are placed: their edges may go */
        put_shares(row, split_pieces(text, 0, size, edges.at, lines, 1, plain, buffers.keys), total);
        put_shares(row + 2, split_pieces(text, left, right, edges.at, lines, 2, plain, buffers.keys), total);
    }
}
