#pragma once
/* Names of HTML elements that matter to the text of a page. Other elements are inline and have no effect. */
#include "plinth_text/compiled/kernel.h"

enum {
    NO_TAG, A, ADDRESS, ARTICLE, ASIDE, AUDIO, BLOCKQUOTE, BODY, BR, BUTTON, CANVAS, CAPTION, CENTER, DD, DETAILS, DIALOG, DIV, DL,
    DT, FIELDSET, FIGCAPTION, FIGURE, FOOTER, FORM, H1, H2, H3, H4, H5, H6, HEADER, HGROUP, HR, HTML, IFRAME, IMG, LABEL, LEGEND,
    LI, MAIN, MENU, META, NAV, NOFRAMES, NOSCRIPT, OBJECT, OL, OPTGROUP, OPTION, P, PRE, RP, RT, RUBY, SCRIPT, SECTION, SELECT, STYLE, SUMMARY,
    SVG, TABLE, TBODY, TD, TEMPLATE, TEXTAREA, TFOOT, TH, THEAD, TITLE, TR, UL, VIDEO, CUSTOM, TAGS
};
static const char *const TAG_NAMES[TAGS] = {
    "", "a", "address", "article", "aside", "audio", "blockquote", "body", "br", "button", "canvas", "caption", "center", "dd",
    "details", "dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5",
    "h6", "header", "hgroup", "hr", "html", "iframe", "img", "label", "legend", "li", "main", "menu", "meta", "nav", "noframes",
    "noscript", "object", "ol", "optgroup", "option", "p", "pre", "rp", "rt", "ruby", "script", "section", "select", "style", "summary", "svg",
    "table", "tbody", "td", "template", "textarea", "tfoot", "th", "thead", "title", "tr", "ul", "video", ""
};
enum { LONGEST_TAG = 10 };

INLINE uint8_t lower(uint8_t c) { return c >= 'A' && c <= 'Z' ? c | 32 : c; }
INLINE bool is_letter(uint8_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
INLINE bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }
INLINE bool is_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f'; }

/* First bytes of Chinese characters, kana and Hangul, which say more each than letters and have no spaces between words. */
INLINE bool is_dense(uint8_t c) { return c >= 0xE3 && c <= 0xED; }

/* True if the text is this word, which is lower case, up to the case of ASCII letters. */
INLINE bool equals(const uint8_t *text, int64_t size, const char *word) {
    int64_t i = 0;
    while (i < size && word[i] && lower(text[i]) == (uint8_t)word[i]) i++;
    return i == size && !word[i];
}

/* Tag of an element's name. Elements of web components (`my-card`) are containers. */
static int tag_of(const uint8_t *name, int64_t size) {
    if (size <= LONGEST_TAG)
        for (int tag = 1; tag < CUSTOM; tag++)
            if (TAG_NAMES[tag][0] == lower(name[0]) && equals(name, size, TAG_NAMES[tag])) return tag;
    return memchr(name, '-', (size_t)size) ? CUSTOM : NO_TAG;
}

INLINE bool is_heading(int tag) { return tag >= H1 && tag <= H6; }
/* The reading of a word, which is small above it, and the parentheses around it for browsers that cannot do so. */
INLINE bool is_reading(int tag) { return tag == RT || tag == RP; }
INLINE bool is_list(int tag) { return tag == UL || tag == OL || tag == MENU; }

/* Elements whose content is never text of the page. */
INLINE bool is_skipped(int tag) {
    switch (tag) {
        case AUDIO: case CANVAS: case IFRAME: case NOFRAMES: case NOSCRIPT: case OBJECT: case SCRIPT: case SELECT: case STYLE:
        case SVG: case TEMPLATE: case TEXTAREA: case TITLE: case VIDEO: return true;
        default: return false;
    }
}

/* Elements that begin and end a block of text. */
INLINE bool is_block(int tag) {
    switch (tag) {
        case NO_TAG: case A: case BR: case HR: case HTML: case IMG: case META: case RP: case RT: case RUBY: return false;
        default: return !is_skipped(tag);
    }
}

/* Elements whose tags say what a text is: inline elements do not, but links do. */
INLINE bool is_copied(int tag) { return tag == A || tag == BR || tag == HR || tag == HTML || is_block(tag); }

/* Elements whose start ends an open paragraph. */
INLINE bool ends_paragraph(int tag) {
    return is_block(tag) && tag != BUTTON && tag != LABEL && tag != OPTION && tag != OPTGROUP && tag != CUSTOM;
}
