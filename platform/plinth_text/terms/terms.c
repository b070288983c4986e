/* Words and phrases of a lexicon in texts, and obfuscated ones. */
#include "plinth_text/terms/obfuscation.h"
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/hash_sets.h"
#include "plinth_text/words/word_hashes.h"

/* Words of a text: hashes, and for each its first byte and the one after its last. */
typedef struct {
    uint64_t *hashes;
    int64_t *ends, count, first; /* `first` byte of the open word, or -1 */
    uint64_t state;
} TermWords;

static void end_word(TermWords *words, int64_t end) {
    if (words->first < 0) return;
    words->hashes[words->count] = mix(words->state);
    words->ends[2 * words->count] = words->first;
    words->ends[2 * words->count + 1] = end;
    words->count++;
    words->state = FNV;
    words->first = -1;
}

INLINE uint8_t ascii_kind(uint8_t byte) {
    bool letter = ((byte | 32) >= 'a' && (byte | 32) <= 'z') || (byte >= '0' && byte <= '9') || byte == '_';
    return letter ? LETTER : SEPARATOR;
}

KERNEL int64_t word_spans(u8_in data, int64_t start, int64_t end, u64_out words, i64_rows_out ends) {
    TermWords found = {words.at, ends.at, 0, -1, FNV};
    for (int64_t at = start, size; at < end; at += size) {
        int64_t point = data.at[at];
        size = 1;
        if (point >= 128) point = decode(data, at, end, &size);
        uint8_t what = point < 128 ? ascii_kind(point) : kind(point);
        if (what != LETTER) end_word(&found, at);
        if (what == SEPARATOR) continue;
        if (found.first < 0) found.first = at;
        found.state = (found.state ^ (point < LOWER_SIZE ? LOWER[point] : (uint64_t)point)) * PRIME;
        if (what == SINGLE) end_word(&found, at + size);
    }
    end_word(&found, end);
    return found.count;
}

INLINE uint64_t phrase_hash(const uint64_t *words, int64_t count) {
    uint64_t value = words[0];
    for (int64_t i = 1; i < count; i++) value = mix(value * 0xD6E8FEB86659FD93u + words[i]);
    return value;
}

KERNEL uint64_t joined(u64_in words) { return phrase_hash(words.at, words.size); }

KERNEL int64_t skeleton(u8_in data, u32_in letters, uint64_t *plain, uint64_t *runs) {
    Skeleton found = skeleton_of(data, 0, data.size, letters);
    *plain = found.i;
    *runs = found.once;
    return found.letters;
}

/* Add the longest phrase from each word on; `firsts` has the number of words of the longest phrase by its first word.
   False where memory could not be allocated. */
static bool put_phrases(const uint64_t *words, const int64_t *ends, int64_t count, const TermHashes *firsts,
                        const TermHashes *phrases, Hits *hits) {
    for (int64_t i = 0, taken; i < count; i += taken) {
        taken = 1;
        for (int64_t length = min_i64(term_of(firsts, words[i]), count - i); length > 0; length--) {
            int64_t term = term_of(phrases, phrase_hash(words + i, length));
            if (term < 0) continue;
            if (!add_hit(hits, ends[2 * i], ends[2 * (i + length - 1) + 1], term)) return false;
            taken = length;
            break;
        }
    }
    return true;
}

/* Hits of all texts: [H, 4] term, first code point, the one after the last, 1 if obfuscated. */
typedef struct {
    i64_rows_out rows;
    int64_t size;
} FoundTerms;

/* Merge the hits of a text from byte `byte` on: in reading order, and disjoint; of two the one that starts first, then
   the plain one. */
static void merge_hits(const uint8_t *data, int64_t byte, const Hits *plain, const Hits *hidden, FoundTerms *found) {
    int64_t reached = byte, points = 0;
    for (int64_t a = 0, b = 0; a < plain->size || b < hidden->size;) {
        bool obfuscated = a >= plain->size || (b < hidden->size && hidden->at[b].start < plain->at[a].start);
        const Hit *hit = obfuscated ? &hidden->at[b++] : &plain->at[a++];
        if (hit->start < reached) continue;
        for (; byte < hit->start; byte++) points += (data[byte] & 0xC0) != 0x80;
        int64_t first = points;
        for (; byte < hit->end; byte++) points += (data[byte] & 0xC0) != 0x80;
        if (found->size < found->rows.rows) {
            int64_t *row = found->rows.at + 4 * found->size;
            row[0] = hit->term;
            row[1] = first;
            row[2] = points;
            row[3] = obfuscated;
        }
        found->size++;
        reached = hit->end;
    }
}

KERNEL int64_t find_terms(u8_in data, i64_in offsets, u64_out words, i64_rows_out ends, i64_out starts, bool obfuscated,
                          u32_in letters, u64_in firsts, i64_in lengths, bool_in first_bits, u64_in phrases,
                          i64_in terms, bool_in phrase_bits, u64_in skeletons, i64_in skeleton_terms,
                          bool_in skeleton_bits, u64_in runs, i64_in run_terms, bool_in run_bits,
                          i64_rows_out found) {
    TermHashes by_first = {firsts, lengths, first_bits}, by_phrase = {phrases, terms, phrase_bits};
    TermHashes by_letters = {skeletons, skeleton_terms, skeleton_bits}, by_runs = {runs, run_terms, run_bits};
    Hits plain = {0}, hidden = {0};
    FoundTerms all = {found, 0};
    bool done = true;
    for (int64_t doc = 0; doc < offsets.size - 1 && done; doc++) {
        int64_t start = offsets.at[doc], end = offsets.at[doc + 1];
        int64_t count = word_spans(data, start, end, words, ends);
        plain.size = hidden.size = 0;
        done = put_phrases(words.at, ends.at, count, &by_first, &by_phrase, &plain) &&
               (!obfuscated || obfuscated_terms(data, start, end, letters, &by_letters, &by_runs, &hidden));
        if (done) merge_hits(data.at, start, &plain, &hidden, &all);
        starts.at[doc + 1] = all.size;
    }
    free(plain.at);
    free(hidden.at);
    return done ? all.size : NO_MEMORY;
}
