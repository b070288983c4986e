/* Main content of a page: blocks that a model of decision trees keeps, written as a reader sees them. */
#include "plinth/corpus/extract/content/doubt.h"
#include "plinth/corpus/extract/content/scores.h"

/* Scores are log-odds. A page with an article (ARTICLE_CHARS characters that are surely content) has a stricter limit than
   a page of items or of little text. Text next to kept text passes down to JOINED below the limit, the only sentence of a
   page down to HOPELESS. */
#define SURE 1.3862944f
#define JOINED 2.0f
#define NAMED 3.0f
#define HOPELESS 4.0f
#define SURE_TEASER 2.5f
#define FEW_TEASERS 0.5
#define ALIKE 0.2
enum { NEAR = 3, ARTICLE_CHARS = 800, WHOLE_CHARS = 1500, GAP_CHARS = 60, LITTLE_CHARS = 500, DEEPEST_LEVEL = 16, PROBES = 16 };

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

/* True for code, and for sentences, cells and items whose score is not far below the limit. */
static bool may_join(const Page *page, const Block *block, float score, float limit) {
    int tag = page->elements[block->element].tag;
    bool is_cell = tag == TD || tag == TH, is_sentence = tag == P && block->stops > 0;
    bool is_item = tag == DT || tag == DD || above(page, block->element, LI, LI) > 0;
    if (block->pre) return true;
    int32_t list = is_item ? whole(page, block->element) : 0;
    bool is_menu = list && page->elements[list].blocks > 1 && page->elements[list].link_chars * 3 >= page->elements[list].chars;
    return (is_cell || is_item || is_sentence) && !is_menu && block->link_chars * 3 < block->chars && score >= limit - JOINED;
}

/* Keep code, lists, rows and sentences next to text that is kept: learned from long pages, the model takes some of them
   for clutter. */
static void keep_neighbors(const Page *page, float *scores, float limit) {
    const Block *blocks = page->blocks;
    int64_t last = -1;
    for (int64_t k = 0, next; k < page->block_count; k = next) {
        int32_t element = whole(page, blocks[k].element);
        next = k + 1;
        while (element && next < page->block_count && whole(page, blocks[next].element) == element) next++;
        if (scores[k] < limit && may_join(page, &blocks[k], scores[k], limit)) {
            int32_t own = element ? element : blocks[k].element;
            int64_t after = next;
            while (after < page->block_count && after < next + NEAR && scores[after] < limit) after++;
            bool joins = after < page->block_count && after < next + NEAR && is_near(page, own, blocks[after].element);
            joins |= last >= 0 && k - last <= NEAR && is_near(page, own, blocks[last].element);
            for (int64_t i = k; joins && i < next; i++) scores[i] = limit;
        }
        if (scores[k] >= limit) last = next - 1;
    }
}

static void read_hints(const Page *page, const Block *block, uint8_t *counts) {
    text_hints(page->text + block->from, min_i64(block->to - block->from, NEAR_TEXT), counts);
}

/* Keep headings above text that is kept. In an article, they may be links, as names of products are. */
static void keep_headings(const Page *page, const Facts *facts, float *scores, float limit, bool is_long) {
    for (int64_t k = page->block_count - 2; k >= 0; k--) {
        const Block *block = &page->blocks[k];
        bool is_link = block->link_chars * 3 >= block->chars;
        if (!is_heading(page->elements[block->element].tag) || (is_link && !is_long)) continue;
        if (scores[k] >= limit || scores[k] < limit - (is_link ? 1 : JOINED) || scores[k + 1] < limit) continue;
        uint8_t counts[PHRASES] = {0};
        if (is_link) read_hints(page, block, counts);
        if (counts[W_RELATED] || (is_link && is_teaser(page, facts, block))) continue;
        if (is_near(page, block->element, block[1].element)) scores[k] = limit;
    }
}

