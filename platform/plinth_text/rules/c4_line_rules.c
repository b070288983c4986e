#include "plinth_text/rules/phrases.h"
#include "plinth_text/unicode/characters.h"
#include "plinth_text/unicode/codepoints.h"

/* Facts of a line, as in `c4.py`. */
enum {
    LOREM_IPSUM = 1, JAVASCRIPT = 2, CURLY_BRACKET = 4, NOTICE = 8, LONG_WORD = 16, EMPTY = 32, BLANK = 64, ENDED = 128,
    APOSTROPHE = 256, DOTS = 512, BARE_ENDED = 1024, BARE_DOTS = 2048,
};
static const struct {
    const char *text;
    uint16_t what;
} PHRASES[] = {
    {"lorem ipsum", LOREM_IPSUM}, {"javascript", JAVASCRIPT}, {"{", CURLY_BRACKET}, {"terms of use", NOTICE},
    {"privacy policy", NOTICE}, {"cookie policy", NOTICE}, {"uses cookies", NOTICE}, {"use of cookies", NOTICE},
    {"use cookies", NOTICE},
};
static const bool FIRST_BYTE[256] = {['l'] = 1, ['j'] = 1, ['{'] = 1, ['t'] = 1, ['p'] = 1, ['c'] = 1, ['u'] = 1};
/* Bytes that can be the last of a line break. */
static const bool BREAK_BYTE[256] = {
    [0x0A ... 0x0D] = 1, [0x1C ... 0x1E] = 1, [0x85] = 1, [0xA8] = 1, [0xA9] = 1,
};

KERNEL void upper_bounds(u8_in data, i64_in offsets, int64_t *lines, int64_t *citations) {
    int64_t breaks = offsets.size, brackets = 0;
    for (int64_t at = offsets.at[0]; at < offsets.at[offsets.size - 1]; at++) {
        breaks += BREAK_BYTE[data.at[at]];
        brackets += data.at[at] == '[';
    }
    *lines = breaks;
    *citations = brackets;
}

/* Citations found so far: the line of each, and its code points. */
typedef struct {
    int64_t count;
    int64_t *line;
    int32_t *begin, *end;
} Citations;

/* Copy a line without citations, whose first character is code point `cp`; returns its bytes. */
static int64_t without_citations(
    const uint8_t *data, int64_t left, int64_t right, int64_t cp, int64_t line, uint8_t *scratch, Citations *cited
) {
    int64_t n = 0;
    for (int64_t at = left; at < right;) {
        int64_t size = data[at] == '[' ? citation_bytes(data, at, right) : 0;
        if (size) {
            cited->line[cited->count] = line;
            cited->begin[cited->count] = cp;
            cited->end[cited->count++] = cp + size;
            at += size;
            cp += size;
        } else {
            scratch[n++] = data[at];
            cp += (data[at++] & 0xC0) != 0x80;
        }
    }
    return n;
}

static bool ends_with_dots(const uint8_t *text, int64_t n) {
    return n >= 3 && text[n - 1] == '.' && text[n - 2] == '.' && text[n - 3] == '.';
}

static bool is_end(uint8_t byte) { return byte == '.' || byte == '!' || byte == '?'; }

/* Which phrases start here, in any case of ASCII, as bits. */
static uint16_t phrases_at(const uint8_t *text, int64_t at, int64_t n) {
    uint16_t found = 0;
    for (size_t k = 0; k < sizeof PHRASES / sizeof *PHRASES; k++)
        if (phrase_at(text, at, n, PHRASES[k].text)) found |= PHRASES[k].what;
    return found;
}

/* Facts of how a line ends; `bare`: without white space that its citations left. */
static uint16_t end_facts(const uint8_t *text, int64_t n, int64_t bare) {
    uint8_t last = n ? text[n - 1] : 0, bare_last = bare ? text[bare - 1] : 0;
    bool ellipsis = bare >= 3 && text[bare - 3] == 0xE2 && text[bare - 2] == 0x80 && text[bare - 1] == 0xA6;
    uint16_t facts = is_end(last) || last == '"' ? ENDED : 0;
    facts |= last == '\'' ? APOSTROPHE : 0;
    facts |= ends_with_dots(text, n) ? DOTS : 0;
    facts |= is_end(bare_last) || bare_last == '"' || ellipsis ? BARE_ENDED : 0;
    return facts | (ends_with_dots(text, bare) || ellipsis ? BARE_DOTS : 0);
}

