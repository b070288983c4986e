/* What spaCy splits off at the ends of a chunk, and where it splits inside.

   A chunk is code points points[low:high], none of them white space. Each function is one regular expression of
   `spacy/lang/punctuation.py` and `spacy/lang/en/punctuation.py`, with the order of its alternatives; what is outside
   the chunk does not count. */
#pragma once
#include "plinth_text/english/tables.h"

enum { CURLY_QUOTE = 0x2019, ELLIPSIS = 0x2026, EM_DASH = 0x2014, EN_DASH = 0x2013, DEGREE = 0xB0 };

INLINE bool is_digit(int32_t point) { return (point >= '0') & (point <= '9'); }

/* The prefix that starts with a plus, a dot or a letter. */
static inline int64_t rare_prefix(const int32_t *points, int64_t low, int64_t high) {
    int32_t first = points[low];
    if (first == '+') return low + 1 == high || !is_digit(points[low + 1]);
    if (first == '.') {
        int64_t at = low + 1;
        while (at < high && points[at] == '.') at++;
        return at - low > 1 ? at - low : 0;
    }
    if (first == 'U') return high - low > 2 && points[low + 1] == 'S' && points[low + 2] == '$' ? 3 : 0;
    return (first == 'C' || first == 'A') && high - low > 1 && points[low + 1] == '$' ? 2 : 0;
}

/* Characters of the prefix; 0 where there is none. */
INLINE int64_t prefix(const int32_t *points, int64_t low, int64_t high, const uint16_t *flags) {
    int32_t first = points[low];
    if (first == '+' || first == '.' || first == 'U' || first == 'C' || first == 'A')
        return rare_prefix(points, low, high);
    return (flags[first] & E_PREFIX) != 0;
}

/* The suffix of a chunk that ends with a period: a run of them, or the last, by what is before it. */
static inline int64_t period_suffix(const int32_t *points, int64_t low, int64_t high, const uint16_t *flags) {
    int64_t at = high - 1;
    while (at > low && points[at - 1] == '.') at--;
    if (high - at > 1) return high - at;
    if (at == low) return 0;
    int32_t before = points[at - 1];
    if (flags[before] & E_BEFORE_PERIOD) return 1;
    if (at - low < 2) return 0;
    int32_t second = points[at - 2], letter = before | 32;
    if (second == DEGREE && (letter == 'c' || letter == 'f' || letter == 'k')) return 1;
    return (flags[before] & E_UPPER) != 0 && (flags[second] & E_UPPER) != 0;
}

/* Characters of the unit or currency behind the last digit; 0 where that is none. */
static inline int64_t unit_suffix(const int32_t *points, int64_t low, int64_t high, const uint64_t *tables) {
    int64_t at = high - 1, least = max_i64(low, high - LONGEST_UNIT - 1);
    while (at >= least && !is_digit(points[at])) at--;
    if (at < least || at == high - 1) return 0;
    return find_slot(tables, UNITS, UNIT_BITS, points_hash(points, at + 1, high)) >= 0 ? high - 1 - at : 0;
}

/* The suffix that what is before its last character decides. */
static inline int64_t rare_suffix(
    const int32_t *points, int64_t low, int64_t high, bool digits, const uint16_t *flags, const uint64_t *tables
) {
    int32_t last = points[high - 1], before = high - low > 1 ? points[high - 2] : -1;
    if (last == '.') return period_suffix(points, low, high, flags);
    if ((last == 's' || last == 'S') && (before == '\'' || before == CURLY_QUOTE)) return 2;
    if (last == ELLIPSIS && before == ELLIPSIS) return 2;
    if (last == '+') return before >= 0 && is_digit(before);
    int64_t unit = digits ? unit_suffix(points, low, high, tables) : 0;
    return max_i64(unit, (flags[last] & E_SUFFIX) != 0);
}

/* Characters of the longest suffix; 0 where there is none. `digits`: the chunk may have some. */
INLINE int64_t suffix(
    const int32_t *points, int64_t low, int64_t high, bool digits, const uint16_t *flags, const uint64_t *tables
) {
    if (low >= high) return 0;
    int32_t last = points[high - 1];
    if (digits || last == '.' || last == 's' || last == 'S' || last == ELLIPSIS || last == '+')
        return rare_suffix(points, low, high, digits, flags, tables);
    return (flags[last] & E_SUFFIX) != 0;
}

/* One to three hyphens, or one or two dashes, before a letter. */
static inline int64_t hyphens(const int32_t *points, int64_t high, int64_t at, const uint16_t *flags) {
    int32_t point = points[at];
    int64_t most = point == '-' ? 3 : point == EM_DASH ? 2 : 1;
    for (int64_t size = 1; size <= most; size++) {
        if (at + size >= high) return 0;
        if (flags[points[at + size]] & E_LETTER) return size;
        if (points[at + size] != point) return 0;
    }
    return 0;
}

/* Characters of the infix that starts at `at`; 0 where none does. */
static inline int64_t infix(const int32_t *points, int64_t low, int64_t high, int64_t at, const uint16_t *flags) {
    int32_t point = points[at];
    if (flags[point] & E_INFIX) return 1;
    if (point >= 128) {
        if (point != EM_DASH && point != EN_DASH) return 0;
    } else if (flags[point] & E_LETTER || is_digit(point)) {
        return 0;
    }
    if (point == '.') {
        int64_t stop = at + 1;
        while (stop < high && points[stop] == '.') stop++;
        if (stop - at > 1) return stop - at;
    }
    if (at == low) return 0;
    uint16_t before = flags[points[at - 1]], after = at + 1 < high ? flags[points[at + 1]] : 0;
    if (point == '.') return (before & (E_LOWER | E_QUOTE)) != 0 && (after & (E_UPPER | E_QUOTE)) != 0;
    if (point == ',') return (before & E_LETTER) != 0 && (after & E_LETTER) != 0;
    bool number = is_digit(points[at - 1]);
    bool is_signed = at + 1 < high && (is_digit(points[at + 1]) || points[at + 1] == '-');
    if (number && is_signed && (point == '+' || point == '-' || point == '*' || point == '^')) return 1;
    if (!(number || before & E_LETTER)) return 0;
    if (point == '-' || point == EM_DASH || point == EN_DASH || point == '~') return hyphens(points, high, at, flags);
    return (point == ':' || point == '<' || point == '>' || point == '=' || point == '/') && (after & E_LETTER) != 0;
}
