#include "plinth_text/similarity/bags.h"

enum { MASK = (1 << 18) - 1 }; /* of cells: `TABLE_BITS` */

/* `last` is -1 for each cell at the beginning. */
KERNEL int64_t count_texts(i64_in starts, u64_in words, int64_t min_words, i64_out last, i64_out out) {
    int64_t texts = 0;
    for (int64_t doc = 0; doc < starts.size - 1; doc++) {
        if (starts.at[doc + 1] - starts.at[doc] < min_words) continue;
        texts++;
        for (int64_t i = starts.at[doc]; i < starts.at[doc + 1]; i++) {
            int64_t cell = words.at[i] & MASK;
            out.at[cell] += last.at[cell] != doc;
            last.at[cell] = doc;
        }
    }
    return texts;
}

KERNEL void add_words(u64_in words, f64_in idf, f64_out out) {
    int64_t begin = 0;
    for (int64_t end = 1; end <= words.size; end++) {
        uint64_t word = words.at[begin];
        if (end < words.size && words.at[end] == word) continue;
        double weight = (1.0 + log((double)(end - begin))) * idf.at[word & MASK];
        /* other bits than the cell's choose the place, so that words of one cell do not share it */
        uint64_t place = ((word >> 32) * (uint64_t)out.size) >> 32;
        out.at[place] += (word >> 31) & 1 ? weight : -weight;
        begin = end;
    }
}

KERNEL float cosine(i16_in x, i16_in y) { return bag_cosine(x.at, y.at, x.size); }
