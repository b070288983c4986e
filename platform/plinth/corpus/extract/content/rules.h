#pragma once
/* Rules of form that change the scores of blocks: what is kept or dropped as a whole, with its neighbors, or at the end. */
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

/* Keep the first paragraph of a thread below its title if its score is close to the limit. */
static void keep_post(const Page *page, const Facts *facts, float *scores, float limit) {
    int64_t k = facts->heading, end = min_i64(page->block_count, k + FAR);
    if (k < 0) return;
    while (++k < end && scores[k] < limit && !is_prose(&page->blocks[k])) continue;
    if (k < end && scores[k] < limit && scores[k] >= limit - 1) scores[k] = limit;
}

/* Keep lists, rows and sentences next to text that is kept, and code between: learned from long pages, the model takes some
   of them for clutter. Questions one after the other are a menu. */
static void keep_neighbors(const Page *page, float *scores, float limit) {
    const Block *blocks = page->blocks;
    int64_t last = -1, final = page->block_count - 1;
    while (final >= 0 && scores[final] < limit) final--;
    for (int64_t k = 0, next; k < page->block_count; k = next) {
        int32_t element = whole(page, blocks[k].element);
        next = k + 1;
        while (element && next < page->block_count && whole(page, blocks[next].element) == element) next++;
        bool is_menu = k + 1 < page->block_count && is_question(page, &blocks[k]) && is_question(page, &blocks[k + 1]);
        if (scores[k] < limit && !is_menu && may_join(page, &blocks[k], scores[k], limit)) {
            int32_t own = element ? element : blocks[k].element;
            int64_t after = next;
            while (after < page->block_count && after < next + NEAR && scores[after] < limit) after++;
            bool joins = after < page->block_count && after < next + NEAR && is_near(page, own, blocks[after].element);
            joins |= last >= 0 && k - last <= NEAR && is_near(page, own, blocks[last].element);
            joins |= blocks[k].pre && last >= 0 && k < final;
            for (int64_t i = k; joins && i < next; i++) scores[i] = limit;
        }
        if (scores[k] >= limit) last = next - 1;
    }
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

/* Keep headings and terms above text that is kept. In an article, they may be links, as names of products are: rather
   above text of which the model is sure. */
static void keep_headings(const Page *page, const Facts *facts, float *scores, float limit, bool is_long) {
    for (int64_t k = page->block_count - 2; k >= 0; k--) {
        const Block *block = &page->blocks[k];
        bool is_link = block->link_chars * 3 >= block->chars, is_term = above(page, block->element, DT, DT) > 0;
        if (!is_titled(page, block->element) || (is_link && !is_long)) continue;
        float least = is_link && scores[k + 1] < SURE_TEASER ? 1 : JOINED;
        if (scores[k] >= limit || scores[k] < limit - least || scores[k + 1] < limit) continue;
        uint8_t counts[PHRASES] = {0};
        if (is_link) read_hints(page, block, counts);
        if (counts[W_RELATED] || (is_link && !is_term && is_teaser(page, facts, block))) continue;
        if (is_near(page, block->element, block[1].element)) scores[k] = limit;
    }
}

/* True for a caption, and what else belongs to a figure. */
static bool is_caption(const Page *page, int32_t at) {
    for (int level = 0; level < NEAR && at > 0; level++, at = page->elements[at].parent)
        if (page->elements[at].tag == FIGURE || page->elements[at].tag == FIGCAPTION || page->elements[at].hints >> H_CAPTION & 1) return true;
    return false;
}

/* True for a text below a label such as "Related". */
static bool is_below_pointer(const Page *page, const Block *block) {
    if (block == page->blocks || block[-1].words > 3) return false;
    uint8_t counts[PHRASES] = {0};
    read_hints(page, &block[-1], counts);
    return counts[W_RELATED];
}

/* True for a text that may name the text `gap` blocks below it: a heading, or a few words. */
static bool may_name(const Page *page, const Block *block, float score, float limit, int64_t gap) {
    if (block->chars > NAME_CHARS || block->pre || score < limit - NAMED || is_caption(page, block->element)) return false;
    if (has_hints(page, block) || is_below_pointer(page, block)) return false;
    if (is_titled(page, block->element)) return true;
    if (is_part(page, block->element) || block->link_chars * 3 >= block->chars || gap > 2) return false;
    return !block->stops && block->digits * 5 <= block->chars && score >= limit - 1;
}

/* Keep names: texts at a place of the page's structure where nearly all differ and are above kept text of their own. */
static void keep_names(const Page *page, const Facts *facts, float *scores, float limit) {
    for (int pass = 0; pass < 2; pass++) {
        int64_t kept = page->block_count + 2 * FAR, prose = kept; /* none */
        for (int64_t k = page->block_count - 1; k >= 0; k--) {
            const Block *block = &page->blocks[k];
            Group *group = group_of(facts, block_place(page, block));
            bool leads = prose < (group->next > k ? group->next : k + 2 * FAR);
            group->next = (int32_t)k;
            group->led += !pass && leads;
            group->same += !pass && group->hash == block->hash;
            group->hash = block->hash;
            bool is_led = leads && group->count >= FEW && group->led >= LED * group->count && group->same * 4 <= group->count;
            if (pass && is_led && scores[k] < limit && may_name(page, block, scores[k], limit, kept - k)) scores[k] = limit;
            if (scores[k] < limit) continue;
            kept = k;
            if (is_prose(block)) prose = k;
        }
    }
}

/* Drop teasers below an article: those after its last sentence of which the model is sure. References in short lists and in
   tables stay. */
static void drop_teasers(const Page *page, const Facts *facts, float *scores, float limit) {
    if (teaser_share(page, facts, scores, limit) > FEW_TEASERS) return;
    for (int64_t k = page->block_count - 1; k >= 0; k--) {
        const Block *block = &page->blocks[k];
        bool is_one = is_teaser(page, facts, block);
        if (!is_one && scores[k] >= SURE_TEASER && is_prose(block)) return;
        if (is_one && scores[k] >= limit && scores[k] < SURE_TEASER && !whole(page, block->element)) scores[k] = limit - 1;
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
        if (!has_hints(page, block)) scores[k] = limit;
    }
}

/* True for the whole text of an item, or of a term or what it means. */
static bool is_item(const Page *page, const Block *block) {
    int32_t item = above(page, block->element, LI, LI), term = above(page, block->element, DT, DD);
    return (item && page->elements[item].blocks == 1) || (term && page->elements[term].blocks == 1);
}

/* Drop short texts of which the model is not sure and whose words are those of controls: "Read more", "Share". */
static void drop_controls(const Page *page, float *scores, float limit) {
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        bool is_label = block->words <= 3 && !block->stops && !block->digits && page->text[block->to - 1] != ':';
        if (scores[k] < limit || scores[k] >= SURE_TEASER || !is_label || block->pre) continue;
        if (is_heading(page->elements[block->element].tag) || whole(page, block->element) || is_item(page, block)) continue;
        uint8_t counts[PHRASES] = {0};
        read_hints(page, block, counts);
        if (counts[W_SHARE] || counts[W_RELATED] || counts[W_COMMENT] || counts[W_AD]) scores[k] = limit - 1;
    }
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

/* Drop lines that point to other pages: "Related article:" with a link, "Also read:" with links below it, and a sentence
   in parentheses that is a link. */
static void drop_pointers(const Page *page, const Facts *facts, float *scores, float limit) {
    if (teaser_share(page, facts, scores, limit) > FEW_TEASERS) return;
    bool is_below = false;
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        const uint8_t *text = page->text + block->from;
        int64_t size = block->to - block->from;
        if (scores[k] < limit) continue;
        if (!is_link_away(block)) {
            bool is_above = k + 1 < page->block_count && scores[k + 1] >= limit && is_link_away(&block[1]);
            is_below = is_above && size <= FRAGMENT_CHARS && text[size - 1] == ':' && is_pointer(page, block);
            if (is_below) scores[k] = limit - 1;
            continue;
        }
        uint8_t counts[PHRASES] = {0};
        text_hints(text, min_i64(size, POINTER_CHARS), counts);
        bool is_aside = text[0] == '(' && text[size - 1] == ')' && block->stops && block->link_chars * 10 >= block->chars * 9;
        if (is_below || is_aside || counts[W_RELATED] || is_pointer(page, block)) scores[k] = limit - 1;
    }
}

