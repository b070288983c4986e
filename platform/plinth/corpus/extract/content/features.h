#pragma once
/* Features of each block, by which the model tells main content from the rest. Only counts and exact quotients, so that
   they are the same on every machine. Bump `VERSION` in `engine.py` when they change: a model is learned for them. */
#include "plinth/corpus/extract/content/page.h"

enum { FEATURES = 201, FEW = 3, LEVELS = 5, NEIGHBORS = 3, FAR = 12, NEAR_TEXT = 300, NEAR_HEADING = 120, PROSE = 80, TITLE_CHARS = 20 };

/* Sums over the blocks, or over the elements, at one place of the page's structure. */
typedef struct {
    uint64_t place;
    int32_t count, first, last, next, led, same; /* `next` to `hash`: of `keep_names` */
    uint64_t hash;
    double chars, link_chars, prose, stops, digits, repeats, blocks, linked_titles, questions, kept;
} Group;

/* Facts of the page that all blocks share. */
typedef struct {
    Group *groups;          /* a hash table of `room` rows: the elements by their place, and the blocks by that of theirs */
    int64_t room;
    double commented; /* share of the text in comments */
    float chars, prose, links;
    int32_t tags[TAGS];
    int32_t *before, *after; /* distance to the nearest block of prose */
    int32_t heading;         /* first block of an `h1`, or -1 */
} Facts;

INLINE float ratio(double part, double whole) { return (float)(part / (whole + 1e-6)); }

/* A sentence of some length that is not a link. */
INLINE bool is_prose(const Block *block) {
    return block->chars >= PROSE && block->link_chars * 3 < block->chars && block->stops > 0;
}

/* A name that links to another page, as teasers have. */
INLINE bool is_linked_title(const Block *block) {
    return block->leads_away && block->chars >= TITLE_CHARS && block->link_chars * 3 > block->chars * 2;
}

/* True if a block ends with ?, ？ or ؟. */
INLINE bool is_question(const Page *page, const Block *block) {
    const uint8_t *end = page->text + block->to;
    int64_t size = block->to - block->from;
    return end[-1] == '?' || (size > 3 && !memcmp(end - 3, "\xEF\xBC\x9F", 3)) || (size > 2 && !memcmp(end - 2, "\xD8\x9F", 2));
}

static void sum_elements(Page *page) {
    Element *elements = page->elements;
    for (int64_t k = 0; k < page->block_count; k++) {
        Block *block = &page->blocks[k];
        Element *own = &elements[block->element];
        own->chars += block->chars;
        own->link_chars += block->link_chars;
        own->commas += block->commas;
        own->linked_titles += is_linked_title(block);
        own->prose += is_prose(block) ? block->chars : 0;
        own->blocks++;
    }
    for (int64_t k = page->element_count - 1; k > 0; k--) {
        Element *own = &elements[k], *above = &elements[own->parent];
        above->chars += own->chars;
        above->link_chars += own->link_chars;
        above->commas += own->commas;
        above->prose += own->prose;
        above->blocks += own->blocks;
        above->linked_titles += own->linked_titles;
    }
}

/* Count how often the text of each block is on the page again. */
static bool count_repeats(Page *page) {
    int64_t room = 2;
    while (room < 2 * page->block_count + 2) room *= 2;
    int32_t *table = malloc((size_t)room * sizeof(int32_t));
    if (!table) return false;
    memset(table, -1, (size_t)room * sizeof(int32_t));
    for (int64_t k = 0; k < page->block_count; k++) {
        uint64_t hash = page->blocks[k].hash;
        int64_t at = (int64_t)((hash ^ hash >> 29) & (uint64_t)(room - 1));
        while (table[at] >= 0 && page->blocks[table[at]].hash != hash) at = (at + 1) & (room - 1);
        if (table[at] < 0) table[at] = (int32_t)k;
        else {
            page->blocks[table[at]].repeats++;
            page->blocks[k].repeats = 1;
        }
    }
    free(table);
    return true;
}

/* Row of a place in the table of groups. */
static Group *group_of(const Facts *facts, uint64_t place) {
    int64_t at = (int64_t)((place ^ place >> 29) & (uint64_t)(facts->room - 1));
    while (facts->groups[at].count && facts->groups[at].place != place) at = (at + 1) & (facts->room - 1);
    return &facts->groups[at];
}

/* Place of a block, which differs from that of its element. */
INLINE uint64_t block_place(const Page *page, const Block *block) { return ~page->elements[block->element].place; }

