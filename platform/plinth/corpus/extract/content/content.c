/* Main content of a page: blocks that a model of decision trees keeps, written as a reader sees them. */
#include "plinth/corpus/extract/content/drop.h"
#include "plinth/corpus/extract/content/keep.h"
#include "plinth/corpus/extract/content/risk.h"
#include "plinth/corpus/extract/content/scores.h"

enum { DEEPEST_LEVEL = 16 };

/* Number each item as browsers do: from `start`, downward if `reversed`, on from `value`. */
static void number_items(Page *page, int32_t *items) {
    Element *elements = page->elements;
    for (int64_t k = 1; k < page->element_count; k++)
        if (elements[k].tag == LI) items[elements[k].parent]++;
    for (int64_t k = 1; k < page->element_count; k++)
        if (elements[k].tag == OL && !elements[k].has_number) elements[k].number = elements[k].reversed ? items[k] : 1;
    for (int64_t k = 1; k < page->element_count; k++) {
        Element *item = &elements[k], *list = &elements[item->parent];
        if (item->tag != LI || list->tag != OL) continue;
        if (!item->has_number) item->number = list->number;
        list->number = item->number + (list->reversed ? -1 : 1);
        if (!item->kind) item->kind = list->kind;
    }
}

typedef struct {
    uint8_t *at;
    int64_t size;
} Writer;

INLINE void write_text(Writer *writer, const void *text, int64_t size) {
    memcpy(writer->at + writer->size, text, (size_t)size);
    writer->size += size;
}
INLINE void write_word(Writer *writer, const char *word) { write_text(writer, word, (int64_t)strlen(word)); }
static void write_spaces(Writer *writer, int64_t count) {
    memset(writer->at + writer->size, ' ', (size_t)count);
    writer->size += count;
}

static void write_number(Writer *writer, int32_t number, char kind) {
    char digits[32];
    int64_t from = 31;
    digits[from] = 0;
    if ((kind | 32) == 'a' && number > 0)
        for (int32_t left = number; left > 0; left = (left - 1) / 26) digits[--from] = (char)(kind + (left - 1) % 26);
    else if ((kind | 32) == 'i' && number > 0 && number < 4000) {
        static const int values[] = {1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1};
        static const char *const letters[] = {"m", "cm", "d", "cd", "c", "xc", "l", "xl", "x", "ix", "v", "iv", "i"};
        int64_t begin = writer->size;
        for (int k = 0; k < 13; k++)
            for (; number >= values[k]; number -= values[k]) write_word(writer, letters[k]);
        for (int64_t k = begin; kind == 'I' && k < writer->size; k++) writer->at[k] = (uint8_t)(writer->at[k] - 32);
    } else {
        int64_t left = number < 0 ? -(int64_t)number : number;
        do digits[--from] = (char)('0' + left % 10);
        while (left /= 10);
        if (number < 0) digits[--from] = '-';
    }
    write_word(writer, digits + from);
    write_word(writer, ".");
}

/* Write a tab for each empty cell of the row before its cell `to`, from the block `last` on (NULL: from the start): each
   empty cell once, however often there is text between cells. */
static void write_empty_cells(Writer *writer, const Page *page, int32_t row, const Block *last, int32_t to) {
    int64_t after = last ? last - page->blocks : -1;
    for (int32_t k = to - 1; k > row && page->elements[k].first_block > after; k--) {
        const Element *cell = &page->elements[k];
        if ((cell->tag == TD || cell->tag == TH) && cell->parent == row && !cell->blocks) write_word(writer, "\t");
    }
}

/* Write what is between two blocks: a tab between cells, a line end between rows, items, terms; else an empty line. */
static void separate(Writer *writer, const Page *page, const Block *last, const Block *block, bool is_item) {
    int32_t a = last->element, b = block->element;
    int32_t row = above(page, a, TR, TR), table = above(page, a, TABLE, TABLE);
    int32_t cell = above(page, a, TD, TH), next_cell = above(page, b, TD, TH);
    int32_t term = above(page, a, DT, DD), next_term = above(page, b, DT, DD);
    bool same_row = row && row == above(page, b, TR, TR), same_cell = cell == next_cell;
    int32_t terms = above(page, a, DL, DL), list = outermost_list(page, a);
    bool one_line = term != next_term && page->elements[term].blocks <= 1;
    if (same_row && !same_cell) {
        write_word(writer, "\t");
        write_empty_cells(writer, page, row, last, next_cell);
    } else if (row && !same_row && table && table == above(page, b, TABLE, TABLE) && above(page, b, TR, TR)) write_word(writer, "\n");
    else if (is_item && list && list == outermost_list(page, b)) write_word(writer, "\n");
    else if (terms && one_line && terms == above(page, b, DL, DL)) write_word(writer, "\n");
    else write_word(writer, "\n\n");
}

