#pragma once
/* Rules that keep what the model takes for clutter: what belongs to text that is kept. */
#include "plinth/corpus/extract/content/rules.h"

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
