/* Counts behind the surface features of a text. */
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/hash_lookup.h"
#include "plinth_text/words/hash_sets.h"
#include "plinth_text/words/word_hashes.h"

/* Columns of counts, as in `__init__.py`. */
enum {
    POINTS, LETTERS, UPPER, DIGITS, MARKS, BRACKETS, WIDE_POINTS, BLANKS, SHOUTS, CHUNKS, LINES, ENDED, SHORT, BULLETS,
    COPIES, COPIED, WORDS, DISTINCT, PAIRS, COMMON, LONGEST, COLUMNS,
};

enum { SHORT_LINE = 30 }; /* characters, as in FineWeb */

/* Bits of a character's class. */
enum {
    IS_LETTER = 1, IS_UPPER = 2, IS_DIGIT = 4, IS_MARK = 8, IS_BRACKET = 16, IS_BLANK = 32, IS_SHOUT = 64, IS_END = 128,
    IS_BULLET = 256,
};

static uint16_t ASCII_FLAGS[128];

static void add_flag(const char *characters, uint16_t flag) {
    for (; *characters; characters++) ASCII_FLAGS[(uint8_t)*characters] |= flag;
}

__attribute__((constructor)) static void fill_flags(void) {
    for (int byte = '!'; byte <= '~'; byte++) {
        bool upper = byte >= 'A' && byte <= 'Z', digit = byte >= '0' && byte <= '9';
        bool letter = upper || (byte >= 'a' && byte <= 'z');
        ASCII_FLAGS[byte] = letter ? IS_LETTER | (upper ? IS_UPPER : 0) : digit ? IS_DIGIT : IS_MARK;
    }
    add_flag("\t\n\v\f\r\x1C\x1D\x1E\x1F ", IS_BLANK);
    add_flag("{}[]()<>=;_/\\|", IS_BRACKET);
    add_flag("!?", IS_SHOUT);
    add_flag(".!?\"')", IS_END);
    add_flag("-*+", IS_BULLET);
}

/* The class of a code point beyond ASCII; never 0, so that a line that starts with it has a first character. */
INLINE int64_t wide_flags(int64_t point) {
    int64_t flags = kind(point) == SEPARATOR ? IS_MARK : IS_LETTER;
    if (point == 0xA0 || point == 0x3000 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029)
        flags = IS_BLANK;
    if (point < LOWER_SIZE && LOWER[point] != point) flags |= IS_UPPER;
    if (point == 0x2022 || point == 0x25CF || point == 0x25AA) flags |= IS_BULLET;
    if (point == 0x2026 || point == 0x201D || point == 0x3002 || point == 0xFF01 || point == 0xFF1F) flags |= IS_END;
    return flags;
}

/* A set of hashes. */
typedef struct {
    uint64_t *keys;
    int64_t size;
    int shift;
} Set;

static Set empty_set(u64_out keys, int64_t entries) {
    int64_t size = slots_for(entries);
    memset(keys.at, 0, size * sizeof *keys.at);
    return (Set){keys.at, size, shift_for(size)};
}

INLINE bool seen_in(const Set *set, uint64_t value) { return seen(set->keys, set->size, set->shift, value); }

/* A line so far: its characters but white space, their hash, the classes of the first and last one. */
typedef struct {
    int64_t size, first, last;
    uint64_t hash;
} Line;

static const Line EMPTY_LINE = {.hash = FNV};

static void count_line(const Line *line, const Set *lines, int64_t *n) {
    if (!line->size) return;
    n[LINES]++;
    n[ENDED] += (line->last & IS_END) != 0;
    n[SHORT] += line->size <= SHORT_LINE;
    n[BULLETS] += (line->first & IS_BULLET) != 0;
    if (seen_in(lines, line->hash)) {
        n[COPIES]++;
        n[COPIED] += line->size;
    }
}

INLINE void count_flags(int64_t flags, int64_t *n) {
    n[LETTERS] += (flags & (IS_LETTER | IS_DIGIT)) != 0;
    n[UPPER] += (flags & IS_UPPER) != 0;
    n[DIGITS] += (flags & IS_DIGIT) != 0;
    n[MARKS] += (flags & IS_MARK) != 0;
    n[BRACKETS] += (flags & IS_BRACKET) != 0;
    n[SHOUTS] += (flags & IS_SHOUT) != 0;
    n[BLANKS] += (flags & IS_BLANK) != 0;
}

static void count_text(u8_in data, int64_t at, int64_t end, const Set *lines, int64_t *out) {
    int64_t n[COLUMNS] = {0}, run = 0, before = -1;
    bool in_chunk = false;
    Line line = EMPTY_LINE;
    for (int64_t length; at < end; at += length) {
        int64_t point = data.at[at];
        length = 1;
        if (point >= 128) point = decode(data, at, end, &length);
        int64_t flags = point < 128 ? ASCII_FLAGS[point] : wide_flags(point);
        bool blank = flags & IS_BLANK;
        n[POINTS]++;
        n[WIDE_POINTS] += point >= 128;
        count_flags(flags, n);
        n[CHUNKS] += !blank && !in_chunk;
        in_chunk = !blank;
        if (!blank) {
            run = point == before ? run + 1 : 1;
            n[LONGEST] = max_i64(n[LONGEST], run);
            line.first = line.first ? line.first : flags;
            line.last = flags;
            line.size++;
            line.hash = (line.hash ^ point) * PRIME;
        }
        before = point;
        if (point == '\n') {
            count_line(&line, lines, n);
            line = EMPTY_LINE;
        }
    }
    count_line(&line, lines, n);
    memcpy(out, n, sizeof n);
}

/* The number of bytes that end lines. */
static int64_t count_ends(u8_in data, int64_t start, int64_t end) {
    int64_t count = 0;
    for (int64_t at = start; at < end; at++) count += data.at[at] == '\n';
    return count;
}

/* `keys` is scratch memory for sets of half the bytes of the longest text, plus two. */
KERNEL void character_counts(u8_in data, i64_in offsets, u64_out keys, i64_rows_out out) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t start = offsets.at[doc], end = offsets.at[doc + 1];
        Set lines = empty_set(keys, min_i64(count_ends(data, start, end), (end - start) / 2) + 1);
        count_text(data, start, end, &lines, out.at + doc * out.columns);
    }
}

KERNEL void word_counts(u8_in data, i64_in offsets, u64_in common, u64_out words, u64_out keys, i64_rows_out out) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t count = hash_words_of(data, offsets.at[doc], offsets.at[doc + 1], words.at);
        int64_t distinct = 0, listed = 0, pairs = 0, *n = out.at + doc * out.columns;
        Set set = empty_set(keys, count);
        for (int64_t i = 0; i < count; i++) {
            distinct += !seen_in(&set, words.at[i]);
            listed += position_of(common, words.at[i]) >= 0;
        }
        set = empty_set(keys, count);
        for (int64_t i = 0; i < count - 1; i++) pairs += !seen_in(&set, words.at[i] * PRIME + words.at[i + 1]);
        n[WORDS] = count;
        n[DISTINCT] = distinct;
        n[COMMON] = listed;
        n[PAIRS] = pairs;
    }
}