INLINE bool same_text(const Page *page, const Block *a, const Block *b) {
    return a->to - a->from == b->to - b->from && !memcmp(page->text + a->from, page->text + b->from, (size_t)(a->to - a->from));
}

/* True for a few words that are not an item, a cell, a term or code. */
static bool is_label(const Page *page, const Block *block) {
    return block->words <= 3 && block->chars <= FRAGMENT_CHARS && !block->stops && !block->pre && !is_part(page, block->element);
}

/* Drop labels that label nothing: the same words twice in a row, and wherever else they are. */
static void drop_labels(const Page *page, float *scores, float limit) {
    const Block *last = NULL;
    uint64_t idle = 0;
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        if (!(scores[k] >= limit)) continue;
        if (last && block->repeats && is_label(page, block) && same_text(page, last, block)) idle = block->hash;
        last = block;
    }
    for (int64_t k = 0; k < page->block_count && idle; k++)
        if (scores[k] >= limit && page->blocks[k].hash == idle && is_label(page, &page->blocks[k])) scores[k] = limit - 1;
}

/* A run of blocks that are kept: from `from` to before `to`, `gap` blocks away from the kept text toward the article. */
typedef struct { int64_t from, to, gap; float best; double chars; bool has_title, is_below_link; } Island;

static Island next_island(const Page *page, const float *first, const float *scores, float limit, int64_t at, int64_t begin) {
    int64_t count = page->block_count, last = at;
    while (at < count && !(scores[at] >= limit)) at++;
    Island found = {at, at, at - last, -INFINITY, 0, false, false};
    for (const Block *block = page->blocks + last; block < page->blocks + at; block++)
        found.is_below_link |= is_linked_title(block) && is_heading(page->elements[block->element].tag);
    for (; found.to < count && scores[found.to] >= limit; found.to++) {
        found.best = first[found.to] > found.best ? first[found.to] : found.best;
        found.chars += page->blocks[found.to].chars;
        found.has_title |= page->elements[page->blocks[found.to].element].tag == H1;
    }
    if (found.to > begin) return found;
    for (found.gap = 0; found.to + found.gap < count && !(scores[found.to + found.gap] >= limit);) found.gap++;
    return found;
}

