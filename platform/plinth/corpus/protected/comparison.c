#include "plinth_text/words/word_hashes.h"

enum { SEED = 3, LEAST_SHARED = 2 };
static const double STRETCH = 1.5;

/* (document, item, position) for every hit and every item that holds the n-gram. */
KERNEL void hit_items(i64_in owner, i64_in places, i64_in grams, i64_in starts, i32_in postings, i64_rows_out out) {
    int64_t *row = out.at;
    for (int64_t i = 0; i < grams.size; i++) {
        for (int64_t k = starts.at[grams.at[i]]; k < starts.at[grams.at[i] + 1]; k++, row += 3) {
            row[0] = owner.at[i];
            row[1] = postings.at[k];
            row[2] = places.at[i];
        }
    }
}

/* First and last place of the most hits that lie within `room` words. */
static void densest(const int64_t *places, int64_t first, int64_t last, int64_t room, int64_t *low, int64_t *high) {
    int64_t best = 0, left = first;
    *low = *high = places[first];
    for (int64_t right = first; right < last; right++) {
        while (places[right] - places[left] > room) left++;
        if (right - left + 1 <= best) continue;
        best = right - left + 1;
        *low = places[left];
        *high = places[right];
    }
}

/* 64 bits of the three words at a place. */
INLINE uint64_t seed_hash(const uint64_t *words, int64_t at) {
    return mix(words[at] ^ mix(words[at + 1] ^ mix(words[at + 2])));
}

/* An item: its words, [begin, end) of all. */
typedef struct {
    const uint64_t *words;
    const int32_t *numbers;
    const int64_t *evident;
    int64_t begin, end;
} Item;

/* Memory of `longest_run`, for the longest item: `last` by slot; the others by place. */
typedef struct {
    int32_t *last, *before, *length;
    int64_t *reached;
} Runs;

/* Longest run of words that a stretch and an item have in common, one of them evidence at least, and where it begins;
   0 where it has fewer than SEED.

   The table of common suffixes, of which only the places with an equal run of SEED words are visited: for text they
   are about as many as words, where the whole table is their number times that of the item. */
static int64_t longest_run(
    const uint64_t *words, int64_t start, int64_t stop, const Item *item, const Runs *runs, int64_t *at
) {
    int64_t count = item->end - item->begin - SEED + 1, size = 1, best = 0;
    const uint64_t *own = item->words + item->begin;
    *at = start;
    if (count < 1) return 0;
    while (size < 2 * count) size *= 2;
    uint64_t mask = size - 1;
    memset(runs->last, -1, size * sizeof *runs->last);
    for (int64_t k = 0; k < count; k++) {
        uint64_t slot = seed_hash(own, k) & mask;
        runs->before[k] = runs->last[slot];
        runs->last[slot] = k;
        runs->length[k] = 0;
        runs->reached[k] = -2;
    }
    for (int64_t i = start; i < stop - SEED + 1; i++) {
        /* from the last place down: the one before it still has its length at i - 1 */
        for (int64_t k = runs->last[seed_hash(words, i) & mask]; k >= 0; k = runs->before[k]) {
            if (words[i] != own[k] || words[i + 1] != own[k + 1] || words[i + 2] != own[k + 2]) continue;
            runs->length[k] = k > 0 && runs->reached[k - 1] == i - 1 ? runs->length[k - 1] + 1 : SEED;
            runs->reached[k] = i;
            int64_t length = runs->length[k], end = item->begin + k + SEED;
            if (length > best && item->evident[end] > item->evident[end - length]) {
                best = length;
                *at = i + SEED - best;
            }
        }
    }
    return best;
}

/* Share of the weight of the item's distinct words, those that are evidence, that the stretch holds. `seen` has the
   last pair that met a word; `mark` and the number after it are this pair's. */
static double held_weight(
    const int64_t *known, int64_t start, int64_t stop, const Item *item, const float *weights, int64_t *seen, int64_t mark
) {
    for (int64_t i = start; i < stop; i++)
        if (known[i] >= 0) seen[known[i]] = mark;
    double held = 0, total = 0;
    for (int64_t k = item->begin; k < item->end; k++) {
        int32_t word = item->numbers[k];
        if (seen[word] == mark + 1 || item->evident[k + 1] == item->evident[k]) continue; /* counted, or no evidence */
        total += weights[word];
        if (seen[word] == mark) held += weights[word];
        seen[word] = mark + 1;
    }
    return total ? held / total : 0;
}

/* Rows of `kept`: document, item, words of the longest run, its first word. Returns how many pairs there are. `seen`
   is -1 for each word; `last` holds the slots of the longest item, the three after it one value per word of it. */
KERNEL int64_t verify(
    i64_in documents, i64_in wanted, i64_in places, i64_in starts, u64_in words, i64_in known, i64_in item_starts,
    u64_in item_words, i32_in item_numbers, i64_in evident, f32_in weights, int64_t n, i64_out seen, i32_out last,
    i32_out before, i32_out length, i64_out reached, i64_rows_out kept, f32_out share
) {
    Runs runs = {last.at, before.at, length.at, reached.at};
    int64_t size = 0;
    for (int64_t first = 0, stop; first < documents.size; first = stop) {
        int64_t doc = documents.at[first], number = wanted.at[first], low, high, at;
        for (stop = first; stop < documents.size && documents.at[stop] == doc && wanted.at[stop] == number;) stop++;
        if (stop - first < LEAST_SHARED) continue;
        Item item = {item_words.at, item_numbers.at, evident.at, item_starts.at[number], item_starts.at[number + 1]};
        int64_t room = (int64_t)(STRETCH * (double)(item.end - item.begin)) + n;
        densest(places.at, first, stop, room, &low, &high);
        int64_t begin = max_i64(starts.at[doc], starts.at[doc] + (low + high + n) / 2 - room / 2);
        int64_t end = min_i64(starts.at[doc + 1], begin + room);
        kept.at[2 * kept.columns + size] = longest_run(words.at, begin, end, &item, &runs, &at);
        share.at[size] = held_weight(known.at, begin, end, &item, weights.at, seen.at, 2 * size);
        kept.at[size] = doc;
        kept.at[kept.columns + size] = number;
        kept.at[3 * kept.columns + size++] = at - starts.at[doc];
    }
    return size;
}