/* Facts of a line without citations; `words` and `sentences` are counted. */
static uint16_t line_facts(u8_in text, u8_in table, int32_t *words, int32_t *sentences) {
    int64_t n = text.size, skip = 0, bare = 0;
    int32_t counted = 0, closed = 0;
    bool in_word = false, open_text = false;
    uint16_t facts = 0;
    for (int64_t at = 0; at < n;) {
        uint8_t byte = text.at[at];
        int64_t size = 1, point = byte;
        if (byte >= 128) point = decode(text, at, n, &size);
        bool space = (table.at[point] & SPACE) != 0;
        counted += !space && !in_word;
        in_word = !space;
        if (!space) bare = at + size;
        if (FIRST_BYTE[lower_byte(byte)]) facts |= phrases_at(text.at, at, n);
        if (at >= skip) {
            if (is_end(byte)) {
                skip = at + 1;
                while (skip < n && is_end(text.at[skip])) skip++;
                while (skip < n && (text.at[skip] == '"' || text.at[skip] == '\'' || text.at[skip] == ')')) skip++;
                if (skip == n || text.at[skip] == ' ' || text.at[skip] == '\t') {
                    closed += open_text;
                    open_text = false;
                }
            } else {
                open_text = open_text || byte > 32;
            }
        }
        at += size;
    }
    *words = counted;
    *sentences = max_i64(1, closed + open_text);
    return facts | end_facts(text.at, n, bare);
}

/* A line up to its end: bytes and code points. */
typedef struct {
    int64_t at, cp;             /* behind its last character */
    int64_t left, right, bare;  /* without white space around it, in bytes; code point of `left` */
    int64_t longest;            /* word */
    int64_t point, size;        /* of the line end */
    bool brackets, broke;
} Line;

static Line scan_line(u8_in data, int64_t start, int64_t end, int64_t cp, u8_in table, bool all_breaks) {
    Line line = {start, cp, -1, start, cp, 0, 0, 0, false, false};
    int64_t length = 0;
    while (line.at < end) {
        line.size = 1;
        line.point = data.at[line.at];
        if (line.point >= 128) line.point = decode(data, line.at, end, &line.size);
        uint8_t flag = table.at[line.point];
        if (line.point == 10 || (all_breaks && flag & BREAK)) {
            line.broke = true;
            break;
        }
        if (flag & SPACE) {
            length = 0;
        } else {
            if (line.left < 0) {
                line.left = line.at;
                line.bare = line.cp;
            }
            line.right = line.at + line.size;
            line.longest = max_i64(line.longest, ++length);
            line.brackets |= line.point == '[';
        }
        line.at += line.size;
        line.cp++;
    }
    return line;
}

KERNEL int64_t find_lines(
    u8_in data, i64_in offsets, u8_in table, bool all_breaks, int64_t max_word, bool citations, u8_out scratch,
    i64_out starts, i32_rows_out numbers, u16_out facts, i64_out cite_line, i32_rows_out cites, i64_out characters,
    int64_t *cited
) {
    int64_t count = 0;
    Citations found = {0, cite_line.at, cites.at, cites.at + cites.columns};
    int32_t *begins = numbers.at, *ends = begins + numbers.columns, *words = ends + numbers.columns;
    int32_t *sentences = words + numbers.columns;
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t at = offsets.at[doc], end = offsets.at[doc + 1], cp = 0;
        for (bool more = at < end || !all_breaks; more; count++) {
            Line line = scan_line(data, at, end, cp, table, all_breaks);
            uint16_t what = (line.at == at ? EMPTY : 0) | (line.left < 0 ? BLANK : 0);
            what |= line.longest > max_word ? LONG_WORD : 0;
            int64_t left = line.left >= 0 ? line.left : line.right, n = line.right - left;
            if (line.brackets && citations)
                n = without_citations(data.at, left, line.right, line.bare, count, scratch.at, &found);
            else
                memcpy(scratch.at, data.at + left, n);
            begins[count] = cp;
            at = line.at;
            cp = line.cp;
            if (line.broke) {
                bool pair = all_breaks && line.point == 13 && at + 1 < end && data.at[at + 1] == 10;
                at += line.size + pair;
                cp += 1 + pair;
            }
            ends[count] = cp;
            facts.at[count] = what | line_facts((u8_in){scratch.at, n}, table, words + count, sentences + count);
            more = line.broke && (at < end || !all_breaks);
        }
        starts.at[doc + 1] = count;
        characters.at[doc] = cp;
    }
    *cited = found.count;
    return count;
}
