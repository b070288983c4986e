#pragma once
/* Names of a site, as its pages state them, and texts in which it speaks of itself. */
#include "plinth/corpus/extract/content/hints.h"

enum { NAME_BYTES = 48, SHORTEST_NAME = 4 };

/* Letters and digits of a name, in lower case. */
typedef struct {
    uint8_t at[NAME_BYTES];
    int64_t size;
} SiteName;

INLINE bool in_word(uint8_t c) { return is_letter(c) || is_digit(c) || c >= 0x80; }

/* Read a name; leave it empty if it is too short to tell, or too long. */
static void read_name(SiteName *name, const uint8_t *text, int64_t size) {
    name->size = 0;
    for (int64_t i = 0; i < size; i++) {
        if (!in_word(text[i])) continue;
        if (name->size == NAME_BYTES) {
            name->size = 0;
            return;
        }
        name->at[name->size++] = lower(text[i]);
    }
    if (name->size < SHORTEST_NAME) name->size = 0;
}

/* Read the longest label of a URL's host but the last: `example` of `https://www.example.org/page`. */
static void read_host(SiteName *name, const uint8_t *url, int64_t size) {
    int64_t from = 0, best = 0, length = 0;
    while (from + 1 < size && !(url[from] == '/' && url[from + 1] == '/')) from++;
    for (int64_t i = from += 2; i < size && url[i] != '/' && url[i] != ':'; i++) {
        if (url[i] != '.') continue;
        if (i - from > length) best = from, length = i - from;
        from = i + 1;
    }
    read_name(name, url + best, length);
}

static bool is_within(const SiteName *part, const SiteName *whole) {
    for (int64_t i = 0; i + part->size <= whole->size; i++)
        if (part->size && !memcmp(whole->at + i, part->at, (size_t)part->size)) return true;
    return false;
}

/* True for a dash, a bar or a dot between spaces, also as a character reference. */
static bool is_separator(const uint8_t *text, int64_t size) {
    if (text[0] == '&') return size > 1 && memcmp(text, "&amp;", (size_t)min_i64(size, 5));
    return size <= 3 && !is_letter(text[0]) && !is_digit(text[0]) && (text[0] < 0x80 || text[0] == 0xC2 || text[0] == 0xE2);
}

/* Read the part of a page's title after the last separator, if it has the host's name in it, or is in it. */
static void read_title_name(SiteName *name, const uint8_t *title, int64_t size, const SiteName *host) {
    for (int64_t i = size - 1, end = size; i > 0; i--) {
        if (title[i - 1] != ' ') continue;
        if (end > i && is_separator(title + i, end - i)) {
            read_name(name, title + end, size - end);
            break;
        }
        end = i - 1;
    }
    if (!is_within(name, host) && !is_within(host, name)) name->size = 0;
}

/* True if a name begins at the start of a text and ends with a word, whatever is between its words. */
static bool begins_with(const uint8_t *text, int64_t size, const SiteName *name) {
    int64_t i = 0, k = 0;
    for (; k < name->size; i++) {
        while (k && i < size && !in_word(text[i]) && text[i] != '\n') i++;
        if (i >= size || lower(text[i]) != name->at[k++]) return false;
    }
    return i >= size || !in_word(text[i]);
}

/* Words of a text in which a site speaks of itself: "we", and "you" to readers. */
typedef struct {
    int we, you;
    bool is_named; /* the text has a name of the site */
} Speech;

INLINE bool is_word(const uint8_t *text, int64_t size, const char *word) {
    return size == (int64_t)strlen(word) && (text[0] | 32) == (uint8_t)word[0] && !memcmp(text + 1, word + 1, (size_t)size - 1);
}

static Speech read_speech(const uint8_t *text, int64_t size, const SiteName *names, int count) {
    Speech found = {0, 0, false};
    for (int64_t i = 0, end; i < size; i = end + 1) {
        for (end = i; end < size && in_word(text[end]);) end++;
        if (end == i) continue;
        for (int k = 0; k < count && !found.is_named; k++)
            found.is_named = names[k].size && lower(text[i]) == names[k].at[0] && begins_with(text + i, size - i, &names[k]);
        int64_t length = end - i;
        found.we += is_word(text + i, length, "we") || is_word(text + i, length, "our") || is_word(text + i, length, "us");
        found.you += is_word(text + i, length, "you") || is_word(text + i, length, "your");
    }
    return found;
}
