#pragma once
/* Traits of an extracted text, the inputs of the risk model: signs of foreign text that the model of blocks has kept, such
   as calls, and text at rare places of the page's structure. */
#include "plinth/corpus/extract/content/rules.h"

/* In the order of `TRAITS` in `risk.py`: share of teasers; characters of the longest run of blocks that call; calls at the
   end of the text; calls in a run of blocks at rare places; characters of such a run at the end. A place is rare if it has
   less than RARE of the text. All traits are from 0 to 1: of at most RUN_CHARS characters, or MOST_CALLS calls. */
enum { T_TEASERS, T_CALL_RUN, T_CALLS_AT_END, T_RARE_CALLS, T_RARE_END, TRAITS };
#define RARE 0.1
enum { RUN_CHARS = 2000, MOST_CALLS = 10, END_BLOCKS = 12 };

INLINE double up_to(double value, double most) { return (value < most ? value : most) / most; }

static void read_traits(const Page *page, const Facts *facts, const float *scores, float limit, double *out) {
    int64_t end = 0;
    double kept = 0, run = 0, calls = 0, rare = 0, rare_calls = 0;
    for (int64_t k = 0; k < page->block_count; k++) group_of(facts, block_place(page, &page->blocks[k]))->kept = 0;
    for (int64_t k = 0; k < page->block_count; k++) {
        if (!(scores[k] >= limit)) continue;
        group_of(facts, block_place(page, &page->blocks[k]))->kept += page->blocks[k].chars;
        kept += page->blocks[k].chars;
        end = k;
    }
    memset(out, 0, TRAITS * sizeof *out);
    for (int64_t k = 0; k <= end && kept > 0; k++) {
        const Block *block = &page->blocks[k];
        int32_t own = block->element;
        if (!(scores[k] >= limit) || is_heading(page->elements[own].tag)) continue;
        int found = count_calls(page->text + block->from, block->to - block->from);
        bool is_call = found * CALL_SPAN >= block->chars;
        calls = is_call ? calls + found : 0;
        run = is_call ? run + block->chars : 0;
        if (calls > 1 && run > out[T_CALL_RUN]) out[T_CALL_RUN] = run;
        if (k + END_BLOCKS > end) out[T_CALLS_AT_END] += found;
        if (block->pre || above(page, own, LI, LI) || above(page, own, TD, TH)) continue;
        bool is_rare = group_of(facts, block_place(page, block))->kept < RARE * kept;
        rare = is_rare ? rare + block->chars : 0;
        rare_calls = is_rare ? rare_calls + found : 0;
        if (rare_calls > out[T_RARE_CALLS]) out[T_RARE_CALLS] = rare_calls;
        out[T_RARE_END] = rare;
    }
    bool is_forum = page->kinds[K_FORUM] || page->hints >> H_FORUM & 1;
    out[T_TEASERS] = is_forum ? 0 : teaser_share(page, facts, scores, limit);
    out[T_CALL_RUN] = up_to(out[T_CALL_RUN], RUN_CHARS);
    out[T_CALLS_AT_END] = up_to(out[T_CALLS_AT_END], MOST_CALLS);
    out[T_RARE_CALLS] = up_to(out[T_RARE_CALLS], MOST_CALLS);
    out[T_RARE_END] = up_to(out[T_RARE_END], RUN_CHARS);
}
