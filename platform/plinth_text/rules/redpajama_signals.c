#include "plinth_text/unicode/classes.h"
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/hash_lookup.h"
#include "plinth_text/words/repeated_ngrams.h"
#include "plinth_text/words/word_run.h"

enum {
    WORDS, MEAN, UNIQUE, ENTROPY, TOP_2, REPEATED_5 = 7, LOREM = 13, JAVASCRIPT, LINE_WORDS, LINE_NUMERICAL, RAW,
    SYMBOLS, NO_LETTER, CAPITALS_ONLY, STOPS, CURLY, SENTENCES, LINES, ELLIPSES, BULLETS, TERMINALS, LINE_UPPER,
    SIGNALS,
};
enum { ELLIPSIS = 0x2026, CLOSING_QUOTE = 0x201D, SIGMA = 0x3A3 };
/* Characters that start a line as a list's item does. */
static const int64_t BULLET_POINTS[] = {
    0x2022, 0x2023, 0x25B6, 0x25C0, 0x25E6, 0x25A0, 0x25A1, 0x25AA, 0x25AB, 0x2013,
};

INLINE bool ascii_letter(int64_t point) { return (point | 32) >= 'a' && (point | 32) <= 'z'; }

INLINE bool ascii_punctuation(int64_t point) {
    return (point >= '!' && point <= '/') || (point >= ':' && point <= '@') || (point >= '[' && point <= '`') ||
           (point >= '{' && point <= '~');
}

/* A token of the raw text that is open; `kind` 0: none, 1: a word, 2: signs. */
typedef struct {
    int kind;
    bool letter, upper, other;
    uint64_t value;
} Token;

/* A line that is open: characters, capitals, first and last character, dots at the end. */
typedef struct {
    int64_t size, capitals, first, last, dots;
} OpenLine;

static const OpenLine NO_LINE = {0, 0, -1, -1, 0};

INLINE void end_token(double *row, const Token *token, u64_in stops) {
    row[RAW] += 1;
    row[NO_LETTER] += token->letter; /* words with one; turned round at the end */
    row[CAPITALS_ONLY] += token->upper && !token->other;
    if (stops.size && token->kind == 1) row[STOPS] += position_of(stops, token->value) >= 0;
}

INLINE void end_line(double *row, const OpenLine *line) {
    int64_t last = line->last;
    row[LINES] += 1;
    row[ELLIPSES] += line->dots >= 3 || last == ELLIPSIS;
    row[TERMINALS] += last == '.' || last == '!' || last == '?' || last == CLOSING_QUOTE;
    row[LINE_UPPER] += (double)line->capitals / (double)line->size;
    if (line->first < 0x2013) return;
    for (size_t k = 0; k < sizeof BULLET_POINTS / sizeof *BULLET_POINTS; k++)
        row[BULLETS] += BULLET_POINTS[k] == line->first;
}

/* The signals of raw words, characters and lines of one text. */
static void raw_signals(u8_in data, int64_t start, int64_t end, u16_in table, u64_in stops, double *row) {
    int64_t characters = 0, symbols = 0, curly = 0, dots_in_text = 0, previous = -1;
    bool worded = false;
    Token token = {0, false, false, false, FNV};
    OpenLine line = NO_LINE;
    for (int64_t at = start; at < end;) {
        int64_t step = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &step);
        at += step;
        uint16_t flag = table.at[point];
        int now = flag & C_SPACE ? 0 : flag & C_WORD ? 1 : 2;
        if (now != token.kind) {
            if (token.kind) end_token(row, &token, stops);
            token = (Token){now, false, false, false, FNV};
        }
        characters++;
        line.size++;
        line.capitals += (flag & C_UPPER) != 0;
        if (now) {
            token.letter |= point < 128 && ascii_letter(point);
            token.upper |= (flag & C_UPPER) != 0;
            token.other |= (flag & C_NOT_UPPER) != 0;
            token.value = (token.value ^ (uint64_t)point) * PRIME;
            if (line.first < 0) line.first = point;
            line.last = point;
            line.dots = point != '.' ? 0 : previous == '.' ? line.dots + 1 : 1;
            worded |= now == 1;
            if (now == 2) {
                symbols += (point == '#') | (point == ELLIPSIS);
                curly += (point == '{') | (point == '}');
                if (point == '.' || point == '!' || point == '?') {
                    row[SENTENCES] += worded;
                    worded = false;
                }
            }
        }
        dots_in_text = point == '.' ? dots_in_text + 1 : 0;
        if (dots_in_text == 3) {
            symbols++;
            dots_in_text = 0;
        }
        previous = point;
        if (point == '\n') {
            end_line(row, &line);
            line = NO_LINE;
        }
    }
    if (token.kind) end_token(row, &token, stops);
    if (line.size) end_line(row, &line);
    row[SENTENCES] += worded;
    row[CURLY] = (double)curly / (double)max_i64(characters, 1);
    double raw = row[RAW] > 1 ? row[RAW] : 1, lines = row[LINES] > 1 ? row[LINES] : 1;
    row[SYMBOLS] = (double)symbols / raw;
    row[NO_LETTER] = row[RAW] != 0 ? 1 - row[NO_LETTER] / raw : 0;
    row[CAPITALS_ONLY] /= raw;
    row[STOPS] /= raw;
    for (int column = ELLIPSES; column <= LINE_UPPER; column++) row[column] /= lines;
}

