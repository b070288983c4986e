#include "plinth_text/unicode/characters.h"
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/repeated_ngrams.h"
#include "plinth_text/words/word_run.h"

enum { DOLMA_COLUMNS = 18 };
enum { LENGTHS = 64 }; /* word lengths below this are counted; a median above is sorted for */
static uint64_t STOP_HASHES[8]; /* Gopher's eight stop words (Rae et al. 2021, section A.1.1) */

__attribute__((constructor)) static void fill_stops(void) {
    static const char *const words[8] = {"the", "be", "to", "of", "and", "that", "have", "with"};
    for (int k = 0; k < 8; k++) {
        STOP_HASHES[k] = FNV;
        for (const char *at = words[k]; *at; at++) STOP_HASHES[k] = (STOP_HASHES[k] ^ (uint8_t)*at) * PRIME;
    }
}

INLINE bool is_stop(uint64_t value) {
    bool found = false;
    for (int k = 0; k < 8; k++) found |= STOP_HASHES[k] == value;
    return found;
}

/* Hash and measure the words; adds up those with a symbol, those with a letter, and stop words. */
static int64_t scan_words(
    u8_in data, int64_t start, int64_t end, u8_in table, uint64_t *words, int64_t *characters, int64_t *lengths,
    double *row
) {
    memset(lengths, 0, LENGTHS * sizeof *lengths);
    WordRun run = no_words(words, characters);
    int64_t head = start, step;
    bool symbol = false, letter = false;
    for (int64_t at = start; at <= end; at += step) {
        int64_t point = point_or_end(data, at, end, &step);
        uint8_t flag = table.at[point];
        if (flag & SPACE) {
            if (run.size) {
                lengths[min_i64(run.size, LENGTHS - 1)]++;
                row[2] += symbol;
                row[3] += letter;
                if (at - head >= 2 && at - head <= 4) row[4] += is_stop(run.value);
                close_word(&run);
                symbol = letter = false;
            }
            head = at + step;
        } else {
            run.size++;
            symbol |= (point == '#') | (point == 0x2026);
            letter |= (flag & ALPHA) != 0;
            for (int64_t k = at; k < at + step; k++) hash_unit(&run, data.at[k]);
        }
    }
    return run.count;
}

static int by_size(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* Median word length, the mean of the middle two of an even number; 0 without words, -1 without memory. */
static double median_length(const int64_t *lengths, const int64_t *characters, int64_t n) {
    if (n == 0) return 0.0;
    int64_t below = 0, size = 0;
    while (below + lengths[size] <= (n - 1) / 2) below += lengths[size++];
    int64_t middle = size;
    while (below + lengths[size] <= n / 2) below += lengths[size++];
    if (size < LENGTHS - 1) return (double)(middle + size) / 2;
    int64_t *every = malloc(n * sizeof *every);
    if (every == NULL) return -1;
    for (int64_t i = 0; i < n; i++) every[i] = characters[i + 1] - characters[i];
    qsort(every, n, sizeof *every, by_size);
    double median = (double)(every[(n - 1) / 2] + every[n / 2]) / 2;
    free(every);
    return median;
}

/* Lines, those that start with `*` or `-`, that end with an ellipsis, and that have copies, with characters. */
typedef struct {
    int64_t all, bullets, ellipses, copies, copied;
} LineCounts;

static LineCounts count_lines(u8_in data, int64_t start, int64_t end, bool join, uint64_t *keys, int32_t *counts) {
    int64_t ends = 1;
    for (int64_t at = start; at < end; at++) ends += data.at[at] == '\n';
    /* as many different lines as fit: a blank one is one */
    int64_t space = slots_for(min_i64(ends, (end - start) / 2 + 3)), size = 0, head = start;
    int shift = shift_for(space);
    memset(keys, 0, space * sizeof *keys);
    uint64_t value = FNV;
    LineCounts line = {0};
    const uint8_t *text = data.at;
    for (int64_t at = start; at <= end; at++) {
        if (at < end && text[at] != '\n') {
            value = (value ^ text[at]) * PRIME;
            size += (text[at] & 0xC0) != 0x80;
            continue;
        }
        if (!(join && start < at && at < end && text[at - 1] == '\n')) {
            value |= value == 0;
            int64_t slot = slot_of(keys, space, shift, value);
            if (keys[slot] == 0) {
                keys[slot] = value;
                counts[slot] = 0;
            }
            int64_t seen_before = counts[slot]++, copies = seen_before == 0 ? 0 : seen_before == 1 ? 2 : 1;
            line.all++;
            line.copies += copies;
            line.copied += copies * size;
            line.bullets += head < at && (text[head] == '*' || text[head] == '-');
            line.ellipses += at - head >= 3 && text[at - 3] == 0xE2 && text[at - 2] == 0x80 && text[at - 1] == 0xA6;
        }
        value = FNV;
        size = 0;
        head = at + 1;
    }
    return line;
}

KERNEL int64_t count_dolma(
    u8_in data, i64_in offsets, u8_in table, bool join, u64_out keys, i32_out counts, i32_out spots, i32_out ids,
    u64_out words, i64_out characters, f64_rows_out out
) {
    int64_t lengths[LENGTHS];
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t start = offsets.at[doc], end = offsets.at[doc + 1];
        if (start == end) continue;
        double *row = out.at + doc * DOLMA_COLUMNS;
        int64_t n = scan_words(data, start, end, table, words.at, characters.at, lengths, row);
        LineCounts line = count_lines(data, start, end, join, keys.at, counts.at);
        double total = max_i64(characters.at[n], 1);
        row[0] = n;
        row[1] = median_length(lengths, characters.at, n);
        if (row[1] < 0) return NO_MEMORY;
        for (int column = 2; column < 4; column++) row[column] /= (double)max_i64(n, 1);
        row[5] = (double)line.bullets / (double)line.all;
        row[6] = (double)line.ellipses / (double)line.all;
        row[7] = (double)line.copies / (double)line.all;
        row[8] = (double)line.copied / total;
        int64_t slots, where, most;
        int64_t found = repeated_words(words.at, n, keys.at, counts.at, spots.at, ids.at, &slots);
        for (int64_t size = 2; size < 11; size++) {
            found = extend(spots.at, ids.at, found, keys.at, counts.at, &where, &most);
            if (size < 5 && n >= size) { /* when none repeats, the first stands for all */
                where = max_i64(where, 0);
                most = max_i64(most, 1);
                row[7 + size] = (double)(most * (characters.at[where + size] - characters.at[where])) / total;
            } else if (found) {
                row[7 + size] = (double)in_all_copies(spots.at, found, size, characters.at) /
                                (double)max_i64(in_every_gram(n, size, characters.at), 1);
            }
        }
    }
    return 0;
}
