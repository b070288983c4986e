/* MinHash signatures, and the keys of their bands.

   Only the upper 32 bits of the least of many 64-bit values count. The least upper halves are those bits, and
   processors compare 32-bit lanes twice as fast as 64-bit ones, or have no instruction for the latter (AVX2). */
#include "plinth_text/words/ngrams.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
enum { LANES = 8 }; /* permutations that one step takes: one vector */
#else
enum { LANES = 4 };
#endif
enum { STEP = 8 }; /* n-grams that one step takes */

/* Vectors wider than the processor's: only functions that are inlined pass them. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef uint64_t Wide __attribute__((vector_size(8 * LANES)));
typedef uint32_t Halves __attribute__((vector_size(8 * LANES)));

/* least: the lesser of each lane; low_product: of the lower halves of 64-bit lanes. Both are one instruction that the
   compiler does not find in the operators. */
#if defined __AVX512F__
INLINE Halves least(Halves a, Halves b) { return (Halves)_mm512_min_epu32((__m512i)a, (__m512i)b); }
INLINE Wide low_product(Wide a, Wide b) { return (Wide)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
#elif defined __AVX2__
INLINE Halves least(Halves a, Halves b) { return (Halves)_mm256_min_epu32((__m256i)a, (__m256i)b); }
INLINE Wide low_product(Wide a, Wide b) { return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
#else
INLINE Halves least(Halves a, Halves b) {
    Halves less = (Halves)(a < b);
    return (a & less) | (b & ~less);
}
INLINE Wide low_product(Wide a, Wide b) { return (a & UINT32_MAX) * (b & UINT32_MAX); }
#endif

INLINE Wide load(const uint64_t *at) {
    Wide out;
    memcpy(&out, at, sizeof out);
    return out;
}

/* Lower the upper halves of LANES minima by the values a * gram + b of STEP n-grams, which are below 2^32; their lower
   halves are then undefined. Pairs first, so that no comparison waits for all before it. */
INLINE void lower_lanes(uint64_t *minima, const uint64_t *a, const uint64_t *b, const uint64_t *grams) {
    Wide factor = load(a), high = factor >> 32, term = load(b);
    Halves values[STEP];
    for (int i = 0; i < STEP; i++) {
        Wide gram = (Wide){0} + grams[i];
        values[i] = (Halves)(low_product(factor, gram) + (low_product(high, gram) << 32) + term);
    }
    for (int width = STEP / 2; width; width /= 2)
        for (int i = 0; i < width; i++) values[i] = least(values[i], values[i + width]);
    Halves lowest = least(values[0], (Halves)load(minima));
    memcpy(minima, &lowest, sizeof lowest);
}

/* Lower the minima by n-grams, eight at a time; the inner loop runs over all permutations, so its length does not
   depend on the text, and short texts are as fast as long ones. */
static void lower_minima(const uint64_t *grams, int64_t count, u64_in a, u64_in b, uint64_t *minima) {
    int64_t steps = count / STEP * STEP, lanes = a.size / LANES * LANES;
    for (int64_t i = 0; i < steps; i += STEP)
        for (int64_t k = 0; k < lanes; k += LANES) lower_lanes(minima + k, a.at + k, b.at + k, grams + i);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = i < steps ? lanes : 0; k < a.size; k++) {
            uint64_t value = a.at[k] * grams[i] + b.at[k];
            minima[k] = value < minima[k] ? value : minima[k];
        }
}

/* `words`, `grams` and `minima` are scratch memory: for the words of the longest text, and for each permutation. */
KERNEL void sign_texts(u8_in data, i64_in offsets, int64_t n, u64_in a, u64_in b, u64_out words, u64_out grams,
                 u64_out minima, u32_rows_out out, bool_out filled) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t count = hash_words_of(data, offsets.at[doc], offsets.at[doc + 1], words.at);
        count = hash_ngrams_of(words.at, count, n, grams.at);
        for (int64_t i = 0; i < count; i++) grams.at[i] >>= 32;
        memset(minima.at, 0xFF, a.size * sizeof *minima.at);
        lower_minima(grams.at, count, a, b, minima.at);
        for (int64_t k = 0; k < a.size; k++) out.at[doc * out.columns + k] = minima.at[k] >> 32;
        filled.at[doc] = count > 0;
    }
}

KERNEL void hash_bands(u32_rows_in signature, int64_t bands, int64_t rows, u64_out out) {
    for (int64_t doc = 0; doc < signature.rows; doc++)
        for (int64_t band = 0; band < bands; band++) {
            uint64_t state = mix((uint64_t)(band + 1) * 0x9E3779B97F4A7C15u);
            for (int64_t row = 0; row < rows; row++)
                state = mix(state ^ signature.at[doc * signature.columns + band * rows + row]);
            out.at[doc * bands + band] = state;
        }
}