/* Keep questions above text that is kept, where questions are repeated: answers make no sense without. */
static void keep_questions(const Page *page, const Facts *facts, float *scores, float limit) {
    for (int64_t k = page->block_count - 2; k >= 0; k--) {
        const Block *block = &page->blocks[k];
        if (scores[k] >= limit || scores[k] < limit - HOPELESS || scores[k + 1] < limit || !is_question(page, block)) continue;
        if (block->link_chars * 3 >= block->chars || !is_near(page, block->element, block[1].element)) continue;
        if (group_of(facts, block_place(page, block))->questions >= FEW) scores[k] = limit;
    }
}

/* Drop teasers below an article: those after its last sentence of which the model is sure. References in lists and tables
   stay. */
static void drop_teasers(const Page *page, const Facts *facts, float *scores, float limit) {
    if (teaser_share(page, facts, scores, limit) > FEW_TEASERS) return;
    for (int64_t k = page->block_count - 1; k >= 0; k--) {
        const Block *block = &page->blocks[k];
        bool is_one = is_teaser(page, facts, block);
        if (!is_one && scores[k] >= SURE_TEASER && is_prose(block)) return;
        if (is_one && scores[k] >= limit && scores[k] < SURE_TEASER && !whole(page, block->element)) scores[k] = limit - 1;
    }
}

/* Keep all links of a run, which have one place in the page's structure, if half of them are kept. */
static void keep_runs(const Page *page, float *scores, float limit) {
    for (int64_t k = 0, next; k < page->block_count; k = next) {
        int64_t kept = 0;
        for (next = k; next < page->block_count; next++) {
            const Block *block = &page->blocks[next];
            if (block->link_chars * 2 <= block->chars || block_place(page, block) != block_place(page, &page->blocks[k])) break;
            kept += scores[next] >= limit;
        }
        for (int64_t i = k; i < next && 2 * kept >= next - k; i++)
            if (scores[i] < limit && scores[i] >= limit - JOINED) scores[i] = limit;
        next += next == k;
    }
}

/* Keep a short block below text and above a sentence that are kept, all below one element or at one place: a name, or
   a label before what it names. */
static void fill_gaps(const Page *page, float *scores, float limit) {
    for (int64_t k = 1; k + 1 < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        if (scores[k] >= limit || scores[k] < limit - NAMED || scores[k - 1] < limit || scores[k + 1] < limit) continue;
        const Element *elements = page->elements, *own = &elements[block->element];
        const Element *above_it = &elements[block[-1].element], *below_it = &elements[block[1].element];
        bool is_amid = above_it->parent == own->parent && below_it->parent == own->parent;
        is_amid |= above_it->place == own->place && below_it->place == own->place;
        if (!is_amid || block->chars > GAP_CHARS || !is_prose(&block[1])) continue;
        uint8_t counts[PHRASES] = {0};
        read_hints(page, block, counts);
        int found = 0;
        for (int group = 0; group < PHRASES; group++) found += counts[group];
        if (!found) scores[k] = limit;
    }
}

/* Drop short texts of which the model is not sure and whose words are those of controls: "Read more", "Share". */
static void drop_controls(const Page *page, float *scores, float limit) {
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        bool is_label = block->words <= 3 && !block->stops && !block->digits && page->text[block->to - 1] != ':';
        if (scores[k] < limit || scores[k] >= SURE_TEASER || !is_label || block->pre) continue;
        if (is_heading(page->elements[block->element].tag) || whole(page, block->element)) continue;
        uint8_t counts[PHRASES] = {0};
        read_hints(page, block, counts);
        if (counts[W_SHARE] || counts[W_RELATED] || counts[W_COMMENT] || counts[W_AD]) scores[k] = limit - 1;
    }
}

/* Drop headings and fragments of up to two words at the end of a text: what they belong to was dropped. */
static void drop_tail(const Page *page, float *scores, float limit) {
    for (int64_t k = page->block_count - 1; k >= 0; k--) {
        const Block *block = &page->blocks[k];
        int tag = page->elements[block->element].tag;
        if (scores[k] < limit) continue;
        bool is_structured = block->pre || tag == TD || tag == TH || tag == DD || tag == DT || above(page, block->element, LI, LI);
        bool is_fragment = block->words <= 2 && !block->stops && !is_structured;
        if (tag == H1 || !(is_heading(tag) || is_fragment)) return;
        scores[k] = limit - 1;
    }
}

