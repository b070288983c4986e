#include "plinth_text/english/sentences.h"
#include "plinth_text/rules/c4_line.h"
#include "plinth_text/words/split.h"

/* One text of a column: its bytes, its words in English, and what is kept of it. */
typedef struct {
    u8_in text;
    const int32_t *edges; /* of its words */
    int64_t words, after; /* how many there are; the first behind the last line */
    uint8_t *page;
    int64_t filled;
} Page;

/* The first word of a line, not before the last line's, and the one behind its last. */
INLINE int64_t words_of_line(Page *page, int64_t left, int64_t right) {
    int64_t word = page->after;
    while (word < page->words && page->edges[2 * word] < left) word++;
    page->after = word;
    while (page->after < page->words && page->edges[2 * page->after] < right) page->after++;
    return word;
}

/* Count the words and sentences of a kept line. `cut`: what is left of it, if it is less. */
static void count_english(
    Page *page, int64_t left, int64_t right, const u8_in *cut, const EnglishSplitter *by, int32_t *edges,
    int64_t *counts, int64_t *words
) {
    int64_t word = words_of_line(page, left, right), found = page->after - word;
    const int32_t *own = page->edges + 2 * word;
    u8_in text = page->text;
    if (cut) {
        text = *cut;
        left = 0;
        right = text.size;
        found = english_split(text, left, right, by, edges);
        own = edges;
    }
    *words += found;
    bool several = ends_inside(text, left, right, by->flags);
    counts[SENTENCES] += several ? sentences_of_words(text, right, own, found, by->flags) : 1;
}

/* Append a line and a line end. */
static void put_line(Page *page, const uint8_t *piece, int64_t size) {
    memcpy(page->page + page->filled, piece, size);
    page->filled += size;
    page->page[page->filled++] = '\n';
}

/* Strip the page of a text in place; returns where it ends. */
static int64_t close_page(uint8_t *pages, int64_t start, int64_t end, u8_in table) {
    int64_t left, right;
    strip_line((u8_in){pages, end}, start, end, table, &left, &right);
    if (left > start) memmove(pages + start, pages + left, right - left);
    return start + right - left;
}

KERNEL void count_pages(
    u8_in data, i64_in offsets, u8_in table, int64_t min_words, int64_t max_word_characters, bool ends_required,
    bool english, i64_in word_first, i32_in word_edges, i64_out line_ends, u8_out line, u16_in flags, u64_in tables,
    u64_in pairs, u64_in rows, u8_in whole, int64_t most, i32_out points, i32_out places, u64_out matched,
    i64_out starts, u8_out taken, i32_out copy, i32_out edges, u8_out pages, i64_out page_offsets, i64_out page_words,
    i64_rows_out out
) {
    EnglishSplitter by = ENGLISH_SPLITTER;
    LineRules rules = {min_words, max_word_characters, ends_required, english};
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        Page page = {{data.at + offsets.at[doc], data.size - offsets.at[doc]}, word_edges.at, 0, 0, pages.at,
                     page_offsets.at[doc]};
        if (english) {
            page.edges += 2 * word_first.at[doc];
            page.words = word_first.at[doc + 1] - word_first.at[doc];
        }
        int64_t end = offsets.at[doc + 1] - offsets.at[doc], *counts = out.at + doc * C4_COLUMNS, begin = 0;
        int64_t found = line_breaks(page.text, 0, end, table, line_ends);
        MayHold may = may_hold(page.text.at, end);
        line_ends.at[found] = end;
        for (int64_t i = 0; i <= found; i++) {
            int64_t stop = line_ends.at[i], left, right;
            if (i == found && begin == end) break;
            if (i && begin == stop && stop < end && page.text.at[stop] == 10 && page.text.at[stop - 1] == 13) {
                begin = stop + 1; /* the second half of one line end */
                continue;
            }
            strip_line(page.text, begin, stop, table, &left, &right);
            int64_t size = judge_line(page.text, left, right, table, &rules, line.at, may, counts);
            if (size >= 0) {
                bool cut = size < right - left;
                u8_in piece = {cut ? line.at : page.text.at + left, size};
                if (english)
                    count_english(&page, left, right, cut ? &piece : NULL, &by, edges.at, counts, page_words.at + doc);
                else
                    counts[SENTENCES] += sentences_at_white_space(piece.at, size);
                put_line(&page, piece.at, size);
            }
            if (i < found) {
                uint8_t byte = page.text.at[stop];
                begin = stop + (byte < 128 ? 1 : byte < 0xE0 ? 2 : 3);
            }
        }
        page_offsets.at[doc + 1] = close_page(pages.at, page_offsets.at[doc], page.filled, table);
    }
}
