/* Windows of n words: anchors and hashes; positions of words. */
#include "plinth_text/words/ngrams.h"

#define HIGH_FACTOR 0x9E3779B97F4A7C15u
#define LOW_FACTOR 0xC2B2AE3D27D4EB4Fu

/* The smallest of the k-grams from each window's first word on, of equal ones the last. */
static void anchor_windows(const uint64_t *grams, int64_t count, int64_t span, uint64_t *anchors, bool *fresh) {
    int64_t best = -1, last = -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t newest = i + span - 1;
        if (best < i) {
            best = i;
            for (int64_t j = i + 1; j <= newest; j++) best = grams[j] <= grams[best] ? j : best;
        } else if (grams[newest] <= grams[best]) {
            best = newest;
        }
        anchors[i] = grams[best];
        fresh[i] = best != last;
        last = best;
    }
}

/* `grams` is scratch memory for the words of the longest text. */
KERNEL void mark_anchors(u64_in words, i64_in word_starts, i64_in starts, int64_t n, int64_t k, u64_out grams,
                   u64_out anchors, bool_out fresh) {
    for (int64_t doc = 0; doc < starts.size - 1; doc++) {
        int64_t start = starts.at[doc], count = starts.at[doc + 1] - start, first = word_starts.at[doc];
        if (count == 0) continue;
        hash_ngrams_of(words.at + first, word_starts.at[doc + 1] - first, k, grams.at);
        anchor_windows(grams.at, count, n - k + 1, anchors.at + start, fresh.at + start);
    }
}

/* Two rolling polynomials modulo 2^64, over words and over words mixed again. */
typedef struct {
    uint64_t a, b, top_a, top_b;
} Rolling;

INLINE void roll_in(Rolling *hash, uint64_t word) {
    hash->a = hash->a * HIGH_FACTOR + word;
    hash->b = hash->b * LOW_FACTOR + mix(word ^ LOW_FACTOR);
}

INLINE void roll_out(Rolling *hash, uint64_t word) {
    hash->a -= word * hash->top_a;
    hash->b -= mix(word ^ LOW_FACTOR) * hash->top_b;
}

KERNEL void hash_windows(u64_in words, i64_in word_starts, i64_in starts, int64_t n, bool_in wanted, u64_out high,
                         u64_out low) {
    Rolling hash = {.top_a = 1, .top_b = 1};
    for (int64_t i = 0; i < n; i++) {
        hash.top_a *= HIGH_FACTOR;
        hash.top_b *= LOW_FACTOR;
    }
    int64_t count = 0;
    for (int64_t doc = 0; doc < starts.size - 1; doc++) {
        int64_t windows = starts.at[doc + 1] - starts.at[doc], rolled = -2; /* the window that `hash` is of */
        for (int64_t i = 0; i < windows; i++) {
            if (!wanted.at[starts.at[doc] + i]) continue;
            const uint64_t *window = words.at + word_starts.at[doc] + i;
            if (rolled == i - 1) {
                roll_in(&hash, window[n - 1]);
                roll_out(&hash, window[-1]);
            } else {
                hash.a = hash.b = 0;
                for (int64_t j = 0; j < n; j++) roll_in(&hash, window[j]);
            }
            rolled = i;
            high.at[count] = mix(hash.a);
            low.at[count++] = mix(hash.b);
        }
    }
}

/* By ASCII byte: the lower-cased byte of a word character, else 0. */
static uint8_t FOLDED[128];

__attribute__((constructor)) static void fill_folded(void) {
    for (int byte = '0'; byte <= '9'; byte++) FOLDED[byte] = byte;
    for (int byte = 'a'; byte <= 'z'; byte++) FOLDED[byte] = FOLDED[byte - 32] = byte;
    FOLDED['_'] = '_';
}

/* Write a code point from U+0080 on as UTF-8; returns the position after it. */
INLINE uint8_t *write_wide(uint8_t *out, uint32_t point) {
    if (point < 0x800) {
        *out++ = 0xC0 | point >> 6;
    } else if (point < 0x10000) {
        *out++ = 0xE0 | point >> 12;
        *out++ = 0x80 | (point >> 6 & 0x3F);
    } else {
        *out++ = 0xF0 | point >> 18;
        *out++ = 0x80 | (point >> 12 & 0x3F);
        *out++ = 0x80 | (point >> 6 & 0x3F);
    }
    *out++ = 0x80 | (point & 0x3F);
    return out;
}

/* Positions of words: rows of `places`, and where each ends in the folded text. */
typedef struct {
    int64_t *first_cp, *last_cp, *first_byte, *last_byte, *ends;
    int64_t count;
    uint8_t *folded, *out;
    bool inside;
} Places;

INLINE void open_word(Places *words, int64_t cp, int64_t byte) {
    words->first_cp[words->count] = cp;
    words->first_byte[words->count] = byte;
    words->inside = true;
}

INLINE void close_word(Places *words, int64_t cp, int64_t byte) {
    words->last_cp[words->count] = cp;
    words->last_byte[words->count++] = byte;
    *words->out++ = ' ';
    words->ends[words->count] = words->out - words->folded;
    words->inside = false;
}

/* places: [4, V] first code point, the one after the last, first byte, the one after the last. Returns V. */
KERNEL int64_t place_words(u8_in data, i64_rows_out places, i64_out ends, u8_out folded) {
    int64_t width = places.columns, cp = 0, at = 0, length;
    Places words = {places.at, places.at + width, places.at + 2 * width, places.at + 3 * width, ends.at,
                    0, folded.at, folded.at, false};
    for (; at < data.size; cp++, at += length) {
        if (data.at[at] < 128) {
            uint8_t letter = FOLDED[data.at[at]];
            length = 1;
            if (letter && !words.inside) open_word(&words, cp, at);
            if (!letter && words.inside) close_word(&words, cp, at);
            if (letter) *words.out++ = letter;
            continue;
        }
        int64_t point = decode(data, at, data.size, &length);
        uint8_t what = kind(point);
        if (words.inside && what != LETTER) close_word(&words, cp, at);
        if (what == SEPARATOR) continue;
        if (!words.inside) open_word(&words, cp, at);
        words.out = write_wide(words.out, point < LOWER_SIZE ? LOWER[point] : point);
        if (what == SINGLE) close_word(&words, cp + 1, at + length); /* a word by itself */
    }
    if (words.inside) close_word(&words, cp, at);
    return words.count;
}
