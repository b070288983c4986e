#pragma once
/* How likely a text is to fail as main content: traits of what is kept and dropped, weighed by a model of the page. */
#include "plinth/corpus/extract/content/rules.h"

enum { MOST_RUN = 2000, MOST_CHARS = 20000 };

/* Traits of a page, in the order of the weights in `page_model.json`. Shares are of the characters of the text. */
enum {
    T_LOSS, T_UNSURE, T_TEASERS, T_LINKS, T_RUNS, T_PROSE_AMID, T_PROSE_AWAY, T_CALLS, T_CALL_RUN, T_CALLS_AT_END, T_TAIL, T_HEAD,
    T_CLUTTER, T_AUTHOR, T_FOREIGN_RUN, T_LOST_RUN, T_BARE_HEADINGS, T_FRAGMENTS, T_CUT, T_SHORT, T_LONG, T_ARTICLE, T_FORUM, T_LIST,
    T_PRODUCT, T_OFFER, T_ODD, T_ODD_RUN, T_ODD_CALLS, T_ODD_END, T_ODD_LOW, TRAITS
};

INLINE double most(double value, double limit) { return value < limit ? value : limit; }

/* Groups of hints of the elements above a block, other than those that hold much of the page. */
static uint32_t hints_above(const Page *page, int32_t at, double kept) {
    uint32_t hints = 0;
    for (; at > 0; at = page->elements[at].parent)
        if (page->elements[at].chars * 2 < kept) hints |= page->elements[at].hints;
    return hints;
}

