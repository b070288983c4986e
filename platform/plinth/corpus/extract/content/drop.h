#pragma once
/* Rules that drop what the model takes for content: what is around an article, or below it. */
#include "plinth/corpus/extract/content/rules.h"

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

/* Drop comments below an article: from their heading to the next of its level. Where the article itself is below such an
   element, the element does not tell. `first`: scores before any rule changed them; comments do not add to the doubt. */
static void drop_comments(const Page *page, float *first, float *scores, float limit) {
    int level = 0;
    int32_t last = 0; /* element of the text that was kept last */
    double kept = 0;
    for (int64_t k = 0; k < page->block_count; k++) {
        int tag = page->elements[page->blocks[k].element].tag;
        if (level && is_heading(tag) && tag <= level) level = 0;
        if (!level && kept >= LITTLE_CHARS && !is_in_comments(page, last) && begins_comments(page, k)) level = tag;
        if (level) first[k] = scores[k] = limit - HOPELESS;
        else if (scores[k] >= limit) {
            kept += page->blocks[k].chars;
            last = page->blocks[k].element;
        }
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
