#pragma once
/* A page as blocks of text in a tree of elements, read in one pass over its HTML.

   The tree has only elements that begin and end a block. What browsers repair is followed where pages rely on it: implied
   ends of paragraphs, items and cells, end tags without a start, links that are never closed. Character references stay
   as they are written, because only the text that is kept is worth resolving. Time and memory are linear in the page. */
#include "plinth/corpus/extract/content/sites.h"

enum { ARTICLE_KIND = 1, DEEPEST = 510, LONGEST_VALUE = 4096, INLINES = 8, PAGE_BYTES = 1000, SITE_NAMES = 3 };
/* Attributes by which highlighters mark line numbers (Pygments, Rouge, SyntaxHighlighter). */
static const char *const GUTTERS[] = {"linenos", "lineno", "linenodiv", "gutter", "rouge-gutter", "line-number"};

/* Kinds of page, as markup of schema.org and names of programs state them. */
enum { K_FORUM, K_ARTICLE, K_PRODUCT, K_LIST, K_OFFER, KINDS, K_RECIPE = KINDS /* not among the features */ };
static const Hint KIND_WORDS[] = {
    {"discussionforum", K_FORUM}, {"qapage", K_FORUM}, {"bbpress", K_FORUM}, {"phpbb", K_FORUM}, {"vbulletin", K_FORUM},
    {"xenforo", K_FORUM}, {"discourse", K_FORUM}, {"mybb", K_FORUM}, {"article", K_ARTICLE}, {"blogposting", K_ARTICLE},
    {"product", K_PRODUCT}, {"itemlist", K_LIST}, {"collectionpage", K_LIST}, {"searchresults", K_LIST},
    {"service", K_OFFER}, {"localbusiness", K_OFFER}, {"softwareapplication", K_OFFER}, {"recipe", K_RECIPE}};

/* Classes under which style sheets place the children of an element side by side, or below each other. */
static const char *const PLACED[] = {"flex", "d-flex", "inline-flex", "grid", "d-grid"};
/* Class of the link "[edit]" that MediaWiki puts into headings. */
static const char *const UNSEEN[] = {"mw-editsection"};

/* An element, and sums over its text and that of its descendants. */
typedef struct {
    int32_t parent, depth, children, first_block;
    uint32_t hints;
    uint64_t place; /* of the names and first classes of the element and those above: equal for the items of a list */
    uint8_t tag;
    bool hidden, gutter, placed, reversed, has_number;
    char kind;      /* of an `ol` or its item: 1, a, A, i, I; n for no number */
    int32_t number; /* `start` of an `ol`, `value` of an item */
    int32_t chars, link_chars, blocks, prose, commas, linked_titles;
    int64_t copied_from, copied_to; /* place of what is in the element in `Page.copy` */
} Element;

/* A block of text, without white space around it, and counts of it. `hash` identifies the text up to case. */
typedef struct {
    int64_t from, to;
    int32_t element, chars, link_chars, words, links, commas, stops, digits, capitals, wide, images, repeats;
    uint64_t hash;
    bool pre, leads_away; /* a link in it leads to another page */
} Block;

typedef struct {
    Element *elements;
    Block *blocks;
    uint8_t *text;
    uint8_t *copy; /* the page without what no reader sees and without inline elements but links; NULL if not wanted */
    int64_t element_count, element_room, block_count, block_room, size, copied, title_from, title_to;
    int kind; /* of `og:type`: 1 article, 2 product, 3 website, 4 another */
    int32_t kinds[KINDS + 1];
    uint32_t hints; /* of `html` and `body` */
    bool is_published; /* states the time of publication, which articles do */
    SiteName names[SITE_NAMES]; /* as stated, of the host in the page's own address, and in the title */
    bool failed;
} Page;

typedef struct {
    const uint8_t *at;
    int64_t size;
} Name;

/* State of the reader: the block in progress, and the open elements. */
typedef struct {
    Page *page;
    const uint8_t *html;
    int64_t size;
    Block block, before_gutter;
    bool open, gap, in_word, link, leads_away;
    int breaks, depth, pre, link_depth;
    int nested;                            /* open inline elements, of an element whose children are placed apart */
    int muted_tag, muted, muted_depth;     /* an inline element that no reader sees */
    int64_t gutter_from, gutter_name_size; /* an inline element that may be a line number, or a heading's link to itself */
    const uint8_t *gutter_name;
    bool is_link_to_self;
    Name target; /* of the link to itself */
    Name inlines[INLINES]; /* open labels and custom elements amid a sentence */
    int inlined, inlined_depth;
    const uint8_t *line_name;   /* an inline element that is displayed as a line of its own */
    int64_t line_name_size;
    int lines;
    int32_t stack[DEEPEST + 2];
    bool unclosed[TAGS]; /* no end tag follows */
    int64_t scriptless_to; /* end of a page for browsers without scripts */
} Reader;

