#pragma once
/* What the rules of form share, which change the scores of blocks: `keep.h` and `drop.h`. */
#include "plinth/corpus/extract/content/doubt.h"

/* Scores are log-odds. A page with an article (ARTICLE_CHARS characters that are surely content) has a stricter limit than
   a page of items or of little text. Text next to kept text passes down to JOINED below the limit, a name amid it down to
   NAMED, the only sentence of a page down to HOPELESS, a question above it even if the slow engine voted against it, down
   to OUTVOTED. Teasers below an article and controls are
   dropped up to SURE_TEASER, teasers only if they are at most FEW_TEASERS of the text. Text away from the article is
   dropped up to LONELY, or SURE_TEASER if FAR_AWAY blocks or the name of another page are between, but at most FEW_ISLANDS
   of the text; a paragraph of calls at the end has at most CALL_CHARS characters, all of them have CALL_SPAN for
   each call and at most FEW_CALLS of the text. A table that is kept amid text has FEW_CELLS at least. The words of a
   pointer are in its first POINTER_CHARS characters. A fragment has at most FRAGMENT_CHARS characters: in scripts
   without spaces, a sentence is a single word. A name has at most NAME_CHARS; LED of those at its place are above
   text. A place of questions has at least a share of ASKED. */
#define JOINED 2.0f
#define NAMED 3.0f
#define HOPELESS 4.0f
#define OUTVOTED 10.0f
#define SURE_TEASER 2.5f
#define FEW_TEASERS 0.5
#define LONELY 1.5f
#define FEW_ISLANDS 0.34
#define FEW_CALLS 0.15
#define ALIKE 0.2
#define LED 0.9
#define ASKED 0.7
enum { NEAR = 3, ARTICLE_CHARS = 800, WHOLE_CHARS = 1500, GAP_CHARS = 60, FRAGMENT_CHARS = 30, LITTLE_CHARS = 500, PROBES = 16 };
enum { NAME_CHARS = 120, FEW_CELLS = 4, POINTER_CHARS = 16, FAR_AWAY = 10, CALL_CHARS = 700, CALL_SPAN = 140 };

/* Nearest element from `at` upward with this tag, or 0. */
static int32_t above(const Page *page, int32_t at, int a, int b) {
    while (at > 0 && page->elements[at].tag != a && page->elements[at].tag != b) at = page->elements[at].parent;
    return at;
}

static int32_t outermost_list(const Page *page, int32_t at) {
    int32_t found = 0;
    for (; at > 0; at = page->elements[at].parent)
        if (is_list(page->elements[at].tag)) found = at;
    return found;
}

/* Element whose text is kept or dropped as a whole: a table, else a row, or a list. 0 if there is none, or if it is
   long, for then it lays out a page. */
static int32_t whole(const Page *page, int32_t at) {
    int32_t table = above(page, at, TABLE, TABLE), row = above(page, at, TR, TR);
    if (table && page->elements[table].chars <= WHOLE_CHARS) return table;
    int32_t found = row ? row : outermost_list(page, at);
    return page->elements[found].chars <= WHOLE_CHARS ? found : 0;
}

/* Replace the scores of the blocks of a table, a row or a list by their mean. */
static void score_wholes(const Page *page, float *scores) {
    for (int64_t k = 0, next; k < page->block_count; k = next) {
        int32_t element = whole(page, page->blocks[k].element);
        double sum = 0, chars = 0;
        for (next = k; element && next < page->block_count && whole(page, page->blocks[next].element) == element; next++) {
            sum += (double)scores[next] * page->blocks[next].chars;
            chars += page->blocks[next].chars;
        }
        for (int64_t i = k; i < next; i++) scores[i] = (float)(sum / chars);
        next += next == k;
    }
}

/* True if two elements have an ancestor in common at most `NEAR` levels above each. */
static bool is_near(const Page *page, int32_t a, int32_t b) {
    int32_t from = a;
    for (int i = 0; i <= NEAR; i++, from = max_i64(page->elements[from].parent, 0)) {
        int32_t other = b;
        for (int k = 0; k <= NEAR; k++, other = max_i64(page->elements[other].parent, 0))
            if (other == from) return true;
    }
    return false;
}

static void read_hints(const Page *page, const Block *block, uint8_t *counts) {
    text_hints(page->text + block->from, min_i64(block->to - block->from, NEAR_TEXT), counts);
}

/* True for a text that has words of boilerplate. */
static bool has_hints(const Page *page, const Block *block) {
    uint8_t counts[PHRASES] = {0};
    read_hints(page, block, counts);
    for (int group = 0; group < PHRASES; group++)
        if (counts[group]) return true;
    return false;
}

/* True for an item, a cell, a term, and what is in one. */
static bool is_part(const Page *page, int32_t at) {
    return above(page, at, LI, LI) || above(page, at, TD, TH) || above(page, at, DT, DD);
}

/* True for a heading or a term, and what is at most two levels below one. */
static bool is_titled(const Page *page, int32_t at) {
    for (int level = 0; level < NEAR && at > 0; level++, at = page->elements[at].parent)
        if (is_heading(page->elements[at].tag) || page->elements[at].tag == DT) return true;
    return false;
}

/* First words of lines that point to other pages, in lower case. */
static const char *const POINTERS[] = {
    "also check", "also read", "also see", "check out", "check price", "click here", "compare:", "don't miss", "don’t miss",
    "don&#8217;t miss", "find out more", "further reading", "get started:", "learn more", "must read", "must-read",
    "read about", "read also", "read next", "read our", "read the entire", "read the full", "read:", "related", "see more",
    "shop ", "visit our", "you may also", "you might also"};

/* True if a text begins with one of these words, after signs and character references. */
static bool begins_with_any(const Page *page, const Block *block, const char *const *words, size_t count) {
    const uint8_t *text = page->text + block->from;
    int64_t from = 0, size = block->to - block->from;
    for (bool is_name = false; from < size && from < POINTER_CHARS && (is_name || !is_letter(text[from])); from++)
        is_name = text[from] == '&' || (is_name && text[from] != ';');
    for (size_t k = 0; k < count; k++)
        if (equals(text + from, min_i64((int64_t)strlen(words[k]), size - from), words[k])) return true;
    return false;
}

static bool is_pointer(const Page *page, const Block *block) {
    return begins_with_any(page, block, POINTERS, sizeof POINTERS / sizeof POINTERS[0]);
}

INLINE bool is_link_away(const Block *block) { return block->leads_away && block->link_chars * 2 > block->chars; }

/* True for an element that is among comments by its classes, or by those of an element above it. */
static bool is_in_comments(const Page *page, int32_t at) {
    while (at > 0 && !(page->elements[at].hints >> H_COMMENT & 1)) at = page->elements[at].parent;
    return at > 0;
}