static bool sum_groups(const Page *page, Facts *facts) {
    facts->room = 2;
    while (facts->room < 2 * (page->element_count + page->block_count)) facts->room *= 2;
    facts->groups = calloc((size_t)facts->room, sizeof(Group));
    if (!facts->groups) return false;
    for (int64_t k = 1; k < page->element_count; k++) {
        const Element *element = &page->elements[k];
        if (!element->blocks) continue;
        Group *group = group_of(facts, element->place);
        group->place = element->place;
        group->count++;
        group->chars += element->chars;
        group->link_chars += element->link_chars;
        group->prose += element->prose;
        group->blocks += element->blocks;
        group->linked_titles += element->linked_titles;
    }
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        Group *group = group_of(facts, block_place(page, block));
        if (!group->count) group->first = (int32_t)k;
        group->place = block_place(page, block);
        group->count++;
        group->last = (int32_t)k;
        group->chars += block->chars;
        group->link_chars += block->link_chars;
        group->prose += is_prose(block) ? block->chars : 0;
        group->stops += block->stops;
        group->digits += block->digits;
        group->repeats += block->repeats > 0;
        group->questions += is_question(page, block);
    }
    return true;
}

static bool read_facts(Page *page, Facts *facts) {
    int64_t count = page->block_count;
    memset(facts, 0, sizeof *facts);
    sum_elements(page);
    facts->chars = (float)page->elements[0].chars + 1.0f;
    facts->prose = (float)page->elements[0].prose;
    facts->links = (float)page->elements[0].link_chars / facts->chars;
    facts->heading = -1;
    for (int64_t k = 1; k < page->element_count; k++) facts->tags[page->elements[k].tag]++;
    facts->before = malloc((size_t)(2 * count + 2) * sizeof(int32_t));
    if (!facts->before || !count_repeats(page) || !sum_groups(page, facts)) return false;
    for (int64_t k = 0; k < count; k++) {
        int32_t at = page->blocks[k].element;
        while (at > 0 && !(page->elements[at].hints >> H_COMMENT & 1)) at = page->elements[at].parent;
        facts->commented += at > 0 ? page->blocks[k].chars / facts->chars : 0;
    }
    facts->after = facts->before + count;
    int64_t last = -1000;
    for (int64_t k = 0; k < count; k++) {
        facts->before[k] = (int32_t)(k - last);
        if (is_prose(&page->blocks[k])) last = k;
        for (int32_t at = page->blocks[k].element; at > 0 && facts->heading < 0; at = page->elements[at].parent)
            if (page->elements[at].tag == H1) facts->heading = (int32_t)k;
    }
    last = count + 1000;
    for (int64_t k = count - 1; k >= 0; k--) {
        facts->after[k] = (int32_t)(last - k);
        if (is_prose(&page->blocks[k])) last = k;
    }
    return true;
}

static void free_facts(Facts *facts) {
    free(facts->before);
    free(facts->groups);
}

#define PUT(value) *out++ = (float)(value)

/* True if a text ends with 。, ！ or ？. */
static bool ends_dense(const uint8_t *text, int64_t size) {
    static const char *const stops[] = {"\xE3\x80\x82", "\xEF\xBC\x81", "\xEF\xBC\x9F"};
    for (int k = 0; size >= 3 && k < 3; k++)
        if (!memcmp(text + size - 3, stops[k], 3)) return true;
    return false;
}

static float *text_features(const Page *page, const Block *block, float *out) {
    double chars = block->chars, words = block->words + 1.0;
    int64_t end = block->to - 1;
    while (end > block->from && strchr("\"')", page->text[end])) end--;
    uint8_t first = page->text[block->from], last = page->text[end];
    PUT(block->chars);
    PUT(block->words);
    PUT(chars / words);
    PUT(ratio(block->link_chars, chars));
    PUT(block->links);
    PUT(block->stops / words);
    PUT(block->commas / words);
    PUT(block->stops);
    PUT(block->commas);
    PUT(last == '.' || last == '!' || last == '?' || ends_dense(page->text + block->from, end + 1 - block->from) ? 2 : last == ':' ? 1 : last >= 0x80 ? 3 : 0);
    PUT(ratio(block->digits, chars));
    PUT(block->capitals / words);
    PUT(ratio(block->wide * 3, chars));
    PUT(block->images);
    PUT(block->repeats);
    PUT(block->pre);
    PUT(first >= 'A' && first <= 'Z' ? 1 : is_letter(first) ? 2 : is_dense(first) ? 1 : first >= 0x80 ? 3 : is_digit(first) ? 4 : 0);
    uint8_t counts[PHRASES] = {0};
    text_hints(page->text + block->from, min_i64(block->to - block->from, NEAR_TEXT), counts);
    for (int k = 0; k < PHRASES; k++) PUT(counts[k]);
    return out;
}