/* Attributes of a start tag. */
typedef struct {
    uint32_t hints, kinds;
    uint64_t first_class;
    Name target; /* of a link */
    const uint8_t *content;
    int64_t content_size;
    bool hidden, undisplayed, unseen, displayed, placed, gutter, permalink, link, reversed, has_number, is_kind, is_published, is_generator, is_site_name, is_address, is_data, empty;
    char list_kind;
    int32_t number;
    int kind;
} Attributes;

static void free_page(Page *page) {
    free(page->elements);
    free(page->blocks);
    free(page->text);
}

static int32_t add_element(Page *page, int32_t parent, int tag, const Attributes *attributes) {
    if (page->element_count == page->element_room) {
        Element *grown = realloc(page->elements, (size_t)page->element_room * 2 * sizeof(Element));
        if (!grown) {
            page->failed = true;
            return parent;
        }
        page->elements = grown;
        page->element_room *= 2;
    }
    Element *element = &page->elements[page->element_count];
    memset(element, 0, sizeof *element);
    element->parent = parent;
    element->tag = (uint8_t)tag;
    element->copied_from = -1;
    element->first_block = (int32_t)page->block_count;
    if (parent >= 0) {
        Element *above = &page->elements[parent];
        element->depth = above->depth + 1;
        above->children++;
        element->hints = attributes->hints;
        element->place = (above->place * 31 + (uint64_t)tag) * 1099511628211u ^ attributes->first_class;
        element->hidden = attributes->hidden || above->hidden;
        element->gutter = attributes->gutter;
        element->placed = attributes->placed;
        element->reversed = attributes->reversed;
        element->has_number = attributes->has_number;
        element->number = attributes->number;
        element->kind = attributes->list_kind;
    }
    return (int32_t)page->element_count++;
}

INLINE Element *top(Reader *reader) { return &reader->page->elements[reader->stack[reader->depth - 1]]; }

/* End the block in progress. A block without characters is dropped. */
static void end_block(Reader *reader) {
    Page *page = reader->page;
    if (reader->open) {
        Block *block = &reader->block;
        while (page->size > block->from && is_space(page->text[page->size - 1])) page->size--;
        while (block->pre && block->from < page->size && page->text[block->from] == '\n') block->from++;
        block->to = page->size;
        if (block->chars > 0 && page->block_count == page->block_room) {
            Block *grown = realloc(page->blocks, (size_t)page->block_room * 2 * sizeof(Block));
            if (grown) {
                page->blocks = grown;
                page->block_room *= 2;
            } else page->failed = true;
        }
        if (block->chars > 0 && !page->failed) page->blocks[page->block_count++] = *block;
    }
    reader->open = reader->gap = reader->in_word = false;
    reader->breaks = reader->nested = 0;
    if (!reader->muted) reader->gutter_name = NULL;
    reader->line_name = NULL;
}

static void begin_block(Reader *reader) {
    if (reader->open) return;
    memset(&reader->block, 0, sizeof reader->block);
    reader->block.from = reader->page->size;
    reader->block.element = reader->stack[reader->depth - 1];
    reader->block.hash = 1469598103934665603u;
    reader->block.pre = reader->pre > 0;
    reader->open = true;
    reader->gap = reader->in_word = false;
}

INLINE void put(Reader *reader, uint8_t c) { reader->page->text[reader->page->size++] = c; }

/* Add a character's first or further byte, which is not white space, to the block's text and counts. */
INLINE void add_byte(Reader *reader, const uint8_t *at, const uint8_t *end) {
    Block *block = &reader->block;
    uint8_t c = *at;
    put(reader, c);
    if ((c & 0xC0) != 0x80) {
        block->chars++;
        block->link_chars += reader->link;
    }
    block->hash = (block->hash ^ lower(c)) * 1099511628211u;
    if (!reader->in_word && (is_letter(c) || is_digit(c) || (c >= 0x80 && !is_dense(c)))) {
        reader->in_word = true;
        block->words++;
    }
    if (c == ',') block->commas++;
    else if (c == '.' || c == '!' || c == '?') block->stops++;
    else if (is_digit(c)) block->digits++;
    else if (c >= 'A' && c <= 'Z') block->capitals++;
    else if (c >= 0xE0) {
        block->wide++;
        if (end - at < 3) return;
        if (is_dense(c)) { /* about half a word of other scripts, which has five characters */
            block->chars++;
            block->link_chars += reader->link;
            block->words += block->wide & 1;
            reader->in_word = true;
        }
        if (c == 0xE3 && at[1] == 0x80) { /* 、 and 。 */
            block->commas += at[2] == 0x81;
            block->stops += at[2] == 0x82;
        } else if (c == 0xEF && at[1] == 0xBC) { /* ， and ！？ */
            block->commas += at[2] == 0x8C;
            block->stops += at[2] == 0x81 || at[2] == 0x9F;
        }
    }
}

