#include "plinth_text/rules/copies.h"
#include "plinth_text/unicode/characters.h"
#include "plinth_text/words/script_words.h"
#include "plinth_text/words/split.h"

enum {
    WORDS, PLAIN_WORDS, PLAIN_CHARACTERS, LETTER_WORDS, STOP_WORDS, SENTENCES, LINES, REPEATED_LINES, CHARACTERS, GRAMS,
    LANGUAGE_COLUMNS = GRAMS + 9,
};
/* Slots of a set of stop words; remainders of their first characters; words in a row that may be one. */
enum { STOP_SLOTS = 256, STOP_STARTS = 1024, STOP_ROW = 4 };
enum { FIRST_HANGUL = 0xAC00, LAST_HANGUL = 0xD7A3 };

/* The stop words of a language. */
typedef struct {
    const uint64_t *keys;
    const uint8_t *numbers;
    const bool *starts;
} StopWords;

/* True if a line ends between two words. */
INLINE bool has_break(const uint8_t *data, int64_t start, int64_t end) {
    bool found = false;
    for (int64_t at = start; at < end; at++) found |= data[at] == 10;
    return found;
}

/* Words, those with a letter, those that are not only symbols, their characters, and sentences. */
static void count_all_words(u8_in data, const int32_t *edges, int64_t n, u8_in table, int64_t *row) {
    bool text = false;
    int64_t stopped = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t start = edges[2 * i], end = edges[2 * i + 1], length = 0;
        bool letter = false, plain = false;
        uint8_t first = 0;
        for (int64_t at = start; at < end; length++) {
            int64_t size = 1, point = data.at[at];
            if (point >= 128) point = decode(data, at, end, &size);
            uint8_t flag = table.at[point];
            if (at == start) first = flag;
            letter |= (flag & ALPHA) != 0;
            plain |= (flag & PUNCTUATION) == 0;
            at += size;
        }
        row[LETTER_WORDS] += letter;
        row[PLAIN_WORDS] += plain;
        row[PLAIN_CHARACTERS] += length * plain;
        if (text && (has_break(data.at, stopped, start) || (first & TERMINAL && !plain))) {
            row[SENTENCES]++;
            text = false;
        }
        text |= plain;
        stopped = end;
    }
    row[WORDS] = n;
    row[SENTENCES] += text;
}

/* The bit of a stop word, or 0. */
static uint64_t stop_bit(u8_in data, int64_t start, int64_t end, const StopWords *stops) {
    uint64_t value = end + 8 <= data.size ? hash_padded(data, start, end) : hash_run_of(data, start, end);
    value |= value == 0;
    int64_t slot = value & (STOP_SLOTS - 1);
    while (stops->keys[slot] != 0 && stops->keys[slot] != value) slot = (slot + 1) & (STOP_SLOTS - 1);
    return (uint64_t)(stops->keys[slot] != 0) << stops->numbers[slot];
}

/* Distinct stop words. */
static int64_t count_stops(u8_in data, const int32_t *edges, int64_t n, u8_in scripts, const StopWords *stops) {
    uint64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t start = edges[2 * i], end = edges[2 * i + 1], size, point = data.at[start];
        if (point >= 128) point = decode(data, start, end, &size);
        if (stops->starts[point & (STOP_STARTS - 1)]) {
            found |= stop_bit(data, start, end, stops);
            if (point < SCRIPTS_SIZE && scripts.at[point] >= HAN && scripts.at[point] <= MYANMAR) {
                for (int64_t k = i + 1; k < min_i64(i + STOP_ROW, n); k++) {
                    if (edges[2 * k] != edges[2 * k - 1]) break;
                    found |= stop_bit(data, start, edges[2 * k + 1], stops);
                }
            }
        }
        if (point >= FIRST_HANGUL && point <= LAST_HANGUL)
            for (int64_t syllables = 1; syllables < 3; syllables++)
                if (end - start > 3 * syllables) found |= stop_bit(data, end - 3 * syllables, end, stops);
    }
    return popcount(found);
}

/* Pieces between runs of line ends, and those that came before. */
static void count_lines(u8_in data, int64_t end, i32_out ends, uint64_t *keys, int64_t *row) {
    int64_t found = line_ends_i32(data, 0, end, ends), begin = 0;
    int64_t size = slots_for(min_i64(found + 1, end / 2 + 3));
    int shift = shift_for(size);
    memset(keys, 0, size * sizeof *keys);
    for (int64_t i = 0; i <= found; i++) {
        int64_t stop = i < found ? ends.at[i] : end;
        if (i == found || i == 0 || stop > begin) { /* an empty piece inside belongs to a run of line ends */
            row[LINES]++;
            row[REPEATED_LINES] += seen(keys, size, shift, hash_run_of(data, begin, stop));
        }
        begin = stop + 1;
    }
}

KERNEL void count_language(
    u8_in data, i64_in offsets, i64_in lists, u64_rows_in stop_keys, u8_rows_in stop_numbers, bool_rows_in stop_starts,
    u8_in table, u8_in kinds, i8_in variants, u16_in ids, i32_in singles, u64_in model_keys, i32_in weights,
    i64_in bases, i32_out points, i32_out point_places, u8_out here, i32_out scores, bool_out first, bool_out thai,
    i32_out edges, u8_out packed, i32_out places, u64_out words, u64_out grams, i32_out buckets, i32_out starts,
    i32_out limits, i32_out active, i32_out counts, u64_out keys, i32_out tally, i32_out firsts, i64_rows_out out
) {
    ScriptSplitter by = {
        kinds.at, variants, {ids.at, singles.at, singles.size / (bases.size * MODEL_PLACES), model_keys.at,
        weights.at, bases.at}, points.at, point_places.at, here.at, scores.at, first.at, thai.at};
    CopyBuffers buffers = COPY_BUFFERS;
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        u8_in text = {data.at + offsets.at[doc], data.size - offsets.at[doc]};
        int64_t size = offsets.at[doc + 1] - offsets.at[doc], *row = out.at + doc * LANGUAGE_COLUMNS;
        if (!size) continue;
        bool plain = all_ascii(text, 0, size);
        row[CHARACTERS] = plain ? size : count_characters(text, 0, size);
        int64_t n = script_split(text, 0, size, &by, edges.at), list = lists.at[doc];
        count_all_words(text, edges.at, n, table, row);
        if (list >= 0) {
            StopWords stops = {stop_keys.at + list * STOP_SLOTS, stop_numbers.at + list * STOP_SLOTS,
                               stop_starts.at + list * STOP_STARTS};
            row[STOP_WORDS] = count_stops(text, edges.at, n, kinds, &stops);
        }
        pack_words(text, edges.at, n, &buffers);
        top_ngrams(n, plain, &buffers, row + GRAMS);
        repeated_ngrams(n, plain, &buffers, row + GRAMS + 3);
        count_lines(text, size, edges, buffers.keys, row); /* the words are counted: their edges may go */
    }
}
