#pragma once
/* What is known of the text without knowing better: how good the model expects it to be, and how much of it announces
   other pages. */
#include "plinth/corpus/extract/content/features.h"

/* Log-odds from which the model is sure: a probability of 0.8. */
#define SURE 1.3862944f
/* Most characters of a teaser on average, and least share of the items that have a name that is a link. */
#define TEASER_CHARS 600
#define LINKED 0.7

/* Probability of log-odds, by a table and straight lines between: the same on every machine. */
static double probability(double score) {
    static const double table[] = {0.0025, 0.0067, 0.018, 0.0474, 0.1192, 0.2689, 0.5, 0.7311, 0.8808, 0.9526, 0.982, 0.9933, 0.9975};
    enum { HALF = 6 };
    if (!(score > -HALF)) return table[0]; /* not a number, too: a model may be broken */
    if (score >= HALF) return table[2 * HALF];
    double at = score + HALF;
    int64_t k = min_i64((int64_t)at, 2 * HALF - 1);
    return table[k] + (at - (double)k) * (table[k + 1] - table[k]);
}

/* Doubt about the blocks whose score is at least the limit: 1 minus the F1 of characters that the model expects, or the
   share of characters in blocks of which the model is not sure, if that is more. `first`: scores before any rule changed
   them. */
static double doubt(const Page *page, const float *first, const float *scores, float limit) {
    double both = 0, total = 0, kept = 0, unsure = 0;
    for (int64_t k = 0; k < page->block_count; k++) {
        double chars = page->blocks[k].chars, content = probability(first[k]) * chars;
        total += content;
        if (!(scores[k] >= limit)) continue;
        kept += chars;
        both += content;
        unsure += first[k] >= SURE ? 0 : chars;
    }
    double loss = total + kept > 0 ? 1 - 2 * both / (total + kept) : 0, share = kept > 0 ? unsure / kept : 0;
    return loss > share ? loss : share;
}

/* True for text in a small item of a list whose items have names that lead to other pages. */
static bool is_teaser(const Page *page, const Facts *facts, const Block *block) {
    for (int32_t at = block->element; at > 0; at = page->elements[at].parent) {
        const Element *element = &page->elements[at];
        if (element->blocks < 2 || !element->linked_titles) continue;
        const Group *group = group_of(facts, element->place);
        if (group->count >= FEW && group->linked_titles >= LINKED * group->count && group->chars <= TEASER_CHARS * group->count) return true;
    }
    return false;
}

/* Share of the text that announces other pages. */
static double teaser_share(const Page *page, const Facts *facts, const float *scores, float limit) {
    double teasers = 0, kept = 0;
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        if (scores[k] < limit) continue;
        kept += block->chars;
        bool is_link = block->leads_away && block->link_chars * 2 > block->chars;
        teasers += is_link || is_teaser(page, facts, block) ? block->chars : 0;
    }
    return kept > 0 ? teasers / kept : 0;
}