/* Bytes of the white space that begins here, 0 if there is none, and its character. No-break spaces count, and white
   space that is written as a character reference. */
INLINE int64_t space_at(const uint8_t *at, const uint8_t *end, uint8_t *space) {
    static const struct { const char *written; uint8_t space; } references[] = {
        {"&nbsp;", ' '}, {"&#160;", ' '}, {"&#xa0;", ' '}, {"&#32;", ' '}, {"&#x20;", ' '}, {"&#9;", '\t'}, {"&#x9;", '\t'},
        {"&#10;", '\n'}, {"&#xa;", '\n'}, {"&#13;", '\r'}, {"&#xd;", '\r'}, {"&tab;", '\t'}, {"&newline;", '\n'}};
    *space = is_space(*at) ? *at : ' ';
    if (is_space(*at)) return 1;
    if (*at == 0xC2 && end - at > 1 && at[1] == 0xA0) return 2;
    if (*at != '&' || end - at < 5 || !strchr("#nNtT", at[1])) return 0;
    for (size_t k = 0; k < sizeof references / sizeof references[0]; k++) {
        int64_t size = (int64_t)strlen(references[k].written);
        if (size > end - at || !equals(at, size, references[k].written)) continue;
        *space = references[k].space;
        return size;
    }
    return 0;
}

static void add_text(Reader *reader, int64_t from, int64_t to) {
    if (reader->muted || top(reader)->hidden) return;
    const uint8_t *at = reader->html + from, *end = reader->html + to;
    if (reader->pre) begin_block(reader);
    while (at < end) {
        uint8_t space;
        int64_t size = space_at(at, end, &space);
        if (size) {
            if (!reader->pre) reader->gap = reader->open;
            else if (space != '\r') put(reader, space);
            reader->in_word = false;
            at += size;
            continue;
        }
        begin_block(reader);
        if (reader->breaks >= 2) { /* an empty line, as old pages end paragraphs */
            end_block(reader);
            begin_block(reader);
        } else if (reader->breaks) put(reader, '\n');
        else if (reader->gap) {
            put(reader, ' ');
            reader->block.chars++;
            reader->block.link_chars += reader->link;
        }
        reader->breaks = 0;
        reader->gap = false;
        add_byte(reader, at++, end);
    }
    reader->block.leads_away |= reader->link && reader->leads_away;
}

/* End a line of preformatted text. */
static void end_line(Reader *reader) {
    if (reader->open && reader->page->size > reader->block.from && reader->page->text[reader->page->size - 1] != '\n')
        put(reader, '\n');
}

static bool only_digits(const uint8_t *text, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
        if (!is_digit(text[i]) && !is_space(text[i])) return false;
    return true;
}

static void close_element(Reader *reader) {
    Page *page = reader->page;
    end_block(reader);
    Element *element = top(reader);
    element->copied_to = page->copied;
    if (element->tag == PRE) reader->pre--;
    if (element->gutter) {
        bool numbers = true;
        for (int64_t k = element->first_block; k < page->block_count; k++)
            numbers &= only_digits(page->text, page->blocks[k].from, page->blocks[k].to);
        if (numbers) page->block_count = element->first_block;
    }
    reader->depth--;
    if (reader->depth < reader->link_depth) reader->link = false;
    if (reader->depth + 1 < reader->inlined_depth) reader->inlined = 0;
    if (reader->muted && reader->depth < reader->muted_depth) {
        reader->muted = 0;
        reader->gutter_name = NULL;
    }
}

static void close_down_to(Reader *reader, int depth) {
    while (reader->depth > depth) close_element(reader);
}

INLINE int tag_at(Reader *reader, int depth) { return reader->page->elements[reader->stack[depth]].tag; }

/* Close the nearest open element with one of three tags, if no element with the tag `bar` is between. */
static void close_nearest(Reader *reader, int a, int b, int c, int bar) {
    for (int k = reader->depth - 1; k > 0; k--) {
        int tag = tag_at(reader, k);
        if (tag == a || tag == b || tag == c) {
            close_down_to(reader, k);
            return;
        }
        if (tag == bar || tag == TABLE || (bar == UL && is_list(tag))) return;
    }
}

/* Close the elements that the start of another ends. */
static void close_implied(Reader *reader, int tag) {
    if (ends_paragraph(tag))
        for (int k = reader->depth - 1; k > 0 && (tag_at(reader, k) == P || tag_at(reader, k) == LABEL); k--)
            if (tag_at(reader, k) == P) {
                close_down_to(reader, k);
                break;
            }
    switch (tag) {
        case LI: close_nearest(reader, LI, LI, LI, UL); break;
        case DT: case DD: close_nearest(reader, DT, DD, DD, DL); break;
        case TD: case TH: close_nearest(reader, TD, TH, TH, TR); break;
        case TR: close_nearest(reader, TR, CAPTION, CAPTION, TABLE); break;
        case TBODY: case THEAD: case TFOOT: close_nearest(reader, TBODY, THEAD, TFOOT, TABLE); break;
        case OPTION: close_nearest(reader, OPTION, OPTION, OPTION, OPTGROUP); break;
        default:
            if (is_heading(tag) && is_heading(top(reader)->tag)) close_element(reader);
    }
}

