/* Most texts have none of the phrases and most lines no citation: a scan of the whole text rules them out first. */
#include "plinth_text/rules/c4_line.h"

enum { FOUND_LOREM = 1, FOUND_JAVASCRIPT = 2, FOUND_CURLY = 4, FOUND_NOTICE = 8 };
static const struct {
    const char *text;
    int64_t what;
} PHRASES[] = {
    {"lorem ipsum", FOUND_LOREM}, {"javascript", FOUND_JAVASCRIPT}, {"terms of use", FOUND_NOTICE},
    {"privacy policy", FOUND_NOTICE}, {"cookie policy", FOUND_NOTICE}, {"uses cookies", FOUND_NOTICE},
    {"use of cookies", FOUND_NOTICE}, {"use cookies", FOUND_NOTICE},
};
/* By byte: a bit for each phrase that starts with this letter. */
static const uint8_t STARTS[256] = {
    ['l'] = 1, ['j'] = 2, ['t'] = 4, ['p'] = 8, ['c'] = 16, ['u'] = 224,
    ['L'] = 1, ['J'] = 2, ['T'] = 4, ['P'] = 8, ['C'] = 16, ['U'] = 224,
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

/* True if a line has at least this number of words. */
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
        for (unsigned left = STARTS[line[at]]; left; left &= left - 1) {
            int k = __builtin_ctz(left);
            if (phrase_at(line, at, size, PHRASES[k].text)) found |= PHRASES[k].what;
        }
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

/* Classes of bytes: the end of a sentence, and text. */
enum { IS_END = 1, IS_TEXT = 2 };
static const uint8_t SENTENCE[256] = {
    ['!'] = IS_END, [34 ... 45] = IS_TEXT, ['.'] = IS_END, [47 ... 62] = IS_TEXT, ['?'] = IS_END, [64 ... 255] = IS_TEXT,
};

int64_t sentences_at_white_space(const uint8_t *line, int64_t size) {
    uint8_t ends = 0;
    for (int64_t i = 0; i < size; i++) ends |= (line[i] == '.') | (line[i] == '!') | (line[i] == '?');
    if (!ends) return 1;
    int64_t sentences = 0;
    uint8_t text = 0; /* IS_TEXT: something but ends and spaces since the last sentence */
    const uint8_t *stop = line + size;
    while (line < stop) {
        uint8_t what = SENTENCE[*line++];
        text |= what;
        if (__builtin_expect(what != IS_END, 1)) continue;
        while (line < stop && SENTENCE[*line] == IS_END) line++;
        while (line < stop && (*line == '"' || *line == '\'' || *line == ')')) line++;
        if (line == stop || *line == ' ' || *line == '\t') {
            sentences += text >= IS_TEXT;
            text = 0;
        }
    }
    return sentences + (text >= IS_TEXT || sentences == 0);
}