static float *tag_features(int tag, float *out) {
    PUT(tag == P);
    PUT(tag == LI);
    PUT(is_heading(tag) ? tag - H1 + 1 : 0);
    PUT(tag == TD || tag == TH);
    PUT(tag == DIV);
    PUT(tag == BUTTON || tag == LABEL || tag == OPTION || tag == LEGEND || tag == SUMMARY);
    PUT(tag == DD || tag == DT);
    PUT(tag == FIGCAPTION || tag == CAPTION);
    return out;
}

/* Distance to the nearest element above with each group of hints and each tag that tells; lists and tables above. */
static float *ancestor_features(const Page *page, int32_t at, float *out) {
    static const uint8_t telling[] = {NAV, HEADER, FOOTER, ASIDE, MAIN, ARTICLE, FORM, SECTION, FIGURE, BLOCKQUOTE, DIALOG, P};
    enum { TELLING = sizeof telling };
    int hints[HINTS], tags[TELLING], lists = 0, tables = 0;
    for (int k = 0; k < HINTS; k++) hints[k] = FAR;
    for (int k = 0; k < TELLING; k++) tags[k] = 20;
    for (int level = 0; at > 0; at = page->elements[at].parent, level++) {
        const Element *element = &page->elements[at];
        for (uint32_t found = level < FAR ? element->hints & ((1u << HINTS) - 1) : 0; found; found &= found - 1) {
            int group = __builtin_ctz(found);
            if (hints[group] > level) hints[group] = level;
        }
        int tag = element->tag == DETAILS ? DIALOG : element->tag;
        for (int k = 0; k < TELLING; k++)
            if (telling[k] == tag && tags[k] == 20) tags[k] = level < 19 ? level : 19;
        lists += is_list(tag);
        tables += tag == TABLE;
    }
    for (int k = 0; k < HINTS; k++) PUT(hints[k]);
    for (int k = 0; k < TELLING; k++) PUT(tags[k]);
    PUT(lists);
    PUT(tables);
    return out;
}

static float *container_features(const Page *page, const Facts *facts, int32_t at, float *out) {
    PUT(page->elements[at].depth);
    for (int level = 0; level < LEVELS; level++) {
        const Element *element = &page->elements[at];
        PUT(element->chars / facts->chars);
        PUT(element->chars);
        PUT(ratio(element->link_chars, element->chars));
        PUT(element->blocks);
        PUT(ratio(element->prose, element->chars));
        PUT(ratio(element->commas, element->chars));
        PUT(element->children);
        PUT(facts->prose > 0 ? element->prose / facts->prose : -1);
        if (element->parent >= 0) at = element->parent;
    }
    return out;
}

static float *neighbor_features(const Page *page, int64_t k, float *out) {
    const Block *block = &page->blocks[k];
    for (int64_t step = -NEIGHBORS; step <= NEIGHBORS; step++) {
        if (!step) continue;
        bool is_there = k + step >= 0 && k + step < page->block_count;
        const Block *other = is_there ? block + step : NULL;
        int tag = is_there ? page->elements[other->element].tag : 0;
        int32_t parent = page->elements[block->element].parent;
        PUT(is_there ? other->chars : -1);
        PUT(is_there ? ratio(other->link_chars, other->chars) : -1);
        PUT(!is_there ? -1 : tag == P ? 1 : is_heading(tag) ? 2 : tag == LI ? 3 : tag == TD ? 4 : 0);
        PUT(!is_there ? -1 : other->element == block->element ? 2 : page->elements[other->element].parent == parent);
    }
    return out;
}

/* The heading above, whose words often say that related links or comments follow. */
static float *heading_features(const Page *page, int64_t k, int64_t heading, float *out) {
    uint8_t counts[PHRASES] = {0};
    const Element *own = &page->elements[page->blocks[k].element], *above = NULL;
    if (heading >= 0) {
        const Block *block = &page->blocks[heading];
        above = &page->elements[block->element];
        text_hints(page->text + block->from, min_i64(block->to - block->from, NEAR_HEADING), counts);
    }
    PUT(above ? min_i64(k - heading, 30) : -1);
    PUT(counts[W_SHARE] + counts[W_COMMENT] + counts[W_RELATED] + counts[W_NEWSLETTER] + counts[W_AD]);
    PUT(counts[W_RELATED]);
    PUT(above ? above->tag - H1 : -1);
    PUT(!above ? 20 : above == own ? 0 : above->parent == own->parent ? 1 : above->depth - own->depth);
    return out;
}