INLINE bool in_table(int tag) {
    return tag == TABLE || tag == TBODY || tag == THEAD || tag == TFOOT || tag == TR || tag == TD || tag == TH;
}

/* Close what an end tag ends. An end tag without a start ends the block in progress. */
static void close_tag(Reader *reader, int tag) {
    if (tag == P || is_heading(tag)) reader->inlined = 0;
    for (int k = reader->depth - 1; k > 0; k--) {
        int open = tag_at(reader, k);
        if (open == tag || (is_heading(open) && is_heading(tag))) {
            close_down_to(reader, k);
            return;
        }
        bool barred = open == TD || open == TH || open == TABLE;
        if ((barred && !in_table(tag) && tag != BODY) || (tag == LI && is_list(open))) return;
    }
    end_block(reader);
}

static bool contains(const uint8_t *text, int64_t size, const char *word) {
    int64_t length = (int64_t)strlen(word);
    for (int64_t i = 0; i + length <= size; i++)
        if (equals(text + i, length, word)) return true;
    return false;
}

/* True if one of the words of a class attribute is in a list. */
static bool has_word(const uint8_t *value, int64_t size, const char *const *words, size_t count) {
    for (int64_t from = 0, to; from < size; from = to + 1) {
        for (to = from; to < size && !is_space(value[to]); to++) continue;
        for (size_t k = 0; k < count; k++)
            if (equals(value + from, to - from, words[k])) return true;
    }
    return false;
}

/* Read an integer of at most nine digits as browsers do; False if there is none. */
static bool read_integer(const uint8_t *text, int64_t size, int32_t *number) {
    int64_t i = 0, sign = 1, value = 0;
    while (i < size && is_space(text[i])) i++;
    if (i < size && (text[i] == '-' || text[i] == '+')) sign = text[i++] == '-' ? -1 : 1;
    int64_t from = i;
    while (i < size && i - from < 9 && is_digit(text[i])) value = 10 * value + (text[i++] - '0');
    *number = (int32_t)(sign * value);
    return i > from;
}

/* True for the text of a link from a heading to itself: a sign, or where it leads. */
static bool is_permalink(const uint8_t *text, int64_t size, Name target) {
    static const char *const signs[] = {"#", "¶", "&para;", "&#182;", "&#xb6;", "🔗", "\xEF\x83\x81"}; /* the last is an icon */
    while (size && is_space(*text)) text++, size--;
    for (size_t k = 0; k < sizeof signs / sizeof signs[0]; k++)
        if (equals(text, size, signs[k])) return true;
    return size == target.size && !memcmp(text, target.at, (size_t)size);
}

/* Kind of numbers in a `list-style` property; 0 if there is none. */
static char style_kind(const uint8_t *value, int64_t size) {
    if (!contains(value, size, "list-style")) return 0;
    if (contains(value, size, "lower-alpha") || contains(value, size, "lower-latin")) return 'a';
    if (contains(value, size, "upper-alpha") || contains(value, size, "upper-latin")) return 'A';
    if (contains(value, size, "lower-roman")) return 'i';
    if (contains(value, size, "upper-roman")) return 'I';
    return contains(value, size, "decimal") ? '1' : contains(value, size, "none") ? 'n' : 0;
}

static uint32_t role_hints(const uint8_t *value, int64_t size) {
    static const Hint roles[] = {{"navigation", H_NAV}, {"main", H_CONTENT}, {"contentinfo", H_FOOTER},
                                 {"complementary", H_SIDE}, {"dialog", H_COOKIE}, {"banner", H_HEADER}};
    for (size_t k = 0; k < sizeof roles / sizeof roles[0]; k++)
        if (equals(value, size, roles[k].word)) return 1u << roles[k].group;
    return 0;
}

/* Hash of a value's first word up to its first digit: items of a list often bear numbers. */
static uint64_t first_word(const uint8_t *value, int64_t size) {
    uint64_t hash = 1469598103934665603u;
    int64_t i = 0;
    while (i < size && is_space(value[i])) i++;
    for (; i < size && !is_space(value[i]) && !is_digit(value[i]); i++) hash = (hash ^ value[i]) * 1099511628211u;
    return hash;
}