KERNEL void raw(u8_in data, i64_in offsets, u16_in table, u64_in stops, f64_rows_out out) {
    for (int64_t doc = 0; doc < offsets.size - 1; doc++)
        raw_signals(data, offsets.at[doc], offsets.at[doc + 1], table, stops, out.at + doc * SIGNALS);
}

/* Share of different words; `entropy` becomes that of their distribution in nats. */
static double unique_words(const uint64_t *keys, const int32_t *counts, int64_t slots, int64_t n, double *entropy) {
    int64_t different = 0;
    double sum = 0;
    for (int64_t slot = 0; slot < slots; slot++) {
        if (!keys[slot]) continue;
        different++;
        double share = (double)counts[slot] / (double)n;
        sum -= share * log(share);
    }
    *entropy = sum;
    return (double)different / (double)n;
}

/* Tables of normal forms, as `unicode.expansions()` has them. */
typedef struct {
    i32_in starts;
    u32_in points;
    u8_in numeric, combines;
} Forms;

#define LOREM_WORD 0x6C6F72656Du
#define IPSUM_WORD 0x697073756Du
#define FIVE_LETTERS 0xFFFFFFFFFFu

static uint64_t javascript_hash(void) {
    uint64_t value = FNV;
    for (const char *at = "javascript"; *at; at++) value = (value ^ (uint8_t)*at) * PRIME;
    return value;
}

/* Hash and measure the normalized words; returns how many, -1 where the table cannot normalize this text. */
static int64_t normal_words(
    u8_in data, int64_t start, int64_t end, u16_in table, const Forms *forms, bool plain, uint64_t *words,
    int64_t *characters, double *row
) {
    const uint64_t javascript = javascript_hash();
    WordRun run = no_words(words, characters);
    int64_t line_size = 0, line_words = 0, lines = 0, in_line = 0, line_numeric = 0, step;
    uint64_t head = 0, tail = 0; /* first and last five letters */
    bool marked = false, lorem = false;
    double shares = 0;
    for (int64_t at = start; at <= end; at += step) {
        int64_t point = point_or_end(data, at, end, &step);
        uint16_t flag = table.at[point];
        in_line++;
        if (flag & C_SPACE) {
            if (run.size) {
                row[LOREM] += lorem && head == IPSUM_WORD;
                row[JAVASCRIPT] += run.size == 10 && run.value == javascript;
                lorem = tail == LOREM_WORD;
                line_words++;
                line_size += run.size;
                close_word(&run);
                marked = false;
                head = tail = 0;
            }
            if (point == '\n' && (at < end || in_line > 1)) {
                lines++;
                if (line_words) shares += (double)line_numeric / (double)(line_size + line_words - 1);
                line_size = line_words = line_numeric = in_line = 0;
            }
        } else if (point < 128) {
            if (plain || !ascii_punctuation(point)) {
                uint64_t letter = point >= 'A' && point <= 'Z' ? point + 32 : point;
                hash_character(&run, letter);
                line_numeric += point >= '0' && point <= '9';
                if (run.size <= 5) head = head << 8 | letter;
                tail = (tail << 8 | letter) & FIVE_LETTERS;
                marked = false;
            }
        } else {
            if (run.size < 5) head <<= 8;
            tail = 0;
            if (point >= forms->numeric.size) {
                hash_character(&run, point);
                line_numeric += (flag & C_NUMERIC) != 0;
                marked = false;
            } else {
                if (!plain && (point == SIGMA || (marked && forms->combines.at[point] & 1))) return -1;
                marked = (forms->combines.at[point] & 2) != 0;
                line_numeric += forms->numeric.at[point];
                if (plain) {
                    hash_character(&run, point);
                } else {
                    for (int64_t k = forms->starts.at[point]; k < forms->starts.at[point + 1]; k++)
                        hash_character(&run, forms->points.at[k]);
                }
            }
        }
    }
    row[LINE_WORDS] = (double)run.count / (double)max_i64(lines, 1);
    row[LINE_NUMERICAL] = shares / (double)max_i64(lines, 1);
    return run.count;
}

KERNEL void normal(
    u8_in data, i64_in offsets, u16_in table, i32_in starts, u32_in points, u8_in numeric, u8_in combines, bool plain,
    u64_out keys, i32_out counts, i32_out spots, i32_out ids, u64_out words, i64_out characters, f64_rows_out out,
    bool_out hard
) {
    Forms forms = {starts, points, numeric, combines};
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        double *row = out.at + doc * SIGNALS;
        int64_t n = normal_words(
            data, offsets.at[doc], offsets.at[doc + 1], table, &forms, plain, words.at, characters.at, row);
        hard.at[doc] = n < 0;
        if (n <= 0) continue;
        int64_t total = characters.at[n], slots, where, most;
        row[WORDS] = n;
        row[MEAN] = (double)total / (double)n;
        row[LOREM] /= (double)(total + n - 1);
        int64_t found = repeated_words(words.at, n, keys.at, counts.at, spots.at, ids.at, &slots);
        row[UNIQUE] = unique_words(keys.at, counts.at, slots, n, &row[ENTROPY]);
        for (int64_t size = 2; size < 11; size++) {
            found = extend(spots.at, ids.at, found, keys.at, counts.at, &where, &most);
            if (!found) continue;
            int64_t held = size < 5 ? most * (characters.at[where + size] - characters.at[where])
                                    : covered(spots.at, found, size, characters.at);
            row[size < 5 ? TOP_2 - 2 + size : REPEATED_5 - 5 + size] = (double)held / (double)total;
        }
    }
}
