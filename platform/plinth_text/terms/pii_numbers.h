/* Numbers that may be personal data, by their form or by words near them.

   A number is up to 24 digits in groups. Its form is the lengths of its first eight groups, four bits each, and the
   characters between them, eight bits each. */
#pragma once
#include "plinth_text/terms/pii_words.h"

enum {
    BEFORE = 64, /* bytes before and after a number in which words are looked for */
    AFTER = 32,
    MAX_NUMBER = 48, /* bytes and digits that a number may have */
    MAX_DIGITS = 24,
    MIN_DIGITS = 6,
};

/* Groups of digits, and their separators. */
typedef struct {
    int64_t form, between, groups, digits, dots, end;
    uint8_t before; /* the byte before the number */
    bool trunk;     /* one zero first */
} Number;

/* Bytes between two groups of one number: one of ` -./`, or up to three with a bracket or a hard space; else 0. */
INLINE int64_t joint(const Text *text, int64_t at) {
    uint8_t byte = text->data[at];
    uint8_t next = at + 1 < text->end ? text->data[at + 1] : 0;
    uint8_t third = at + 2 < text->end ? text->data[at + 2] : 0;
    bool plain = byte == ' ' || byte == '-' || byte == '.' || byte == '/';
    if ((plain || byte == ')') && BYTE_CLASSES[next] & DIGIT) return 1;
    bool closed = byte == ')' && (next == ' ' || next == '-' || next == '/');
    bool hard_space = byte == 0xC2 && next == 0xA0;
    return ((plain && next == '(') || closed || hard_space) && BYTE_CLASSES[third] & DIGIT ? 2 : 0;
}

/* Bytes of a slash between spaces, perhaps after a bracket, before a digit; else 0. */
INLINE int64_t slash(const Text *text, int64_t at) {
    int64_t start = text->data[at] == ')' ? at + 1 : at;
    if (start + 3 >= text->end) return 0;
    const uint8_t *four = text->data + start;
    bool found = four[0] == ' ' && four[1] == '/' && four[2] == ' ' && BYTE_CLASSES[four[3]] & DIGIT;
    return found ? start + 3 - at : 0;
}

/* Read the groups from the digit at `at` on. */
INLINE Number read_number(const Text *text, int64_t at) {
    Number n = {.end = at, .before = byte_before(text, at)};
    n.trunk = text->data[at] == '0' && at + 1 < text->end && text->data[at + 1] != '0';
    int64_t length = 0;
    while (n.end < text->end && n.end - at < MAX_NUMBER && n.digits < MAX_DIGITS) {
        if (class_at(text, n.end) & DIGIT) {
            length++;
            n.digits++;
            n.end++;
            continue;
        }
        int64_t skip = joint(text, n.end);
        if (!skip && n.digits <= 6 && (n.trunk || n.before == '+')) skip = slash(text, n.end);
        if (!skip) break;
        uint8_t byte = text->data[n.end];
        if (n.groups < 8) n.form |= min_i64(length, 15) << (4 * n.groups);
        if (n.groups < 7) n.between |= (int64_t)(skip < 3 ? byte : '/') << (8 * n.groups);
        n.dots += byte == '.' && skip == 1;
        n.groups++;
        length = 0;
        n.end += skip;
    }
    if (n.groups < 8) n.form |= min_i64(length, 15) << (4 * n.groups);
    n.groups++;
    return n;
}

/* True if an area code of three to five digits is in brackets, or before a slash. */
INLINE bool has_area(const Number *n) {
    int64_t length = n->form & 0xF, sign = n->between & 0xFF;
    return length >= 3 && length <= 5 && (sign == '/' || (n->before == '(' && sign == ')'));
}

/* True for Chinese resident numbers: fifteen digits and more with 19 or 20 after the sixth, or six, eight, three or
   four. */
INLINE bool has_birth(const Text *text, int64_t at, int64_t form) {
    int64_t three = form & 0xFFF;
    if (three == 0x386 || three == 0x486) return true;
    if ((form & 0xF) != 15) return false;
    const uint8_t *century = text->data + at + 6;
    return (century[0] == '1' && century[1] == '9') || (century[0] == '2' && century[1] == '0');
}