/* Kinds of page that a text names, as bits. */
static uint32_t kinds_in(const uint8_t *text, int64_t size) {
    uint32_t kinds = 0;
    for (size_t k = 0; k < sizeof KIND_WORDS / sizeof KIND_WORDS[0]; k++)
        if (contains(text, size, KIND_WORDS[k].word)) kinds |= 1u << KIND_WORDS[k].group;
    return kinds;
}

static void count_kinds(Page *page, uint32_t kinds) {
    for (int k = 0; kinds && k <= KINDS; k++) page->kinds[k] += kinds >> k & 1;
}

/* Count the types that a script with data about the page names. */
static void read_data(Page *page, const uint8_t *text, int64_t size) {
    static const char type[] = "@type\"";
    for (int64_t i = 0; i < size;) {
        const uint8_t *found = memchr(text + i, '@', (size_t)(size - i));
        if (!found) break;
        i = found - text + (int64_t)sizeof type - 1;
        if (i > size || memcmp(found, type, sizeof type - 1)) {
            i = found - text + 1;
            continue;
        }
        while (i < size && (is_space(text[i]) || text[i] == ':' || text[i] == '[' || text[i] == '"')) i++;
        int64_t from = i;
        while (i < size && is_letter(text[i])) i++;
        count_kinds(page, kinds_in(text + from, i - from));
    }
}

static void read_attribute(Attributes *found, int tag, const uint8_t *name, int64_t size, const uint8_t *value, int64_t length) {
    switch (lower(name[0])) {
        case 'a':
            if (equals(name, size, "aria-hidden") && equals(value, length, "true")) {
                found->hints |= 1u << H_HIDDEN;
                found->unseen = true;
            }
            break;
        case 'c':
            if (equals(name, size, "class")) {
                found->hints |= class_hints(value, length);
                found->first_class = first_word(value, length);
                found->gutter |= has_word(value, length, GUTTERS, sizeof GUTTERS / sizeof GUTTERS[0]);
                found->placed |= has_word(value, length, PLACED, sizeof PLACED / sizeof PLACED[0]);
                found->hidden |= has_word(value, length, UNSEEN, sizeof UNSEEN / sizeof UNSEEN[0]);
            } else if (tag == META && equals(name, size, "content")) {
                found->content = value;
                found->content_size = length;
                found->kind = contains(value, length, "article")   ? ARTICLE_KIND
                              : contains(value, length, "product") ? 2
                              : contains(value, length, "website") ? 3
                                                                   : 4;
            }
            break;
        case 'h':
            if (equals(name, size, "href")) {
                found->link = true;
                found->content = value;
                found->content_size = length;
                found->permalink = tag == A && length > 1 && value[0] == '#';
                found->target = (Name){value, length};
            }
            if (equals(name, size, "hidden")) found->hidden = true;
            break;
        case 'i':
            if (equals(name, size, "id")) found->hints |= class_hints(value, length);
            if (equals(name, size, "itemprop") && contains(value, length, "articlebody"))
                found->hints |= 1u << H_BODY | 1u << H_ARTICLE;
            if (equals(name, size, "itemprop") && (contains(value, length, "recipeingredient") || contains(value, length, "recipeinstructions")))
                found->hints |= 1u << H_RECIPE;
            if (equals(name, size, "itemtype")) {
                found->kinds |= kinds_in(value, length);
                found->hints |= contains(value, length, "/comment")             ? 1u << H_COMMENT
                                : contains(value, length, "/review")            ? 1u << H_REVIEW
                                : contains(value, length, "/answer")            ? 1u << H_FORUM
                                : contains(value, length, "/discussionforum") ? 1u << H_FORUM
                                                                                : 0;
            }
            break;
        case 'n':
            if (tag == META && equals(name, size, "name")) found->is_generator = equals(value, length, "generator");
            break;
        case 'p':
            if (tag != META || !equals(name, size, "property")) break;
            found->is_kind = equals(value, length, "og:type");
            found->is_site_name = equals(value, length, "og:site_name");
            found->is_address = equals(value, length, "og:url");
            found->is_published = equals(value, length, "article:published_time");
            break;
        case 'r':
            if (equals(name, size, "role")) found->hints |= role_hints(value, length);
            if (equals(name, size, "reversed")) found->reversed = true;
            if (equals(name, size, "rel")) found->is_address = equals(value, length, "canonical");
            break;
        case 's':
            if (equals(name, size, "style")) {
                if (contains(value, length, "display:none") || contains(value, length, "display: none")) {
                    found->hints |= 1u << H_HIDDEN; /* often the inactive tab of a page's own text */
                    found->undisplayed = true;
                }
                found->displayed = contains(value, length, "display:block") || contains(value, length, "display: block");
                found->placed |= contains(value, length, "display:flex") || contains(value, length, "display: flex") ||
                                 contains(value, length, "display:grid") || contains(value, length, "display: grid");
                char kind = tag == OL || tag == LI ? style_kind(value, length) : 0;
                if (kind) found->list_kind = kind;
            } else if (tag == OL && equals(name, size, "start")) found->has_number = read_integer(value, length, &found->number);
            break;
        case 't':
            if (tag == SCRIPT && equals(name, size, "type")) found->is_data = contains(value, length, "ld+json");
            if ((tag == OL || tag == LI) && !found->list_kind && equals(name, size, "type") && length == 1 &&
                strchr("1aAiI", value[0]))
                found->list_kind = (char)value[0];
            break;
        case 'v':
            if (tag == LI && equals(name, size, "value")) found->has_number = read_integer(value, length, &found->number);
            break;
        default: break;
    }
}

