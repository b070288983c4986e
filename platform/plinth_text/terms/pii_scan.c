/* Candidates for personal data, in one pass over the bytes. */
#include "plinth_text/terms/pii_numbers.h"

enum { MIN_RUN = 16, CHANGES = 4, KEY_WORDS = 40 };

#define THREE(a, b, c) ((a) | (b) << 8 | (c) << 16)

/* The first three bytes of prefixes of keys; the rules compare the rest. */
static const int32_t PREFIXES[] = {
    THREE('A', 'K', 'I'), THREE('A', 'S', 'I'), THREE('g', 'h', 'p'), THREE('g', 'h', 'o'), THREE('g', 'h', 'u'),
    THREE('g', 'h', 's'), THREE('g', 'h', 'r'), THREE('g', 'i', 't'), THREE('g', 'l', 'p'), THREE('x', 'o', 'x'),
    THREE('x', 'a', 'p'), THREE('s', 'k', '_'), THREE('r', 'k', '_'), THREE('A', 'I', 'z'), THREE('n', 'p', 'm'),
    THREE('p', 'y', 'p'), THREE('s', 'k', '-'), THREE('h', 'f', '_'), THREE('e', 'y', 'J'), THREE('d', 'o', 'p'),
    THREE('s', 'h', 'p'),
};
static const char BEGIN[] = "-----BEGIN";
enum { BEGIN_SIZE = sizeof BEGIN - 1 };

static bool has_prefix(const uint8_t *data) {
    int32_t three = THREE(data[0], data[1], data[2]);
    for (size_t i = 0; i < sizeof PREFIXES / sizeof PREFIXES[0]; i++)
        if (PREFIXES[i] == three) return true;
    return false;
}

/* True if an `@` has a name or a password before it, and a label, a dot and two letters after it. */
static bool is_address(const Text *text, int64_t at) {
    if (at == text->first || text->data[at - 1] <= ' ') return false;
    int64_t letters = 0, dots = 0, stop = min_i64(text->end, at + 256);
    for (int64_t i = at + 1; i < stop; i++) {
        uint8_t kind = class_at(text, i);
        if (kind & (UPPER | LOWER_CASE) || text->data[i] >= 128) {
            letters++;
        } else if (text->data[i] == '.') {
            if (i == at + 1) return false;
            dots++;
            letters = 0;
        } else if (kind & TOKEN) {
            letters = 0;
        } else {
            break;
        }
        if (dots && letters >= 2) return true;
    }
    return false;
}

/* Note the run around the first colon of hexadecimal groups if it has the form of an IPv6 address. */
static void put_hexes(const Text *text, int64_t at, Found *found) {
    int64_t start = at;
    while (start > text->first && at - start < 5 && class_at(text, start - 1) & HEX) start--;
    uint8_t before = byte_before(text, start);
    if (at - start > 4 || BYTE_CLASSES[before] & WORD || before == ':' || before == '.') return;
    int64_t colons = 0, doubles = 0, group = at - start, stop = at;
    for (; stop < text->end && stop - start < 48; stop++) {
        uint8_t byte = text->data[stop];
        if (byte == ':') {
            doubles += stop > start && text->data[stop - 1] == ':';
            colons++;
            group = 0;
        } else if (BYTE_CLASSES[byte] & HEX) {
            if (++group > 4) return;
        } else {
            break;
        }
    }
    if (BYTE_CLASSES[byte_at(text, stop)] & WORD || stop - start < 5) return;
    if ((doubles == 1 && colons >= 2) || colons == 7) put(found, text, HEXES, start, stop, 0);
}

/* Note a long run that begins as keys do, or that changes between kinds of characters next to a word for keys. */
static void put_run(const Text *text, int64_t start, int64_t end, Found *found) {
    if (has_prefix(text->data + start)) {
        put(found, text, RUN, start, end, 0);
        return;
    }
    int64_t changes = 0, stop = min_i64(end, start + 256);
    uint8_t before = 0;
    for (int64_t at = start; at < stop; at++) {
        uint8_t kind = class_at(text, at) & (DIGIT | UPPER | LOWER_CASE);
        changes += kind != before && kind && before;
        before = kind;
    }
    if (changes < CHANGES) return;
    int64_t meaning = context(text, max_i64(text->first, start - KEY_WORDS), start, true);
    if (meaning) put(found, text, RUN, start, end, meaning);
}

/* Examine the run of token characters from `start` on; returns its end. */
INLINE int64_t examine_run(const Text *text, int64_t start, Found *found) {
    const uint8_t *data = text->data;
    int64_t at = start, end = text->end;
    uint8_t seen = 0;
    for (uint8_t kind; at < end && (kind = BYTE_CLASSES[data[at]]) & TOKEN; at++) seen |= kind;
    if (seen & DIGIT) put_numbers(text, start, at, found);
    if (at - start >= BEGIN_SIZE && memcmp(data + start, BEGIN, BEGIN_SIZE) == 0)
        put(found, text, PEM, start, at, 0);
    else if (at - start >= MIN_RUN && seen & (UPPER | LOWER_CASE))
        put_run(text, start, at, found);
    return at;
}

static void scan_text(const Text *text, Found *found) {
    for (int64_t at = text->first; at < text->end;) {
        uint8_t kind = class_at(text, at);
        if (kind & TOKEN) {
            at = examine_run(text, at, found);
            continue;
        }
        if (kind & AT_SIGN && is_address(text, at))
            put(found, text, AT, at, at + 1, 0);
        else if (kind & COLON)
            put_hexes(text, at, found);
        at++;
    }
}

KERNEL int64_t scan_places(u8_in data, i64_in offsets, u64_in words, i64_in meanings, i64_rows_out found) {
    Found table = {found, 0};
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        Text text = {data.at, doc, offsets.at[doc], offsets.at[doc + 1], words, meanings};
        scan_text(&text, &table);
    }
    return table.size;
}