/* Write a tab for each empty cell at the start of the row in which the block begins, if another cell has text. */
static void begin_row(Writer *writer, const Page *page, const Block *last, const Block *block) {
    int32_t row = above(page, block->element, TR, TR), cell = above(page, block->element, TD, TH);
    if (!row || cell < row || (last && above(page, last->element, TR, TR) == row)) return;
    const Element *elements = page->elements;
    if (elements[row].first_block == block - page->blocks && elements[row].blocks > elements[cell].blocks)
        write_empty_cells(writer, page, row, last, cell);
}

/* Write text whose lines after the first begin with spaces. */
static void write_lines(Writer *writer, const uint8_t *text, int64_t size, int64_t spaces) {
    for (int64_t i = 0, next; i < size; i = next) {
        const uint8_t *end = memchr(text + i, '\n', (size_t)(size - i));
        next = end ? end - text + 1 : size;
        write_text(writer, text + i, next - i);
        if (next < size && text[next] != '\n') write_spaces(writer, spaces);
    }
}

static void write_block(Writer *writer, const Page *page, const Block *last, const Block *block, bool *is_written) {
    const Element *elements = page->elements;
    int32_t item = above(page, block->element, LI, LI);
    int64_t level = 0, spaces = 0;
    for (int32_t at = item; at > 0; at = elements[at].parent) level += is_list(elements[at].tag);
    level = min_i64(level, DEEPEST_LEVEL);
    bool is_item = item && level && !is_written[item];
    if (last) separate(writer, page, last, block, is_item);
    begin_row(writer, page, last, block);
    if (level && (!last || writer->at[writer->size - 1] == '\n')) {
        spaces = 2 * level + 2;
        if (!is_item) write_spaces(writer, spaces);
        else {
            write_spaces(writer, 2 * level);
            int64_t from = writer->size;
            if (elements[elements[item].parent].tag != OL) write_word(writer, "• ");
            else {
                if (elements[item].kind != 'n') {
                    write_number(writer, elements[item].number, elements[item].kind);
                    write_word(writer, " ");
                }
                spaces = 2 * level + writer->size - from;
            }
        }
    }
    for (int32_t at = item; at > 0; at = elements[at].parent) is_written[at] = true;
    write_lines(writer, page->text + block->from, block->to - block->from, spaces);
}

/* Room that `main_content` needs for a page: its text, a separator, spaces and a number for each block, spaces for each
   line in an item, and a tab for each cell. */
static int64_t text_room(const Page *page) {
    int64_t room = page->size + page->element_count;
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        room += 64 + 2 * DEEPEST_LEVEL;
        if (!above(page, block->element, LI, LI)) continue;
        for (int64_t i = block->from; i < block->to; i++) room += page->text[i] == '\n' ? 64 + 2 * DEEPEST_LEVEL : 0;
    }
    return room;
}

/* Main content of an HTML page in UTF-8, with character references as written: its size, NO_MEMORY, or the room that it
   needs, negative, if `out` is too small. `title_from` and `title_to` are the place of the title in the HTML. `unsure`
   is the `doubt`, `traits` are those of `risk.h`; `is_article`: the page declares an article in two ways, and
   neither a forum nor a list. */