/* Keep a table between text that is kept, or of several rows below it: the model takes many of them for clutter. One of
   links, or with much prose, is a menu, or lays out the page. */
static void keep_tables(const Page *page, float *scores, float limit) {
    for (int64_t k = 1, end; k < page->block_count; k = end) {
        const Element *elements = page->elements, *table = &elements[above(page, page->blocks[k].element, TABLE, TABLE)];
        end = k + 1;
        if (table == elements || table->first_block != k || table->blocks < FEW_CELLS) continue;
        if (table->link_chars * 3 >= table->chars || table->prose * 2 >= table->chars) continue;
        int64_t after = k + table->blocks, before = k - 1, last = after;
        while (last < page->block_count && last < after + NEAR && scores[last] < limit) last++;
        while (before >= 0 && before > k - NEAR && scores[before] < limit) before--;
        bool is_amid = last < page->block_count && scores[last] >= limit, is_far = table->blocks < 3 * FEW_CELLS;
        for (int64_t i = k; i < after && !is_amid; i++) is_far |= scores[i] < limit - NAMED;
        if (before < 0 || scores[before] < limit || (!is_amid && is_far)) continue;
        for (end = after; k < after; k++)
            if (scores[k] < limit && !is_pointer(page, &page->blocks[k])) scores[k] = limit;
    }
}

/* Keep a list between text that is kept, even one of links, if its score is close to the limit, and it neither announces
   other pages nor lists the sections of this page. */
static void keep_lists(const Page *page, float *scores, float limit) {
    for (int64_t k = 1, end; k < page->block_count; k = end) {
        const Block *block = &page->blocks[k];
        const Element *list = &page->elements[whole(page, block->element)];
        end = k + 1;
        if (!is_list(list->tag) || list->first_block != k || list->blocks < FEW || scores[k - 1] < limit) continue;
        end = k + list->blocks;
        int64_t after = end < page->block_count && scores[end] < limit ? end + 1 : end;
        if (after >= page->block_count || scores[after] < limit || scores[k] < limit - 1) continue;
        bool is_menu = !block->leads_away && block->link_chars * 2 > block->chars;
        for (int64_t i = k; i < end && !is_menu && !is_pointer(page, &block[-1]); i++)
            if (scores[i] < limit && !is_pointer(page, &page->blocks[i])) scores[i] = limit;
    }
}

