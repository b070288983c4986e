#pragma once
/* Traits of an extracted text, the inputs of the risk model: signs of foreign text that the model of blocks has kept. */
#include "plinth/corpus/extract/content/rules.h"

/* In the order of `TRAITS` in `risk.py`: share of teasers; calls in the last fifth of the text; and, of the section that has
   most, how much the site speaks of itself (the texts that name it, and those that call or speak to readers), and "we" in
   1,000 characters. A text that names the site has SITE_CALLS more calls if it calls or speaks to readers. All traits are
   from 0 to 1: of at most MOST_CALLS, MOST_SPEECH, or MOST_WE. */
enum { T_TEASERS, T_CALLS_AT_END, T_SPEECH, T_WE, TRAITS };
#define END 0.2
enum { MOST_CALLS = 10, MOST_SPEECH = 10, MOST_WE = 25, SITE_CALLS = 2, LABEL_CHARS = 80, SECTION_CHARS = 100 };

INLINE double up_to(double value, double most) { return (value < most ? value : most) / most; }

/* Text from a heading, or a label, to the next. */
typedef struct {
    double chars, named, speaking, we;
    bool has_text;
} Section;

static void add_to_section(const Page *page, const Block *block, const Speech *speech, int calls, Section *section) {
    int32_t own = block->element;
    bool is_part = above(page, own, LI, LI) || above(page, own, TD, TH), is_start = is_heading(page->elements[own].tag);
    is_start |= block->chars < LABEL_CHARS && !is_part && !strchr(".!,;", page->text[block->to - 1]);
    if (is_start && section->has_text) memset(section, 0, sizeof *section);
    section->has_text |= !is_start;
    section->chars += block->chars;
    section->named += speech->is_named;
    section->speaking += speech->we || speech->you || calls;
    section->we += speech->we;
}

static void read_traits(const Page *page, const Facts *facts, const float *scores, float limit, double *out) {
    double kept = 0, seen = 0;
    Section section = {0};
    for (int64_t k = 0; k < page->block_count; k++) kept += scores[k] >= limit ? page->blocks[k].chars : 0;
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        if (!(scores[k] >= limit)) continue;
        const uint8_t *text = page->text + block->from;
        Speech speech = read_speech(text, block->to - block->from, page->names, SITE_NAMES);
        int calls = count_calls(text, block->to - block->from);
        if (speech.is_named && (calls || speech.we || speech.you)) calls += SITE_CALLS;
        if (kept - seen <= END * kept) out[T_CALLS_AT_END] += calls;
        seen += block->chars;
        add_to_section(page, block, &speech, calls, &section);
        double said = sqrt(section.named * section.speaking), we = section.we * 1000 / (section.chars + 2 * SECTION_CHARS);
        if (said > out[T_SPEECH]) out[T_SPEECH] = said;
        if (section.chars > SECTION_CHARS && we > out[T_WE]) out[T_WE] = we;
    }
    bool is_forum = page->kinds[K_FORUM] || page->hints >> H_FORUM & 1;
    out[T_TEASERS] = is_forum ? 0 : teaser_share(page, facts, scores, limit);
    out[T_CALLS_AT_END] = up_to(out[T_CALLS_AT_END], MOST_CALLS);
    out[T_SPEECH] = up_to(out[T_SPEECH], MOST_SPEECH);
    out[T_WE] = up_to(out[T_WE], MOST_WE);
}