KERNEL int64_t main_content(u8_in html, i32_in starts, f32_in threshold, i32_in tree, u64_in others, i32_in first, f32_in leaf, float article, float other, f32_in votes, f64_out traits, u8_out out, int64_t *title_from, int64_t *title_to, double *unsure, int64_t *is_article) {
    Page page;
    Facts facts = {0};
    read_page(&page, html.at, html.size, NULL);
    *title_from = page.title_from;
    *title_to = page.title_to;
    *unsure = 0;
    memset(traits.at, 0, (size_t)traits.size * sizeof(double));
    bool is_forum = page.kinds[K_FORUM] || page.hints >> H_FORUM & 1;
    *is_article = page.kind == ARTICLE_KIND && !is_forum && !page.kinds[K_LIST];
    int64_t count = page.block_count, room = text_room(&page), size = NO_MEMORY;
    float *features = malloc((size_t)(count + 1) * FEATURES * sizeof(float));
    float *scores = malloc((size_t)(count + 1) * 2 * sizeof(float)), *first_scores = scores + count;
    Sets *leaves = aligned_alloc(sizeof(Sets), (size_t)(first.size + 1) * sizeof(Sets));
    int32_t *items = calloc((size_t)page.element_count + 1, sizeof(int32_t));
    bool *is_written = calloc((size_t)page.element_count + 1, sizeof(bool));
    if (!page.failed && features && scores && leaves && items && is_written && write_features(&page, &facts, features)) {
        Trees trees = {starts, tree, first, threshold, leaf, others};
        score_blocks(&trees, features, count, leaves, scores);
        for (int64_t k = 0; k < count && votes.size == count; k++) scores[k] += votes.at[k];
        memcpy(first_scores, scores, (size_t)count * sizeof(float));
        int64_t sure = 0;
        for (int64_t k = 0; k < count; k++)
            if (scores[k] >= SURE && page.blocks[k].chars >= PROSE) sure += page.blocks[k].chars;
        score_wholes(&page, scores);
        float limit = sure >= ARTICLE_CHARS ? article : other;
        limit = sentence_limit(&page, scores, limit);
        keep_alike(&page, &facts, scores, limit);
        if (is_forum) keep_post(&page, &facts, scores, limit);
        keep_neighbors(&page, scores, limit);
        keep_headings(&page, &facts, scores, limit, sure >= ARTICLE_CHARS);
        if (!is_forum && sure >= ARTICLE_CHARS) keep_names(&page, &facts, scores, limit);
        if (sure >= ARTICLE_CHARS) fill_gaps(&page, scores, limit);
        if (sure >= ARTICLE_CHARS && *is_article) drop_teasers(&page, &facts, scores, limit);
        drop_controls(&page, scores, limit);
        drop_labels(&page, scores, limit);
        drop_pointers(&page, &facts, scores, limit);
        if (!is_forum) drop_comments(&page, first_scores, scores, limit);
        if (sure >= ARTICLE_CHARS && !is_forum) drop_islands(&page, first_scores, scores, limit);
        if (sure >= ARTICLE_CHARS) {
            keep_tables(&page, scores, limit);
            keep_lines(&page, first_scores, votes.size == count ? votes.at : NULL, scores, limit);
            keep_formulas(&page, scores, limit);
        }
        if (!is_forum) drop_post_end(&page, scores, limit);
        if (sure >= ARTICLE_CHARS && !is_forum) drop_calls(&page, scores, limit);
        if (sure >= ARTICLE_CHARS) drop_tail(&page, scores, limit);
        *unsure = doubt(&page, first_scores, scores, limit);
        if (traits.size >= TRAITS) read_traits(&page, &facts, scores, limit, traits.at);
        if (sure >= ARTICLE_CHARS) keep_lists(&page, scores, limit);
        keep_answers(&page, &facts, first_scores, scores, limit);
        keep_recipe(&page, scores, limit);
        *is_article &= page.is_published || page.kinds[K_ARTICLE]; /* some programs declare every page an article */
        bool fits = room <= out.size && drop_repeats(&page, scores, limit);
        number_items(&page, items);
        Writer writer = {out.at, 0};
        const Block *last = NULL;
        for (int64_t k = 0; k < count && fits; k++) {
            if (scores[k] < limit) continue;
            write_block(&writer, &page, last, &page.blocks[k], is_written);
            last = &page.blocks[k];
        }
        size = fits ? writer.size : room > out.size ? -room : NO_MEMORY;
    }
    free(features);
    free(scores);
    free(leaves);
    free(items);
    free(is_written);
    free_facts(&facts);
    free_page(&page);
    return size;
}