/* Keep short lines at one place between paragraphs near them, such as the ingredients of a recipe, if the model's scores
   for them are not far below the limit, even if the slow engine votes against them. `votes`: what it added to `first`, or
   NULL. */
static void keep_lines(const Page *page, const float *first, const float *votes, float *scores, float limit) {
    const Block *blocks = page->blocks;
    for (int64_t k = 1, end; k < page->block_count; k = end) {
        bool is_short = true;
        for (end = k; end < page->block_count && block_place(page, &blocks[end]) == block_place(page, &blocks[k]) && is_short; end++)
            is_short = blocks[end].link_chars * 3 < blocks[end].chars && blocks[end].chars <= NAME_CHARS && !blocks[end].pre;
        int64_t count = end - k - !is_short, after = k + count, hints = 0;
        if (count < FEW || after >= page->block_count || scores[k - 1] < limit || scores[after] < limit) continue;
        if (!is_near(page, blocks[k - 1].element, blocks[k].element) || !is_near(page, blocks[after - 1].element, blocks[after].element)) continue;
        double sum = 0;
        for (int64_t i = k; i < after; i++) {
            sum += first[i] - (votes ? votes[i] : 0);
            hints += has_hints(page, &blocks[i]);
        }
        if (hints * 4 > count || sum < (double)(limit - JOINED) * (double)count) continue;
        for (int64_t i = k; i < after; i++)
            if (scores[i] < limit) scores[i] = limit;
    }
}

/* True for a short text of few links that has a sign of mathematics: an equals sign, an operator, an angle bracket. */
static bool is_formula(const Page *page, const Block *block) {
    if (block->link_chars * 3 >= block->chars || block->chars > CALL_CHARS) return false;
    for (int64_t at = block->from; at < block->to; at++) {
        const uint8_t *sign = page->text + at;
        if (*sign == '=') return true;
        if (*sign != 0xE2 || at + 2 >= block->to) continue;
        if (sign[1] >= 0x88 && sign[1] <= 0x8B) return true;                     /* U+2200 to U+22FF */
        if (sign[1] == 0x9F && (sign[2] == 0xA8 || sign[2] == 0xA9)) return true; /* U+27E8, U+27E9 */
    }
    return false;
}

/* Keep a formula below kept text, and the explanation after it up to the next kept text: the model does not take signs
   for words. */
static void keep_formulas(const Page *page, float *scores, float limit) {
    for (int64_t k = 1; k < page->block_count; k++) {
        if (scores[k - 1] < limit || scores[k] >= limit || !is_formula(page, &page->blocks[k])) continue;
        if (is_caption(page, page->blocks[k].element)) continue;
        int64_t end = k + 1;
        while (end < page->block_count && end < k + NEAR && scores[end] < limit) {
            if (page->blocks[end].link_chars * 3 >= page->blocks[end].chars) break;
            end++;
        }
        if (end == page->block_count || scores[end] < limit) continue;
        for (; k < end; k++) scores[k] = limit;
    }
}

/* Drop text away from an article, which begins and ends with a sentence of which the model is sure: after its end, or
   far before it. What is at the same place as the text before stays with it. `first`: scores before any rule changed them. */
static void drop_islands(const Page *page, const float *first, float *scores, float limit) {
    int64_t begin = -1, end = -1, count = page->block_count;
    double kept = 0, lonely = 0;
    for (int64_t k = 0; k < count; k++) {
        if (!(scores[k] >= limit)) continue;
        kept += page->blocks[k].chars;
        if (!(first[k] >= SURE_TEASER) || page->blocks[k].chars < PROSE) continue;
        begin = begin < 0 ? k : begin;
        end = k;
    }
    for (int pass = 0; pass < 2 && end >= 0 && lonely <= FEW_ISLANDS * kept; pass++) {
        Island at = next_island(page, first, scores, limit, 0, begin);
        for (uint64_t place = 0; at.from < count; at = next_island(page, first, scores, limit, at.to, begin)) {
            bool is_far = at.gap >= FAR_AWAY;
            bool is_alike = block_place(page, &page->blocks[at.from]) == place && is_prose(&page->blocks[at.from]);
            bool is_after = at.from > end && at.gap > 0 && at.best < (is_far || at.is_below_link ? SURE_TEASER : LONELY);
            bool is_before = at.to <= begin && is_far && at.best < LONELY;
            if (!(is_after || is_before) || at.has_title || is_alike) {
                place = block_place(page, &page->blocks[at.to - 1]);
                continue;
            }
            lonely += at.chars;
            for (int64_t k = at.from; pass && k < at.to; k++) scores[k] = limit - 1;
        }
    }
}