/* Read the attributes from `i` on; return the position after the tag. */
static int64_t read_attributes(const uint8_t *html, int64_t i, int64_t size, int tag, Attributes *found) {
    while (i < size && html[i] != '>') {
        found->empty = html[i] == '/';
        if (is_space(html[i]) || html[i] == '/') {
            i++;
            continue;
        }
        int64_t name = i, value = 0, length = 0;
        i++; /* `=` may begin a name */
        while (i < size && !is_space(html[i]) && html[i] != '=' && html[i] != '>' && html[i] != '/') i++;
        int64_t end = i, next = i;
        while (next < size && is_space(html[next])) next++;
        if (next < size && html[next] == '=') {
            next++;
            while (next < size && is_space(html[next])) next++;
            if (next < size && (html[next] == '"' || html[next] == '\'')) {
                value = next + 1;
                const uint8_t *quote = value < size ? memchr(html + value, html[next], (size_t)(size - value)) : NULL;
                length = (quote ? quote - html : size) - value;
                i = min_i64(size, value + length + 1);
            } else {
                for (value = i = next; i < size && !is_space(html[i]) && html[i] != '>'; i++) continue;
                length = i - value;
            }
        }
        if (length <= LONGEST_VALUE) read_attribute(found, tag, html + name, end - name, html + value, length);
    }
    return min_i64(size, i + 1);
}

/* Position after the next `>`, or the end. */
static int64_t after_bracket(const uint8_t *html, int64_t i, int64_t size) {
    const uint8_t *found = i < size ? memchr(html + i, '>', (size_t)(size - i)) : NULL;
    return found ? found - html + 1 : size;
}

/* Position after a comment whose text begins at `i`, or the end. */
static int64_t after_comment(const uint8_t *html, int64_t i, int64_t size) {
    int64_t from = i;
    while (i < size) {
        const uint8_t *found = memchr(html + i, '>', (size_t)(size - i));
        if (!found) break;
        i = found - html + 1;
        int64_t dash = i - 2;
        if (html[dash] == '!' && dash >= from + 2) dash--; /* `--!>` */
        if (html[dash] == '-' && html[dash - 1] == '-') return i;
    }
    return size;
}

/* Position of an element's end tag from `i` on, or `size`. */
static int64_t end_tag(const uint8_t *html, int64_t i, int64_t size, int tag) {
    int64_t length = (int64_t)strlen(TAG_NAMES[tag]);
    while (i < size) {
        const uint8_t *found = memchr(html + i, '<', (size_t)(size - i));
        if (!found) break;
        i = found - html;
        if (i + 2 + length <= size && html[i + 1] == '/' && equals(html + i + 2, length, TAG_NAMES[tag]) &&
            (i + 2 + length == size || !is_letter(html[i + 2 + length])))
            return i;
        i++;
    }
    return size;
}

/* Skip an element that has no text of the page; return the position after it. An element without an end is left, and a
   page for browsers without scripts: what a forum shows to crawlers. */
static int64_t skip_element(Reader *reader, int64_t i, int tag, bool is_data) {
    if (reader->unclosed[tag] || (tag == NOSCRIPT && i < reader->scriptless_to)) return i;
    int64_t end = end_tag(reader->html, i, reader->size, tag);
    if (end == reader->size && tag != SCRIPT && tag != STYLE && tag != TITLE) {
        reader->unclosed[tag] = true;
        return i;
    }
    if (tag == NOSCRIPT && end - i >= PAGE_BYTES && contains(reader->html + i, end - i, "<p")) {
        reader->scriptless_to = end;
        return i;
    }
    if (is_data) read_data(reader->page, reader->html + i, end - i);
    if (tag == TITLE && !reader->page->title_to) {
        reader->page->title_from = i;
        reader->page->title_to = end;
    }
    return after_bracket(reader->html, end, reader->size);
}

static bool is_void(const uint8_t *name, int64_t size) {
    static const char *const voids[] = {"area", "base", "col", "embed", "img", "input", "link", "meta", "param",
                                        "source", "track", "wbr"};
    for (size_t k = 0; k < sizeof voids / sizeof voids[0]; k++)
        if (equals(name, size, voids[k])) return true;
    return false;
}

