/* Most n-grams occur once, and such an n-gram needs no slot of a set. So n-grams are first counted in buckets, without
   comparing them: an n-gram alone in its bucket is alone in the text. The rest is compared by 64-bit hashes. */
#include "plinth_text/rules/copies.h"

#define BASE 0x9E3779B97F4A7C15u
#define FACTOR 0x9FB21C651E98DF25u
/* Lengths in bytes of starts that are compared. */
static const int32_t STARTS[] = {16, 24, 32, 40, 48, 64, 96};
enum { LEVELS = sizeof STARTS / sizeof *STARTS };

void pack_words(u8_in data, const int32_t *edges, int64_t n, const CopyBuffers *buffers) {
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t start = edges[2 * i], size = edges[2 * i + 1] - start;
        buffers->places[i] = at;
        if (start + size + 8 <= data.size) {
            for (int64_t k = 0; k < size; k += 8) write8(buffers->packed, at + k, read8(data.at, start + k));
            buffers->words[i] = hash_padded(data, start, start + size);
        } else { /* the last words of the buffer */
            memcpy(buffers->packed + at, data.at + start, size);
            buffers->words[i] = hash_run_of(data, start, start + size);
        }
        at += size;
    }
    buffers->places[n] = at;
    memset(buffers->packed + at, 0, COPIES_PADDING);
}

/* Characters of packed[begin:end]. */
INLINE int64_t packed_characters(const CopyBuffers *buffers, bool plain, int64_t begin, int64_t end) {
    return plain ? end - begin : count_characters((u8_in){buffers->packed, end}, begin, end);
}

/* Count the n-grams that are left in buckets. */
static void count_grams(int64_t left, const CopyBuffers *buffers) {
    int64_t size = 2 * slots_for(left);
    int shift = shift_for(size);
    memset(buffers->counts, 0, size * sizeof *buffers->counts);
    for (int64_t c = 0; c < left; c++) {
        uint64_t bucket = (buffers->grams[c] * BASE) >> shift;
        buffers->buckets[c] = bucket;
        buffers->counts[bucket]++;
    }
}

INLINE int32_t in_bucket(const CopyBuffers *buffers, int64_t c) { return buffers->counts[buffers->buckets[c]]; }

/* As `most_frequent`, by comparing all n-grams that are not alone in their bucket. */
static int64_t most_compared(int64_t left, const CopyBuffers *buffers, int64_t *where) {
    int64_t size = slots_for(left), best = 1;
    int shift = shift_for(size);
    memset(buffers->keys, 0, size * sizeof *buffers->keys);
    *where = 0;
    for (int64_t c = 0; c < left; c++) {
        int64_t inside = in_bucket(buffers, c);
        if (inside < 2 || inside < best) continue;
        uint64_t gram = buffers->grams[c] | (buffers->grams[c] == 0);
        int64_t slot = slot_of(buffers->keys, size, shift, gram);
        if (buffers->keys[slot] == 0) {
            buffers->keys[slot] = gram;
            buffers->tally[slot] = 0;
            buffers->firsts[slot] = buffers->starts[c];
        }
        int64_t copies = ++buffers->tally[slot], first = buffers->firsts[slot];
        if (copies > best || (copies == best && best > 1 && first < *where)) {
            best = copies;
            *where = first;
        }
    }
    return best;
}

/* Copies of the most frequent n-gram; `where` is the word it first starts at. When none repeats it is the first. */
static int64_t most_frequent(int64_t left, const CopyBuffers *buffers, int64_t *where) {
    int64_t most = 1, first = -1;
    for (int64_t c = 0; c < left; c++) {
        if (in_bucket(buffers, c) > most) {
            most = in_bucket(buffers, c);
            first = c;
        }
    }
    *where = 0;
    if (first < 0) return 1;
    int64_t copies = 0;
    uint64_t gram = buffers->grams[first];
    for (int64_t c = 0; c < left; c++) copies += buffers->grams[c] == gram;
    if (copies != most) return most_compared(left, buffers, where);
    *where = buffers->starts[first]; /* it is alone in its bucket, the fullest */
    return most;
}

/* Keep the starts at which this n-gram and the next may both repeat; returns how many. */
static int64_t keep_repeating(int64_t left, const CopyBuffers *buffers) {
    int64_t kept = 0;
    for (int64_t c = 0; c < left - 1; c++) {
        int32_t here = buffers->starts[c], after = buffers->starts[c + 1];
        bool both = (in_bucket(buffers, c) > 1) & (in_bucket(buffers, c + 1) > 1);
        buffers->starts[kept] = here;
        kept += (after == here + 1) & both;
    }
    return kept;
}

