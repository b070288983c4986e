/* True if a chunk is a URL for spaCy (`URL_PATTERN` of `spacy/lang/tokenizer_exceptions.py`), and so one word.

   The expression is `scheme? user? (address | host) port? path?`. A scheme and a user only set where the host may
   start: at the chunk's start, behind `://`, or behind any `@`. Labels of a host have no period in them, so periods
   separate them, and the last of them is all small letters up to the port, the path or the end. One pass over the
   chunk decides. */
#pragma once
#include "plinth_text/english/tables.h"

/* A port, a path, both or neither, up to the end. */
static inline bool rest_of_url(const int32_t *points, int64_t at, int64_t high, const uint16_t *flags) {
    if (at < high && points[at] == ':') {
        int64_t start = ++at;
        while (at < high && flags[points[at]] & E_NUMBER) at++;
        if (at - start < 2 || at - start > 5) return false;
    }
    return at == high || points[at] == '/' || points[at] == '?' || points[at] == '#';
}

/* True if the last label is here: 2 to 63 small letters, and what may follow a host. */
static inline bool top_label(const int32_t *points, int64_t low, int64_t high, const uint16_t *flags) {
    int64_t at = low;
    while (at < high && flags[points[at]] & E_LOWER) at++;
    return at - low >= 2 && at - low <= 63 && rest_of_url(points, at, high, flags);
}

/* Four numbers of a public network, as the expression has them. */
static inline bool address(const int32_t *points, int64_t low, int64_t high, const uint16_t *flags) {
    int64_t at = low, first = 0, second = 0;
    for (int part = 0; part < 4; part++) {
        int64_t start = at, value = 0;
        for (; at < high && points[at] >= '0' && points[at] <= '9' && at - start < 4; at++)
            value = 10 * value + points[at] - '0';
        int64_t size = at - start;
        if (size == 0 || size > 3 || (part < 3 && (at == high || points[at] != '.'))) return false;
        bool zeros = size > 1 && points[start] == '0';
        if (part == 0 || part == 3) {
            if (value == 0 || zeros || value > (part == 0 ? 223 : 254)) return false;
        } else if (value > 255 || (size == 3 && zeros)) {
            return false;
        }
        if (part == 0) first = value;
        if (part == 1) second = value;
        at += part < 3;
    }
    if (first == 10 || first == 127 || (first == 169 && second == 254) || (first == 192 && second == 168)) return false;
    return !(first == 172 && second >= 16 && second <= 31) && rest_of_url(points, at, high, flags);
}

/* True if an address or a host starts here, with nothing behind it but a port and a path. */
static inline bool url_from(const int32_t *points, int64_t low, int64_t high, const uint16_t *flags) {
    if (points[low] >= '1' && points[low] <= '9' && address(points, low, high, flags)) return true;
    int64_t begin = low;
    for (int64_t labels = 0;; labels++) {
        int64_t stop = begin;
        while (stop < high && (flags[points[stop]] & E_HOST || points[stop] == '_' || points[stop] == '-')) stop++;
        if (labels && top_label(points, begin, high, flags)) return true;
        int64_t size = stop - begin;
        if (stop == high || points[stop] != '.' || size == 0 || size > 64) return false;
        if (!(flags[points[begin]] & E_HOST && flags[points[stop - 1]] & E_HOST)) return false;
        begin = stop + 1;
    }
}

/* Where the chunk goes on behind `scheme://`; its start where there is none. */
static inline int64_t behind_scheme(const int32_t *points, int64_t low, int64_t high, const uint16_t *flags) {
    int64_t at = low;
    while (at < high && (flags[points[at]] & E_NAME || points[at] == '+' || points[at] == '-' || points[at] == '.'))
        at++;
    bool found = at - low > 1 && at + 2 < high && points[at] == ':';
    return found && points[at + 1] == '/' && points[at + 2] == '/' ? at + 3 : low;
}

static inline bool is_url(const int32_t *points, int64_t low, int64_t high, const uint16_t *flags) {
    bool dots = false;
    for (int64_t at = low; at < high; at++) dots |= points[at] == '.';
    if (!dots) return false;
    if (url_from(points, low, high, flags)) return true;
    int64_t scheme = behind_scheme(points, low, high, flags);
    if (low < scheme && scheme < high && url_from(points, scheme, high, flags)) return true;
    for (int64_t at = low + 1; at < high - 1; at++)
        if (points[at] == '@' && url_from(points, at + 1, high, flags)) return true;
    return false;
}