/* Let what follows in the block begin a line. */
INLINE void begin_line(Reader *reader) {
    reader->in_word = false;
    if (reader->open && !reader->breaks) reader->breaks = 1;
}

/* Let a space follow where an element begins or ends whose neighbors are placed apart from it. */
INLINE void separate_children(Reader *reader) {
    reader->gap |= reader->open && !reader->pre;
    reader->in_word = false;
}

static void start_inline(Reader *reader, int tag, const uint8_t *name, int64_t size, const Attributes *found) {
    if (tag == A) {
        reader->link = found->link;
        reader->leads_away = !found->permalink;
        reader->link_depth = reader->depth;
        if (reader->open) reader->block.links++;
    } else if (tag == IMG && reader->open) reader->block.images++;
    if (found->empty || is_void(name, size)) return;
    if (top(reader)->placed && !reader->nested++) separate_children(reader);
    if (reader->line_name && size == reader->line_name_size && !memcmp(name, reader->line_name, (size_t)size)) reader->lines++;
    if (found->displayed) {
        begin_line(reader);
        if (!reader->line_name) {
            reader->line_name = name;
            reader->line_name_size = size;
            reader->lines = 1;
        }
    }
    if (found->hidden || found->undisplayed || found->unseen || is_reading(tag)) {
        reader->muted = 1;
        reader->muted_tag = tag;
        reader->muted_depth = reader->depth;
        reader->gutter_name = name;
        reader->gutter_name_size = size;
    } else if (found->gutter || (found->permalink && reader->open && !reader->gutter_name)) {
        begin_block(reader);
        reader->gutter_from = reader->page->size;
        reader->before_gutter = reader->block;
        reader->is_link_to_self = !found->gutter;
        reader->target = found->target;
        reader->gutter_name = name;
        reader->gutter_name_size = size;
    }
}

/* Follow a muted element or a line number to its end. */
static void end_inline(Reader *reader, int tag, const uint8_t *name, int64_t size) {
    if (tag == A) reader->link = false;
    if (tag == RUBY && reader->muted && is_reading(reader->muted_tag)) {
        reader->muted = 0;
        reader->gutter_name = NULL;
    }
    if (top(reader)->placed && reader->nested && !--reader->nested) separate_children(reader);
    if (reader->line_name && size == reader->line_name_size && !memcmp(name, reader->line_name, (size_t)size) &&
        --reader->lines == 0) {
        reader->line_name = NULL;
        begin_line(reader);
    }
    if (!reader->gutter_name || size != reader->gutter_name_size || memcmp(name, reader->gutter_name, (size_t)size)) return;
    if (reader->muted) {
        if (--reader->muted == 0) reader->gutter_name = NULL;
        return;
    }
    Page *page = reader->page;
    const uint8_t *text = page->text + reader->gutter_from;
    int64_t length = page->size - reader->gutter_from;
    if (reader->open && (reader->is_link_to_self ? is_permalink(text, length, reader->target) : only_digits(text, 0, length))) {
        page->size = reader->gutter_from;
        reader->block = reader->before_gutter;
    }
    reader->gutter_name = NULL;
}

/* True for a label or a custom element amid a sentence: it does not end a block, as in browsers. */
static bool is_inlined(const Reader *reader, int tag) {
    int around = reader->page->elements[reader->stack[reader->depth - 1]].tag;
    bool amid = reader->open && (around == P || is_heading(around));
    return (tag == LABEL || tag == CUSTOM) && amid && reader->inlined < INLINES;
}

static void start_inlined(Reader *reader, const uint8_t *name, int64_t size) {
    reader->inlines[reader->inlined++] = (Name){name, size};
    reader->inlined_depth = reader->depth;
}

/* True if the end tag is that of an element amid a sentence. */
static bool end_inlined(Reader *reader, const uint8_t *name, int64_t size) {
    for (int k = reader->inlined - 1; k >= 0; k--)
        if (size == reader->inlines[k].size && !memcmp(name, reader->inlines[k].at, (size_t)size)) {
            reader->inlined = k;
            return true;
        }
    return false;
}

static void start_block(Reader *reader, int tag, const Attributes *found) {
    if (reader->pre && (tag == DIV || tag == P || tag == LI || tag == TR)) {
        end_line(reader);
        return;
    }
    close_implied(reader, tag);
    end_block(reader);
    if (reader->depth > DEEPEST) return;
    reader->stack[reader->depth] = add_element(reader->page, reader->stack[reader->depth - 1], tag, found);
    reader->depth++;
    reader->pre += tag == PRE;
}

/* True for a place whose text and tags belong in `Page.copy`. */
INLINE bool is_copied_here(Reader *reader) { return reader->page->copy && !reader->muted && !top(reader)->hidden; }