/* True if four numbers up to 255 with dots stand here, and no fifth. */
static bool is_dotted(const Text *text, int64_t at) {
    for (int part = 0; part < 4; part++) {
        int64_t value = 0, length = 0;
        for (; at < text->end && length < 4 && class_at(text, at) & DIGIT; at++, length++)
            value = 10 * value + text->data[at] - '0';
        if (length == 0 || length > 3 || value > 255) return false;
        if (part == 3) break;
        if (at >= text->end || text->data[at] != '.') return false;
        at++;
    }
    if (at >= text->end) return true;
    bool more = text->data[at] == '.' && at + 1 < text->end && class_at(text, at + 1) & DIGIT;
    return !more && !(class_at(text, at) & TOKEN);
}

/* True for forms that need no words: +…, (ddd) ddd-dddd, ddd-ddd-dddd, ddd-dd-dddd, cards in groups, and a few more. */
INLINE bool is_strong(const Number *n) {
    int64_t three = n->form & 0xFFF, four = n->form & 0xFFFF;
    bool hyphens = (n->between & 0xFFFF) == 0x2D2D;
    if (n->before == '+' && n->digits >= 8) return true;
    if (n->groups >= 3 && three == 0x433 && (hyphens || n->before == '(')) return true;
    if (n->groups >= 3 && three == 0x423 && hyphens) return true; /* United States */
    if (n->groups >= 4 && four == 0x4331 && (n->between & 0xFFFFFF) == 0x2D2D2D) return true; /* 1-ddd-ddd-dddd */
    if (n->groups >= 4 && four == 0x4444) return true;
    if (n->groups >= 3 && (three == 0x564 || three == 0x464)) return true; /* American Express, Diners */
    if (n->groups >= 4 && four == 0x2333) return true;                     /* Brazil */
    if (n->groups >= 4 && four == 0x2443) return true;                     /* Switzerland */
    return n->groups >= 6 && (n->form & 0xFFFFFF) == 0x332221;             /* France */
}

/* Note a number by its form (see `is_strong`), or because words near it give its meaning. */
static void put_number(const Text *text, int64_t at, Found *found) {
    uint8_t before = byte_before(text, at);
    if (before == '$' || before == '%') return; /* money, escapes */
    Number n = read_number(text, at);
    /* four numbers with dots are tried as an address even next to words */
    if (n.dots >= 3 && before != '.' && is_dotted(text, at)) put(found, text, DOTTED, at, n.end, 0);
    if (n.digits < MIN_DIGITS) return;
    int64_t start = before == '+' || before == '(' ? at - 1 : at;
    int64_t meaning = context(text, max_i64(text->first, start - BEFORE), start, true);
    /* not of the next phone, the next key */
    meaning |= context(text, n.end, min_i64(text->end, n.end + AFTER), false) & ~(PHONE | KEY);
    bool strong = is_strong(&n) || has_birth(text, at, n.form);
    if (meaning || strong || (n.trunk && n.digits >= 9 && has_area(&n))) put(found, text, NUMBER, at, n.end, meaning);
}

/* Note one, two or six capitals and then digits: Spanish NIE, IBAN and British, Italian numbers. */
static void put_lettered(const Text *text, int64_t at, Found *found) {
    const uint8_t *data = text->data;
    int64_t start = at;
    while (start > text->first && at - start < 7 && class_at(text, start - 1) & UPPER) start--;
    int64_t letters = at - start;
    if (letters != 1 && letters != 2 && letters != 6) return;
    if (start > text->first && class_at(text, start - 1) & (WORD | TOKEN)) return;
    int64_t digits = 0, stop = at;
    for (; stop < text->end && stop - at < 42; stop++) {
        uint8_t kind = class_at(text, stop);
        if (!(kind & (DIGIT | UPPER)) && !(data[stop] == ' ' && data[stop - 1] != ' ')) break;
        digits += (kind & DIGIT) != 0;
    }
    if (digits < 6) return;
    put(found, text, LETTERED, start, stop, context(text, max_i64(text->first, start - BEFORE), start, true));
}

/* Note the numbers that begin in data[start:stop]. */
static void put_numbers(const Text *text, int64_t start, int64_t stop, Found *found) {
    for (int64_t at = start; at < stop; at++) {
        if (!(class_at(text, at) & DIGIT) || (at > text->first && class_at(text, at - 1) & DIGIT)) continue;
        uint8_t before = byte_before(text, at), kind = BYTE_CLASSES[before];
        if (kind & (UPPER | LOWER_CASE)) {
            put_lettered(text, at, found);
        } else if (!(kind & TOKEN)) {
            bool inside = at - 1 > text->first && class_at(text, at - 2) & DIGIT;
            if (inside && (before == '.' || before == '/' || before == ',' || before == ':'))
                continue; /* between digits: the number began before */
            put_number(text, at, found);
        }
    }
}