/* True for an element that is among comments by its classes, or by those of an element above it. */
static bool is_in_comments(const Page *page, int32_t at) {
    while (at > 0 && !(page->elements[at].hints >> H_COMMENT & 1)) at = page->elements[at].parent;
    return at > 0;
}

/* True for a heading of comments below an article: "3 Comments", "Replies to ...", if elements say so, too. */
static bool begins_comments(const Page *page, int64_t k) {
    static const char *const words[] = {"comment", "comments", "reply", "replies", "response", "responses", "reactions", "thoughts", "discussion",
                                        "commentaires", "comentarios", "coment\xC3\xA1rios", "commenti", "kommentare", "antworten", "reacties"};
    const Block *block = &page->blocks[k];
    const uint8_t *at = page->text + block->from, *end = page->text + block->to, *from;
    if (!is_heading(page->elements[block->element].tag)) return false;
    while (at < end && (is_digit(*at) || strchr(" (,", *at))) at++;
    for (from = at; at < end && in_word(*at);) at++;
    bool is_one = false;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) is_one |= equals(from, at - from, words[i]);
    if (!is_one) return false;
    for (int64_t i = k; i < min_i64(k + NEAR, page->block_count); i++)
        if (is_in_comments(page, page->blocks[i].element)) return true;
    return false;
}

/* Drop comments below an article: from their heading to the next of its level. `first`: scores before any rule changed
   them; comments do not add to the doubt. */
static void drop_comments(const Page *page, float *first, float *scores, float limit) {
    int level = 0;
    double kept = 0;
    for (int64_t k = 0; k < page->block_count; k++) {
        int tag = page->elements[page->blocks[k].element].tag;
        if (level && is_heading(tag) && tag <= level) level = 0;
        if (!level && kept >= LITTLE_CHARS && begins_comments(page, k)) level = tag;
        if (level) first[k] = scores[k] = limit - HOPELESS;
        else kept += scores[k] >= limit ? page->blocks[k].chars : 0;
    }
}

/* Drop the end of an article if it only asks the reader to buy, subscribe or comment, or speaks of the author: from a
   heading, a gap or a paragraph of several calls on. */
static void drop_calls(const Page *page, float *scores, float limit) {
    double kept = 0, chars = 0, calls = 0;
    int64_t end = page->block_count, begin = end;
    for (int64_t k = 0; k < end; k++) kept += scores[k] >= limit ? page->blocks[k].chars : 0;
    for (int64_t k = end - 1; k > 0; k--) {
        const Block *block = &page->blocks[k];
        if (!(scores[k] >= limit)) continue;
        bool is_start = is_heading(page->elements[block->element].tag);
        int found = count_calls(page->text + block->from, block->to - block->from);
        chars += is_start ? 0 : block->chars;
        calls += found;
        if (block->pre || whole(page, block->element) || block->chars > CALL_CHARS || chars > FEW_CALLS * kept) break;
        is_start |= found > 1 || !(scores[k - 1] >= limit);
        if (is_start && calls > 1 && calls * CALL_SPAN >= chars) begin = k;
    }
    for (int64_t k = begin; k < end; k++)
        if (scores[k] >= limit) scores[k] = limit - 1;
}

/* First words of lines below a post that say where it was filed, or lead to the next, in lower case. The first ones are
   below the whole post only. */
static const char *const POST_ENDS[] = {
    "this entry was posted", "this article was posted", "posted in", "posted on", "posted by", "posted under", "filed under",
    "filed in", "tagged", "tags:", "category:", "categories:", "keep reading", "previous post", "next post", "previous:", "next:",
    "previous article", "next article", "older:", "newer:", "older post", "newer post", "bookmark the", "permalink", "leave a comment",
    "comments are closed", "no comments"};
enum { WHOLE_POST_ENDS = 2 };

