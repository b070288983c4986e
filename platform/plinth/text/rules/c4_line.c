/* Most texts have none of the phrases and most lines no citation: a scan of the whole text rules them out first. */
#include "text/rules/c4_line.h"

enum { FOUND_LOREM = 1, FOUND_JAVASCRIPT = 2, FOUND_CURLY = 4, FOUND_NOTICE = 8 };
static const struct {
    const char *text;
    int64_t what;
} PHRASES[] = {
    {"lorem ipsum", FOUND_LOREM}, {"javascript", FOUND_JAVASCRIPT}, {"terms of use", FOUND_NOTICE},
    {"privacy policy", FOUND_NOTICE}, {"cookie policy", FOUND_NOTICE}, {"uses cookies", FOUND_NOTICE},
    {"use of cookies", FOUND_NOTICE}, {"use cookies", FOUND_NOTICE},
};
static const bool FIRST_LETTER[256] = {
    ['l'] = 1, ['j'] = 1, ['t'] = 1, ['p'] = 1, ['c'] = 1, ['u'] = 1,
    ['L'] = 1, ['J'] = 1, ['T'] = 1, ['P'] = 1, ['C'] = 1, ['U'] = 1,
};
/* A line that ends with this byte may end a sentence: behind a bracket a citation may be taken out. */
static const bool MAY_END[256] = {['.'] = 1, ['?'] = 1, ['!'] = 1, ['"'] = 1, ['\''] = 1, [']'] = 1};

/* Characters of the longest word. */
static int64_t longest_word(u8_in data, int64_t start, int64_t end, u8_in table) {
    int64_t longest = 0, length = 0;
    for (int64_t at = start; at < end;) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        length = table.at[point] & SPACE ? 0 : length + 1;
        longest = max_i64(longest, length);
        at += size;
    }
    return longest;
}

/* True if a line has at least so many words. */
static bool has_words(u8_in data, int64_t start, int64_t end, int64_t least, u8_in table) {
    int64_t words = 0, inside = 0;
    for (int64_t at = start; at < end && words < least;) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        int64_t word = 1 - (table.at[point] & SPACE);
        words += word & (inside ^ 1);
        inside = word;
        at += size;
    }
    return words >= least;
}

/* Copy a line without citations; returns its bytes. A line without brackets is not copied. */
static int64_t without_citations(const uint8_t *piece, int64_t size, uint8_t *line) {
    if (memchr(piece, '[', size) == NULL) return size;
    int64_t n = 0;
    for (int64_t at = 0; at < size;) {
        int64_t skipped = piece[at] == '[' ? citation_bytes(piece, at, size) : 0;
        if (!skipped) line[n++] = piece[at];
        at += skipped ? skipped : 1;
    }
    return n;
}

/* True if a line ends with one of `.?!"'` and not with three dots. */
static bool ends_sentence(const uint8_t *line, int64_t n) {
    if (n == 0 || line[n - 1] == ']' || !MAY_END[line[n - 1]]) return false;
    return !(n >= 3 && line[n - 1] == '.' && line[n - 2] == '.' && line[n - 3] == '.');
}

/* Which of the phrases occur in upper or lower case, as bits. */
static int64_t find_phrases(const uint8_t *line, int64_t size) {
    int64_t found = 0;
    for (int64_t at = 0; at < size; at++) {
        if (!FIRST_LETTER[line[at]]) continue;
        for (size_t k = 0; k < sizeof PHRASES / sizeof *PHRASES; k++)
            if (phrase_at(line, at, size, PHRASES[k].text)) found |= PHRASES[k].what;
    }
    return found;
}

int64_t judge_line(
    u8_in text, int64_t left, int64_t right, u8_in table, const LineRules *rules, uint8_t *line, MayHold may,
    int64_t *counts
) {
    counts[LINES]++;
    int64_t whole = right - left, longest = rules->max_word_characters;
    if (whole > longest && longest_word(text, left, right, table) > longest) {
        counts[LONG_WORD]++;
        return -1;
    }
    if (rules->ends_required && !(whole > 0 && MAY_END[text.at[right - 1]])) {
        counts[UNENDED]++;
        return -1;
    }
    const uint8_t *piece = text.at + left;
    int64_t size = may.square ? without_citations(piece, whole, line) : whole;
    if (size < whole) piece = line;
    if (rules->ends_required && !ends_sentence(piece, size)) {
        counts[UNENDED]++;
        return -1;
    }
    if (!has_words(text, left, right, rules->min_words, table)) {
        counts[FEW_WORDS]++;
        return -1;
    }
    int64_t found = may.phrases || size < whole ? find_phrases(piece, size) : 0;
    if (may.curly && memchr(piece, '{', size)) found |= FOUND_CURLY;
    counts[KEPT] += !found;
    counts[LOREM_IPSUM] += found & FOUND_LOREM;
    counts[JAVASCRIPT] += (found & 3) == FOUND_JAVASCRIPT;
    counts[CURLY_BRACKET] += (found & 3) == 0 && (found & FOUND_CURLY) != 0;
    counts[NOTICE] += found == FOUND_NOTICE;
    return found ? -1 : size;
}

INLINE bool is_end(uint8_t byte) { return (byte == '.') | (byte == '!') | (byte == '?'); }

int64_t sentences_at_white_space(const uint8_t *line, int64_t size) {
    bool ends = false;
    for (int64_t i = 0; i < size; i++) ends |= is_end(line[i]);
    if (!ends) return 1;
    int64_t sentences = 0;
    bool text = false; /* something but ends and spaces since the last sentence */
    for (int64_t at = 0; at < size;) {
        uint8_t byte = line[at++];
        if (!is_end(byte)) {
            text |= byte > 32;
            continue;
        }
        while (at < size && is_end(line[at])) at++;
        while (at < size && (line[at] == '"' || line[at] == '\'' || line[at] == ')')) at++;
        if (at == size || line[at] == ' ' || line[at] == '\t') {
            sentences += text;
            text = false;
        }
    }
    return sentences + (text || sentences == 0);
}