/* Copy text or a tag to `Page.copy`. */
static void copy_html(Reader *reader, int64_t from, int64_t to) {
    memcpy(reader->page->copy + reader->page->copied, reader->html + from, (size_t)(to - from));
    reader->page->copied += to - from;
}

/* Read the tag at `i`; return the position after it. */
static int64_t read_tag(Reader *reader, int64_t i) {
    const uint8_t *html = reader->html;
    int64_t size = reader->size, from = i;
    uint8_t c = html[i + 1];
    if (c == '!' && i + 3 < size && html[i + 2] == '-' && html[i + 3] == '-') return after_comment(html, i + 4, size);
    if (c == '!' || c == '?') return after_bracket(html, i, size);
    bool end = c == '/';
    i += 1 + end;
    if (i >= size || !is_letter(html[i])) {
        if (end) return after_bracket(html, from, size);
        add_text(reader, from, from + 1);
        return from + 1;
    }
    const uint8_t *name = html + i;
    while (i < size && !is_space(html[i]) && html[i] != '>' && html[i] != '/') i++;
    int64_t length = html + i - name;
    int tag = tag_of(name, min_i64(length, 64));
    Attributes found = {0};
    i = read_attributes(html, i, size, tag, &found);
    if (found.is_generator) found.kinds |= kinds_in(found.content, found.content_size);
    count_kinds(reader->page, found.kinds);
    reader->page->is_published |= found.is_published;
    if (found.is_site_name) read_name(&reader->page->names[0], found.content, found.content_size);
    if (found.is_address) read_host(&reader->page->names[1], found.content, found.content_size);
    if (end && tag != BR) { /* browsers read `</br>` as `<br>` */
        bool is_end_copied = is_copied(tag) && is_copied_here(reader);
        if (!is_block(tag) || end_inlined(reader, name, length)) end_inline(reader, tag, name, length);
        else if (reader->pre && (tag == DIV || tag == P || tag == LI || tag == TR)) end_line(reader);
        else close_tag(reader, tag);
        if (is_end_copied) copy_html(reader, from, i);
        return i;
    }
    if (reader->muted && !is_reading(tag) && reader->gutter_name && length == reader->gutter_name_size && !found.empty &&
        !memcmp(name, reader->gutter_name, (size_t)length)) {
        reader->muted++;
        if (is_inlined(reader, tag)) start_inlined(reader, name, length);
    } else if (is_skipped(tag)) return found.empty && tag == SVG ? i : skip_element(reader, i, tag, found.is_data);
    else if (tag == BR) {
        reader->in_word = false;
        if (reader->pre && reader->open) put(reader, '\n');
        else reader->breaks += reader->open;
    } else if (tag == HR || tag == HTML || tag == BODY) {
        end_block(reader);
        reader->page->hints |= found.hints;
    } else if (tag == META && found.is_kind) reader->page->kind = found.kind;
    else if (is_inlined(reader, tag)) {
        start_inlined(reader, name, length);
        if (!reader->muted) start_inline(reader, tag, name, length, &found);
    } else if (is_block(tag)) start_block(reader, tag, &found);
    else if (!reader->muted) start_inline(reader, tag, name, length, &found);
    if (is_copied(tag) && is_copied_here(reader)) copy_html(reader, from, i);
    if (top(reader)->copied_from < 0) top(reader)->copied_from = reader->page->copied;
    return i;
}

/* Read a page. On return, `page->failed` is True if memory ran out. `copy`: memory of the page's size for `Page.copy`. */
static void read_page(Page *page, const uint8_t *html, int64_t size, uint8_t *copy) {
    index_all_hints();
    memset(page, 0, sizeof *page);
    page->copy = copy;
    page->element_room = 512;
    page->block_room = 256;
    page->elements = malloc((size_t)page->element_room * sizeof(Element));
    page->blocks = malloc((size_t)page->block_room * sizeof(Block));
    page->text = malloc((size_t)(2 * size + 64));
    Reader *reader = calloc(1, sizeof(Reader));
    page->failed = !page->elements || !page->blocks || !page->text || !reader;
    if (page->failed) {
        free(reader);
        return;
    }
    reader->page = page;
    reader->html = html;
    reader->size = size;
    reader->stack[0] = add_element(page, -1, HTML, NULL);
    reader->depth = 1;
    for (int64_t i = 0; i < size && !page->failed;) {
        const uint8_t *found = memchr(html + i, '<', (size_t)(size - i));
        int64_t next = found ? found - html : size;
        if (next > i) {
            add_text(reader, i, next);
            if (is_copied_here(reader)) copy_html(reader, i, next);
        }
        if (next >= size - 1) break;
        i = read_tag(reader, next);
    }
    close_down_to(reader, 1);
    end_block(reader);
    free(reader);
    read_title_name(&page->names[2], html + page->title_from, page->title_to - page->title_from, &page->names[1]);
}