/* Keep sentences whose score is not far below the limit at a place of the page's structure of which a part is kept: what
   is repeated, as posts of a forum are, is kept or dropped as a whole. */
static void keep_alike(const Page *page, const Facts *facts, float *scores, float limit) {
    for (int64_t k = 0; k < page->block_count; k++)
        if (scores[k] >= limit) group_of(facts, block_place(page, &page->blocks[k]))->kept += page->blocks[k].chars;
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        if (scores[k] >= limit || scores[k] < limit - JOINED || !block->stops || block->link_chars * 3 >= block->chars) continue;
        const Group *group = group_of(facts, block_place(page, block));
        if (group->count >= FEW && group->kept >= ALIKE * group->chars) scores[k] = limit;
    }
}

/* Limit of a page of little text from which nothing would be kept: the score of its best sentence. The model knows long
   pages. */
static float sentence_limit(const Page *page, const float *scores, float limit) {
    float best = limit - HOPELESS;
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        if (scores[k] >= limit || page->elements[0].chars > LITTLE_CHARS) return limit;
        bool is_sentence = block->stops > 0 && block->words >= 3 && block->link_chars * 3 < block->chars;
        if (is_sentence && scores[k] > best) best = scores[k];
    }
    return best > limit - HOPELESS ? best : limit;
}

INLINE bool same_text(const Page *page, const Block *a, const Block *b) {
    return a->to - a->from == b->to - b->from && !memcmp(page->text + a->from, page->text + b->from, (size_t)(a->to - a->from));
}

/* Drop sentences that were kept before, to the letter: pages repeat them for other screens. Code and terms may repeat.
   Return False if memory ran out. */
static bool drop_repeats(const Page *page, float *scores, float limit) {
    int64_t room = 2;
    while (room < 2 * page->block_count) room *= 2;
    int32_t *table = malloc((size_t)room * sizeof(int32_t));
    if (!table) return false;
    memset(table, -1, (size_t)room * sizeof(int32_t));
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        if (scores[k] < limit || !block->repeats || block->pre || !is_prose(block) || above(page, block->element, DT, DD)) continue;
        for (int64_t probe = 0; probe < PROBES; probe++) {
            int32_t *row = &table[(int64_t)((block->hash ^ block->hash >> 29) + (uint64_t)probe) & (room - 1)];
            if (*row < 0) *row = (int32_t)k;
            else if (same_text(page, block, &page->blocks[*row])) scores[k] = limit - 1;
            else continue;
            break;
        }
    }
    free(table);
    return true;
}

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
   is 1 minus the F1 that the model expects, `teasers` the share of text that announces other pages; `is_article`: the page declares an article, and neither a forum nor a list. */
KERNEL int64_t main_content(u8_in html, i32_in starts, f32_in threshold, i32_in tree, u64_in others, i32_in first, f32_in leaf, float article, float other, f32_in votes, u8_out out, int64_t *title_from, int64_t *title_to, double *unsure, double *teasers, int64_t *is_article) {
    Page page;
    Facts facts = {0};
    read_page(&page, html.at, html.size);
    *title_from = page.title_from;
    *title_to = page.title_to;
    *unsure = *teasers = 0;
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
        keep_neighbors(&page, scores, limit);
        keep_headings(&page, &facts, scores, limit, sure >= ARTICLE_CHARS);
        keep_questions(&page, &facts, scores, limit);
        keep_runs(&page, scores, limit);
        if (sure >= ARTICLE_CHARS) fill_gaps(&page, scores, limit);
        if (sure >= ARTICLE_CHARS && *is_article) drop_teasers(&page, &facts, scores, limit);
        drop_controls(&page, scores, limit);
        if (sure >= ARTICLE_CHARS) drop_tail(&page, scores, limit);
        *unsure = expected_loss(&page, first_scores, scores, limit);
        *teasers = is_forum ? 0 : teaser_share(&page, &facts, scores, limit);
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
    read_page(&page, html.at, html.size);
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