static void read_traits(const Page *page, const Facts *facts, const float *first, const float *scores, float limit, double *out) {
    static const uint32_t clutter = 1u << H_COMMENT | 1u << H_SHARE | 1u << H_RELATED | 1u << H_AD | 1u << H_NEWSLETTER | 1u << H_FOOTER | 1u << H_SIDE | 1u << H_LOGIN | 1u << H_COOKIE;
    int64_t count = page->block_count, begin = -1, end = -1, first_sure = -1, last_sure = -1;
    double kept = 0, blocks = 0;
    memset(out, 0, TRAITS * sizeof *out);
    for (int64_t k = 0; k < count; k++) {
        if (!(scores[k] >= limit)) continue;
        kept += page->blocks[k].chars;
        blocks++;
        begin = begin < 0 ? k : begin;
        end = k;
        if (!(first[k] >= SURE_TEASER) || page->blocks[k].chars < PROSE) continue;
        first_sure = first_sure < 0 ? k : first_sure;
        last_sure = k;
    }
    for (int64_t k = 0; k < facts->room; k++) facts->groups[k].kept = 0;
    for (int64_t k = 0; k < count; k++)
        if (scores[k] >= limit) group_of(facts, block_place(page, &page->blocks[k]))->kept += page->blocks[k].chars;
    double odd = 0, odd_calls = 0;
    bool is_forum = page->kinds[K_FORUM] || page->hints >> H_FORUM & 1, was_heading = false;
    double both = 0, total = 0, foreign = 0, lost = 0, calls = 0, call_chars = 0;
    int heading = 0;
    for (int64_t k = 0; k < count; k++) {
        const Block *block = &page->blocks[k];
        double chars = block->chars, content = probability(first[k]) * chars;
        bool is_kept = scores[k] >= limit, is_cut = k + 1 < count && !(scores[k + 1] >= limit);
        int tag = page->elements[block->element].tag, level = is_heading(tag) ? tag - H1 + 1 : 0;
        total += content;
        if (!is_kept) {
            double text = is_prose(block) ? chars : 0;
            out[k > begin && k < end ? T_PROSE_AMID : T_PROSE_AWAY] += text;
            lost = k > begin && k < end && lost + 2 * content - chars > 0 ? lost + 2 * content - chars : 0;
            out[T_LOST_RUN] = lost > out[T_LOST_RUN] ? lost : out[T_LOST_RUN];
            continue;
        }
        both += content;
        foreign = foreign + chars - 2 * content > 0 ? foreign + chars - 2 * content : 0;
        out[T_FOREIGN_RUN] = foreign > out[T_FOREIGN_RUN] ? foreign : out[T_FOREIGN_RUN];
        out[T_UNSURE] += first[k] >= SURE ? 0 : chars;
        out[T_LINKS] += block->link_chars;
        out[T_RUNS] += is_cut;
        int found = level ? 0 : count_calls(page->text + block->from, block->to - block->from);
        bool is_call = found * CALL_SPAN >= block->chars;
        out[T_CALLS] += is_call ? chars : 0;
        if (!level) {
            calls = is_call ? calls + found : 0;
            call_chars = is_call ? call_chars + chars : 0;
            if (calls >= 2 && call_chars > out[T_CALL_RUN]) out[T_CALL_RUN] = call_chars;
            if (k + 12 > end) out[T_CALLS_AT_END] += found;
        }
        bool is_apart = above(page, block->element, LI, LI) || above(page, block->element, TD, TH) || block->pre;
        if (!level && !is_apart) {
            bool is_odd = group_of(facts, block_place(page, block))->kept < 0.1 * kept;
            odd = is_odd ? odd + chars : 0;
            odd_calls = is_odd ? odd_calls + found : 0;
            out[T_ODD] += is_odd ? chars : 0;
            out[T_ODD_LOW] += is_odd && first[k] < 3 ? chars : 0;
            if (odd > out[T_ODD_RUN]) out[T_ODD_RUN] = odd;
            if (odd_calls > out[T_ODD_CALLS]) out[T_ODD_CALLS] = odd_calls;
            out[T_ODD_END] = odd;
        }
        out[T_TAIL] += k > last_sure ? chars : 0;
        out[T_HEAD] += k < first_sure ? chars : 0;
        uint32_t hints = hints_above(page, block->element, kept);
        out[T_CLUTTER] += hints & clutter ? chars : 0;
        out[T_AUTHOR] += hints >> H_AUTHOR & 1 ? chars : 0;
        out[T_BARE_HEADINGS] += level && (is_cut || (was_heading && level <= heading));
        bool is_plain = !level && !above(page, block->element, LI, LI) && !above(page, block->element, TD, TH) && !block->pre;
        out[T_FRAGMENTS] += is_plain && block->words <= 3;
        out[T_CUT] += is_cut && page->text[block->to - 1] == ':';
        was_heading = level > 0;
        heading = level;
    }
    double share = kept > 0 ? 1 / kept : 0, each = blocks > 0 ? 1 / blocks : 0;
    out[T_LOSS] = total + kept > 0 ? 1 - 2 * both / (total + kept) : 1;
    out[T_TEASERS] = is_forum ? 0 : teaser_share(page, facts, scores, limit);
    static const uint8_t shares[] = {T_ODD, T_ODD_LOW, T_UNSURE, T_LINKS, T_CALLS, T_TAIL, T_HEAD, T_CLUTTER, T_AUTHOR};
    for (size_t k = 0; k < sizeof shares; k++) out[shares[k]] *= share;
    static const uint8_t ratios[] = {T_RUNS, T_BARE_HEADINGS, T_FRAGMENTS};
    for (size_t k = 0; k < sizeof ratios; k++) out[ratios[k]] *= each;
    out[T_PROSE_AMID] = most(out[T_PROSE_AMID] * share, 1);
    out[T_PROSE_AWAY] = most(out[T_PROSE_AWAY] * share, 1);
    out[T_CALL_RUN] = most(out[T_CALL_RUN], MOST_RUN) / MOST_RUN;
    out[T_FOREIGN_RUN] = most(out[T_FOREIGN_RUN], MOST_RUN) / MOST_RUN;
    out[T_LOST_RUN] = most(out[T_LOST_RUN], MOST_RUN) / MOST_RUN;
    out[T_CALLS_AT_END] = most(out[T_CALLS_AT_END], 10) / 10;
    out[T_CUT] = most(out[T_CUT], 5) / 5;
    out[T_ODD_RUN] = most(out[T_ODD_RUN], MOST_RUN) / MOST_RUN;
    out[T_ODD_END] = most(out[T_ODD_END], MOST_RUN) / MOST_RUN;
    out[T_ODD_CALLS] = most(out[T_ODD_CALLS], 10) / 10;
    out[T_SHORT] = kept < ARTICLE_CHARS ? 1 : 0;
    out[T_LONG] = most(kept, MOST_CHARS) / MOST_CHARS;
    out[T_ARTICLE] = page->kind == ARTICLE_KIND;
    out[T_FORUM] = is_forum;
    out[T_LIST] = page->kinds[K_LIST] > 0;
    out[T_PRODUCT] = page->kinds[K_PRODUCT] > 0;
    out[T_OFFER] = page->kinds[K_OFFER] > 0;
}