static float *page_features(const Page *page, const Facts *facts, int64_t k, float seen, float *out) {
    int64_t count = page->block_count;
    const int32_t *tags = facts->tags;
    PUT((double)k / (double)count);
    PUT(seen / facts->chars);
    PUT(k);
    PUT(count - k);
    PUT(facts->before[k]);
    PUT(facts->after[k]);
    PUT(facts->heading < 0 ? -100000 : k - facts->heading);
    PUT(facts->chars);
    PUT(count);
    PUT(facts->links);
    PUT(facts->prose / facts->chars);
    PUT(min_i64(tags[ARTICLE], 3));
    PUT(tags[MAIN] > 0);
    PUT(tags[P]);
    PUT(tags[LI]);
    PUT(tags[TABLE]);
    PUT(tags[FORM]);
    PUT(tags[PRE]);
    PUT(page->kind);
    return out;
}

/* Blocks at the same place of the page's structure: what is repeated is all content, or all clutter. */
static float *group_features(const Page *page, const Facts *facts, int64_t k, float *out) {
    const Group *group = group_of(facts, block_place(page, &page->blocks[k]));
    PUT(group->count);
    PUT(group->chars / group->count);
    PUT(ratio(group->link_chars, group->chars));
    PUT(ratio(group->prose, group->chars));
    PUT(group->chars / facts->chars);
    PUT(group->stops / group->count);
    PUT(ratio(group->digits, group->chars));
    PUT(group->repeats / group->count);
    PUT((double)(group->last - group->first + 1) / group->count);
    return out;
}

/* An item of a list, a post of a forum: an element above that occurs `FEW` times. */
static float *item_features(const Page *page, const Facts *facts, int64_t k, int32_t at, float *out) {
    const Group *group = at > 0 ? group_of(facts, page->elements[at].place) : NULL;
    PUT(group ? group->count : 0);
    PUT(group ? group->chars / group->count : -1);
    PUT(group ? group->blocks / group->count : -1);
    PUT(group ? ratio(group->link_chars, group->chars) : -1);
    PUT(group ? ratio(group->prose, group->chars) : -1);
    PUT(group ? group->chars / facts->chars : -1);
    PUT(group ? k - page->elements[at].first_block : -1);
    PUT(group ? page->elements[page->blocks[k].element].depth - page->elements[at].depth : -1);
    return out;
}

static float *items_features(const Page *page, const Facts *facts, int64_t k, float *out) {
    int32_t inner = 0, outer = 0;
    for (int32_t at = page->blocks[k].element; at > 0; at = page->elements[at].parent) {
        if (page->elements[at].blocks < 2 || group_of(facts, page->elements[at].place)->count < FEW) continue;
        if (!inner) inner = at;
        outer = at;
    }
    out = item_features(page, facts, k, inner, out);
    return item_features(page, facts, k, outer, out);
}

/* Kind of page that its markup states. */
static float *kind_features(const Page *page, const Facts *facts, float *out) {
    static const uint8_t telling[] = {H_FORUM, H_ARTICLE, H_PRODUCT, H_LIST, H_TAGS, H_DOCS};
    for (int k = 0; k < KINDS; k++) PUT(min_i64(page->kinds[k], 5));
    for (size_t k = 0; k < sizeof telling; k++) PUT(page->hints >> telling[k] & 1);
    PUT(facts->commented);
    return out;
}

/* Write the features of all blocks, [blocks, FEATURES]. False if memory ran out; `free_facts` frees the facts anyway. */
static bool write_features(Page *page, Facts *facts, float *out) {
    if (!read_facts(page, facts)) return false;
    float seen = 0;
    int64_t heading = -1;
    for (int64_t k = 0; k < page->block_count; k++) {
        const Block *block = &page->blocks[k];
        out = text_features(page, block, out);
        out = tag_features(page->elements[block->element].tag, out);
        out = ancestor_features(page, block->element, out);
        out = container_features(page, facts, block->element, out);
        out = neighbor_features(page, k, out);
        out = heading_features(page, k, heading, out);
        out = page_features(page, facts, k, seen, out);
        out = group_features(page, facts, k, out);
        out = items_features(page, facts, k, out);
        out = kind_features(page, facts, out);
        if (is_heading(page->elements[block->element].tag)) heading = k;
        seen += (float)block->chars;
    }
    return true;
}