/* Drop what is below such a line at the end of an article, up to FEW_ISLANDS of the text, if it has no paragraph, and all
   that is below a whole post. */
static void drop_post_end(const Page *page, float *scores, float limit) {
    double kept = 0, chars = 0;
    int64_t begin = page->block_count;
    for (int64_t k = 0; k < page->block_count; k++) {
        if (!(scores[k] >= limit)) continue;
        if (kept >= LITTLE_CHARS && begin > k && begins_with_any(page, &page->blocks[k], POST_ENDS, WHOLE_POST_ENDS)) begin = k;
        kept += page->blocks[k].chars;
    }
    for (int64_t k = begin - 1; k > 0 && chars <= FEW_ISLANDS * kept; k--) {
        const Block *block = &page->blocks[k];
        if (!(scores[k] >= limit)) continue;
        bool is_end = begins_with_any(page, block, POST_ENDS, sizeof POST_ENDS / sizeof POST_ENDS[0]);
        if (block->pre || (!is_end && is_prose(block))) break;
        chars += block->chars;
        if (is_end && chars <= FEW_ISLANDS * kept) begin = k;
    }
    for (int64_t k = begin; k < page->block_count; k++)
        if (scores[k] >= limit) scores[k] = limit - 1;
}

/* Drop headings, fragments of up to two words and what ends with a colon at the end of a text: what they belong to was
   dropped. */
static void drop_tail(const Page *page, float *scores, float limit) {
    for (int64_t k = page->block_count - 1; k >= 0; k--) {
        const Block *block = &page->blocks[k];
        int32_t own = block->element;
        int tag = page->elements[own].tag;
        if (scores[k] < limit) continue;
        bool is_structured = block->pre || whole(page, own) || above(page, own, LI, LI) || above(page, own, DT, DD);
        bool is_fragment = block->words <= 2 && block->chars <= FRAGMENT_CHARS && !block->stops && !is_structured;
        is_fragment |= page->text[block->to - 1] == ':' && !is_structured;
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

/* True for a question at a place of the page's structure where most are questions. */
static bool is_asked(const Page *page, const Facts *facts, const Block *block) {
    if (!is_question(page, block)) return false;
    const Group *group = group_of(facts, block_place(page, block));
    return group->questions >= FEW && group->questions >= ASKED * group->count;
}

/* Keep such questions, their heading, and the answers below them whose score was not far below the limit at first: the
   model and other rules take questions at the end of an article for clutter. */
static void keep_answers(const Page *page, const Facts *facts, const float *first, float *scores, float limit) {
    for (int64_t k = 0, end; k < page->block_count; k = end) {
        const Block *block = &page->blocks[k];
        end = k + 1;
        if (!is_asked(page, facts, block) || first[k] < limit - OUTVOTED || (k > 0 && is_asked(page, facts, &block[-1]))) continue;
        for (; end < page->block_count && !is_question(page, &page->blocks[end]); end++) {
            bool is_answer = scores[end] >= limit || (is_prose(&page->blocks[end]) && first[end] >= limit - JOINED);
            if (!is_answer || !is_near(page, page->blocks[end - 1].element, page->blocks[end].element)) break;
        }
        bool is_last = end == page->block_count || !is_asked(page, facts, &page->blocks[end]);
        int64_t to = is_last ? min_i64(end, k + 2) : end, from = k;
        if (k > 0 && is_titled(page, block[-1].element) && first[k - 1] >= limit - HOPELESS) from--;
        for (int64_t i = from; i < to && to > k + 1; i++)
            if (scores[i] < limit) scores[i] = limit;
    }
}

/* Keep the ingredients and steps of a recipe, near the element that has them: the model takes the short ones for
   clutter. */
static void keep_recipe(const Page *page, float *scores, float limit) {
    if (!page->kinds[K_RECIPE]) return;
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        int32_t at = block->element;
        bool is_item = above(page, at, LI, LI) || page->elements[at].tag == P, is_title = is_heading(page->elements[at].tag) && block->chars > 3;
        if (scores[k] >= limit || !(is_item || is_title) || block->link_chars * 3 >= block->chars || is_in_comments(page, at)) continue;
        for (int level = 0; level < NEAR && at > 0; level++, at = page->elements[at].parent)
            if (page->elements[at].hints >> H_RECIPE & 1) scores[k] = limit;
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