/* Blocks of a page for learning: features [rows, FEATURES], and [rows, 2] places in `text`.
   Return the number of blocks, negative if it is more than the rows. */
KERNEL int64_t page_blocks(u8_in html, f32_rows_out features, i64_rows_out places, u8_out text) {
    Page page;
    Facts facts = {0};
    read_page(&page, html.at, html.size, NULL);
    int64_t count = page.block_count;
    bool fits = count <= features.rows && page.size <= text.size;
    bool failed = page.failed || (fits && !write_features(&page, &facts, features.at));
    if (fits && !failed) {
        for (int64_t k = 0; k < count; k++) {
            places.at[2 * k] = page.blocks[k].from;
            places.at[2 * k + 1] = page.blocks[k].to;
        }
        memcpy(text.at, page.text, (size_t)page.size);
    }
    free_facts(&facts);
    free_page(&page);
    return failed ? NO_MEMORY : fits ? count : -count - 1;
}

/* Take out of `page->copy` what is in elements whose blocks all have a score below `limit`; return its size. */
static int64_t drop_below(Page *page, const float *scores, float limit, int32_t *next) {
    next[page->block_count] = (int32_t)page->block_count; /* the next block from each on that stays */
    for (int64_t k = page->block_count - 1; k >= 0; k--) next[k] = scores[k] < limit ? next[k + 1] : (int32_t)k;
    int64_t size = 0, done = 0;
    for (int64_t k = 1; k < page->element_count; k++) {
        const Element *element = &page->elements[k];
        int64_t block = min_i64(element->first_block, page->block_count); /* a column of line numbers was dropped */
        if (element->copied_from < done || next[block] < block + element->blocks) continue;
        memmove(page->copy + size, page->copy + done, (size_t)(element->copied_from - done));
        size += element->copied_from - done;
        done = element->copied_to;
    }
    memmove(page->copy + size, page->copy + done, (size_t)(page->copied - done));
    return size + page->copied - done;
}

/* A page for another engine, in `copy`: without elements whose blocks all have a score below `limit`; and [rows, 2]
   places of all blocks in `text`. Return the number of blocks, negative if it is more than the rows. */
KERNEL int64_t short_page(u8_in html, i32_in starts, f32_in threshold, i32_in tree, u64_in others, i32_in first, f32_in leaf, float limit, i64_rows_out places, u8_out text, u8_out copy, int64_t *copied) {
    Page page;
    Facts facts = {0};
    read_page(&page, html.at, html.size, copy.at);
    int64_t count = page.block_count;
    float *features = malloc((size_t)(count + 1) * FEATURES * sizeof(float)), *scores = malloc((size_t)(count + 1) * sizeof(float));
    Sets *leaves = aligned_alloc(sizeof(Sets), (size_t)(first.size + 1) * sizeof(Sets));
    int32_t *next = malloc((size_t)(count + 1) * sizeof(int32_t));
    bool fits = count <= places.rows && page.size <= text.size, failed = page.failed || !features || !scores || !leaves || !next;
    failed = failed || !write_features(&page, &facts, features);
    *copied = 0;
    if (fits && !failed) {
        Trees trees = {starts, tree, first, threshold, leaf, others};
        score_blocks(&trees, features, count, leaves, scores);
        for (int64_t k = 0; k < count; k++) {
            places.at[2 * k] = page.blocks[k].from;
            places.at[2 * k + 1] = page.blocks[k].to;
        }
        memcpy(text.at, page.text, (size_t)page.size);
        *copied = drop_below(&page, scores, limit, next);
    }
    free(features);
    free(scores);
    free(leaves);
    free(next);
    free_facts(&facts);
    free_page(&page);
    return failed ? NO_MEMORY : fits ? count : -count - 1;
}

/* True if the page may have formulas: `math`, `sub` or `sup`. */
KERNEL int64_t may_have_formulas(u8_in html) {
    const uint8_t *at = html.at, *end = html.at + html.size;
    while (end - at > 4 && (at = memchr(at, '<', (size_t)(end - at - 4)))) {
        if ((at[1] | 32) == 's' && (at[2] | 32) == 'u' && ((at[3] | 32) == 'b' || (at[3] | 32) == 'p')) return true;
        if (!memcmp(++at, "math", 4)) return true;
    }
    return false;
}