void top_ngrams(int64_t n, bool plain, const CopyBuffers *buffers, int64_t *out) {
    int64_t left = max_i64(0, n - 1);
    for (int64_t i = 0; i < left; i++) {
        buffers->starts[i] = i;
        buffers->grams[i] = buffers->words[i] * BASE + buffers->words[i + 1];
    }
    for (int64_t size = 2; size < 5; size++) {
        out[size - 2] = 0;
        if (n < size) continue;
        for (int64_t c = 0; c < (size > 2 ? left : 0); c++) {
            int64_t i = buffers->starts[c];
            uint64_t gram = buffers->words[i];
            for (int64_t k = i + 1; k < i + size; k++) gram = gram * BASE + buffers->words[k];
            buffers->grams[c] = gram;
        }
        count_grams(left, buffers);
        int64_t where, copies = most_frequent(left, buffers, &where);
        int64_t length = packed_characters(buffers, plain, buffers->places[where], buffers->places[where + size]);
        out[size - 2] = (length + size - 1) * copies;
        left = keep_repeating(left, buffers);
    }
}

/* Of the starts that repeat, those that do with more bytes; returns how many. */
static int64_t longer_starts(int64_t active, int level, const CopyBuffers *buffers) {
    int64_t known = STARTS[level - 1], length = STARTS[level], kept = 0;
    int32_t longer = level + 1 < LEVELS ? STARTS[level + 1] : INT32_MAX;
    for (int64_t k = 0; k < active; k++) {
        int64_t at = buffers->places[buffers->starts[buffers->active[k]]];
        uint64_t gram = buffers->grams[k];
        for (int64_t ahead = known; ahead < length; ahead += 8)
            gram = spread(gram ^ (read8(buffers->packed, at + ahead) * FACTOR));
        buffers->grams[k] = gram;
    }
    count_grams(active, buffers);
    for (int64_t k = 0; k < active; k++) {
        int32_t c = buffers->active[k];
        bool again = in_bucket(buffers, k) > 1;
        buffers->limits[c] = again ? longer : length;
        buffers->active[kept] = c;
        buffers->grams[kept] = buffers->grams[k];
        kept += again;
    }
    return kept;
}

/* The words at which an n-gram that repeats may start; returns how many. `limits`: from how many bytes on an n-gram
   that starts there is known to come once. */
static int64_t repeating_starts(int64_t n, const CopyBuffers *buffers) {
    int64_t left = max_i64(0, n - 4), kept = 0, active = 0;
    for (int64_t i = 0; i < left; i++) {
        int64_t at = buffers->places[i];
        buffers->grams[i] = (read8(buffers->packed, at) * FACTOR) ^ (read8(buffers->packed, at + 8) * BASE);
    }
    count_grams(left, buffers);
    for (int64_t i = 0; i < left; i++) {
        bool again = in_bucket(buffers, i) > 1;
        buffers->starts[kept] = i;
        buffers->limits[kept] = again ? STARTS[1] : STARTS[0];
        buffers->active[active] = kept;
        buffers->grams[active] = buffers->grams[i];
        active += again;
        kept += again | (buffers->places[i + 5] - buffers->places[i] < STARTS[0]);
    }
    for (int level = 1; level < LEVELS; level++) active = longer_starts(active, level, buffers);
    return kept;
}

/* Of the starts that are left, those whose n-gram of this size is not known to come once; returns how many. A longer
   n-gram from the same start comes no more often, so what goes here is gone for all sizes after it. */
static int64_t may_repeat(int64_t left, int64_t n, int64_t size, const CopyBuffers *buffers) {
    int64_t kept = 0;
    for (int64_t c = 0; c < left; c++) {
        int32_t i = buffers->starts[c], limit = buffers->limits[c];
        buffers->starts[kept] = i;
        buffers->limits[kept] = limit;
        kept += buffers->places[min_i64(i + size, n)] - buffers->places[i] < limit;
    }
    return kept;
}

/* Characters of the n-grams, among the starts that are left, that occurred before, each skipped whole. */
static int64_t repeated_characters(int64_t left, int64_t n, int64_t size, bool plain, const CopyBuffers *buffers) {
    int64_t slots = slots_for(left), total = 0, after = 0;
    int shift = shift_for(slots);
    memset(buffers->keys, 0, slots * sizeof *buffers->keys);
    for (int64_t c = 0; c < left; c++) {
        int64_t i = buffers->starts[c];
        if (i < after || i > n - size) continue;
        int64_t begin = buffers->places[i], end = buffers->places[i + size];
        u8_in packed = {buffers->packed, end + COPIES_PADDING};
        if (!seen(buffers->keys, slots, shift, hash_padded(packed, begin, end))) continue;
        total += packed_characters(buffers, plain, begin, end);
        after = i + size;
    }
    return total;
}

void repeated_ngrams(int64_t n, bool plain, const CopyBuffers *buffers, int64_t *out) {
    int64_t left = repeating_starts(n, buffers);
    for (int64_t size = 5; size < 11; size++) {
        left = may_repeat(left, n, size, buffers);
        out[size - 5] = repeated_characters(left, n, size, plain, buffers);
    }
}
