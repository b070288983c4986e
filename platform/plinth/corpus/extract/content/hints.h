#pragma once
/* Words in class names and texts that tell content from boilerplate. */
#include "plinth/corpus/extract/content/tags.h"

/* Groups of words in `class`, `id` and `role`. */
enum {
    H_COMMENT, H_NAV, H_FOOTER, H_SIDE, H_SHARE, H_RELATED, H_AD, H_META, H_COOKIE, H_NEWSLETTER, H_PAGER, H_SEARCH, H_LOGIN,
    H_HEADER, H_HIDDEN, H_CONTENT, H_ARTICLE, H_PRODUCT, H_FORUM, H_DOCS, H_TITLE, H_LIST, H_CAPTION, H_TEASER, H_REVIEW,
    H_AUTHOR, H_TAGS, H_BODY, HINTS, H_RECIPE = HINTS /* not among the features */
};
/* Groups of words in texts. */
enum { W_SHARE, W_COMMENT, W_RELATED, W_NEWSLETTER, W_LEGAL, W_BYLINE, W_CONTROL, W_AD, PHRASES };

typedef struct { const char *word; int group; } Hint;

/* A word anywhere in the attribute, in lower case. */
static const Hint CLASS_HINTS[] = {
    {"comment", H_COMMENT}, {"disqus", H_COMMENT}, {"respond", H_COMMENT}, {"reply", H_COMMENT},
    {"replies", H_COMMENT}, {"nav", H_NAV}, {"menu", H_NAV}, {"breadcrumb", H_NAV}, {"toc", H_NAV},
    {"foot", H_FOOTER}, {"copyright", H_FOOTER}, {"legal", H_FOOTER}, {"colophon", H_FOOTER}, {"side", H_SIDE},
    {"aside", H_SIDE}, {"rail", H_SIDE}, {"widget", H_SIDE}, {"share", H_SHARE}, {"sharing", H_SHARE},
    {"social", H_SHARE}, {"follow", H_SHARE}, {"facebook", H_SHARE}, {"twitter", H_SHARE}, {"addtoany", H_SHARE},
    {"related", H_RELATED}, {"recommend", H_RELATED}, {"similar", H_RELATED}, {"popular", H_RELATED},
    {"trending", H_RELATED}, {"readmore", H_RELATED}, {"read-more", H_RELATED}, {"more", H_RELATED},
    {"recent", H_RELATED}, {"latest", H_RELATED}, {"also", H_RELATED}, {"upsell", H_RELATED}, {"carousel", H_RELATED},
    {"slider", H_RELATED}, {"advert", H_AD}, {"promo", H_AD}, {"sponsor", H_AD}, {"banner", H_AD}, {"ads", H_AD},
    {"cta", H_AD}, {"outbrain", H_AD}, {"taboola", H_AD}, {"donat", H_AD}, {"meta", H_META}, {"date", H_META},
    {"posted", H_META}, {"info", H_META}, {"time", H_META}, {"byline", H_AUTHOR}, {"author", H_AUTHOR},
    {"bio", H_AUTHOR}, {"profile", H_AUTHOR}, {"avatar", H_AUTHOR}, {"user", H_AUTHOR}, {"tags", H_TAGS},
    {"tag-", H_TAGS}, {"categor", H_TAGS}, {"label", H_TAGS}, {"taxonomy", H_TAGS}, {"cookie", H_COOKIE},
    {"consent", H_COOKIE}, {"gdpr", H_COOKIE}, {"modal", H_COOKIE}, {"popup", H_COOKIE}, {"overlay", H_COOKIE},
    {"notice", H_COOKIE}, {"alert", H_COOKIE}, {"newsletter", H_NEWSLETTER}, {"subscri", H_NEWSLETTER},
    {"signup", H_NEWSLETTER}, {"sign-up", H_NEWSLETTER}, {"optin", H_NEWSLETTER}, {"mailchimp", H_NEWSLETTER},
    {"form", H_NEWSLETTER}, {"pagination", H_PAGER}, {"pager", H_PAGER}, {"prev", H_PAGER}, {"next", H_PAGER},
    {"search", H_SEARCH}, {"filter", H_SEARCH}, {"facet", H_SEARCH}, {"sort", H_SEARCH}, {"login", H_LOGIN},
    {"account", H_LOGIN}, {"cart", H_LOGIN}, {"basket", H_LOGIN}, {"header", H_HEADER}, {"masthead", H_HEADER},
    {"topbar", H_HEADER}, {"logo", H_HEADER}, {"toolbar", H_HEADER}, {"hero", H_HEADER}, {"hidden", H_HIDDEN},
    {"sr-only", H_HIDDEN}, {"screen-reader", H_HIDDEN}, {"skip", H_HIDDEN}, {"noprint", H_HIDDEN},
    {"print", H_HIDDEN}, {"content", H_CONTENT}, {"main", H_CONTENT}, {"body", H_BODY}, {"text", H_BODY},
    {"article", H_ARTICLE}, {"post", H_ARTICLE}, {"entry", H_ARTICLE}, {"story", H_ARTICLE}, {"blog", H_ARTICLE},
    {"single", H_ARTICLE}, {"artikel", H_ARTICLE}, {"beitrag", H_ARTICLE}, {"product", H_PRODUCT},
    {"price", H_PRODUCT}, {"spec", H_PRODUCT}, {"description", H_PRODUCT}, {"detail", H_PRODUCT},
    {"feature", H_PRODUCT}, {"message", H_FORUM}, {"thread", H_FORUM}, {"topic", H_FORUM}, {"answer", H_FORUM},
    {"question", H_FORUM}, {"forum", H_FORUM}, {"bbp", H_FORUM}, {"archive", H_LIST}, {"signature", H_AUTHOR}, {"doc", H_DOCS}, {"markdown", H_DOCS},
    {"prose", H_DOCS}, {"wiki", H_DOCS}, {"title", H_TITLE}, {"headline", H_TITLE}, {"heading", H_TITLE},
    {"list", H_LIST}, {"item", H_LIST}, {"card", H_LIST}, {"grid", H_LIST}, {"tile", H_LIST}, {"caption", H_CAPTION},
    {"figure", H_CAPTION}, {"image", H_CAPTION}, {"gallery", H_CAPTION}, {"credit", H_CAPTION}, {"teaser", H_TEASER},
    {"excerpt", H_TEASER}, {"summary", H_TEASER}, {"lead", H_TEASER}, {"intro", H_TEASER}, {"standfirst", H_TEASER},
    {"review", H_REVIEW}, {"rating", H_REVIEW}, {"testimonial", H_REVIEW},
    {"ingredient", H_RECIPE}, {"instructions", H_RECIPE}, {"directions", H_RECIPE}, {"recipe-steps", H_RECIPE},
};

/* The beginning of a word of the text, in lower case; a space at the end stands for the end of the word. */
static const Hint TEXT_HINTS[] = {
    {"share", W_SHARE}, {"tweet", W_SHARE}, {"teilen", W_SHARE}, {"partager", W_SHARE}, {"compartir", W_SHARE},
    {"condividi", W_SHARE}, {"delen", W_SHARE}, {"facebook", W_SHARE}, {"twitter", W_SHARE}, {"whatsapp", W_SHARE},
    {"pinterest", W_SHARE}, {"instagram", W_SHARE}, {"linkedin", W_SHARE}, {"telegram", W_SHARE}, {"follow", W_SHARE},
    {"folge", W_SHARE}, {"suivez", W_SHARE}, {"siga", W_SHARE}, {"seguir", W_SHARE}, {"comment", W_COMMENT},
    {"kommentar", W_COMMENT}, {"commentaire", W_COMMENT}, {"coment", W_COMMENT}, {"reply", W_COMMENT},
    {"antwort", W_COMMENT}, {"répond", W_COMMENT}, {"respond", W_COMMENT}, {"reacti", W_COMMENT},
    {"reakti", W_COMMENT}, {"related", W_RELATED}, {"read more", W_RELATED}, {"more ", W_RELATED},
    {"mehr ", W_RELATED}, {"weiterlesen", W_RELATED}, {"interessier", W_RELATED}, {"ähnlich", W_RELATED},
    {"lire aussi", W_RELATED}, {"leer m", W_RELATED}, {"más ", W_RELATED}, {"mais ", W_RELATED},
    {"recommend", W_RELATED}, {"you may", W_RELATED}, {"empfohlen", W_RELATED}, {"see also", W_RELATED},
    {"next", W_RELATED}, {"previous", W_RELATED}, {"prev ", W_RELATED}, {"nächste", W_RELATED},
    {"vorherige", W_RELATED}, {"zurück", W_RELATED}, {"weitere", W_RELATED}, {"next ", W_RELATED},
    {"latest", W_RELATED}, {"neueste", W_RELATED}, {"popular", W_RELATED}, {"trending", W_RELATED},
    {"beliebt", W_RELATED}, {"top ", W_RELATED}, {"continue", W_RELATED}, {"aktuell", W_RELATED}, {"tags", W_RELATED},
    {"schlagw", W_RELATED}, {"newsletter", W_NEWSLETTER}, {"subscri", W_NEWSLETTER}, {"abonn", W_NEWSLETTER},
    {"sign up", W_NEWSLETTER}, {"signup", W_NEWSLETTER}, {"register", W_NEWSLETTER}, {"registr", W_NEWSLETTER},
    {"anmeld", W_NEWSLETTER}, {"suscr", W_NEWSLETTER}, {"inscri", W_NEWSLETTER}, {"mitglied", W_NEWSLETTER},
    {"member", W_NEWSLETTER}, {"join ", W_NEWSLETTER}, {"copyright", W_LEGAL}, {"rights reserved", W_LEGAL},
    {"privacy", W_LEGAL}, {"datenschutz", W_LEGAL}, {"impressum", W_LEGAL}, {"terms ", W_LEGAL}, {"cookie", W_LEGAL},
    {"agb", W_LEGAL}, {"nutzungsbed", W_LEGAL}, {"disclaimer", W_LEGAL}, {"legal", W_LEGAL}, {"published", W_BYLINE},
    {"updated", W_BYLINE}, {"posted", W_BYLINE}, {"last modified", W_BYLINE}, {"by ", W_BYLINE}, {"von ", W_BYLINE},
    {"por ", W_BYLINE}, {"aktualisiert", W_BYLINE}, {"veröffentlicht", W_BYLINE}, {"author", W_BYLINE},
    {"autor", W_BYLINE}, {"foto", W_BYLINE}, {"photo", W_BYLINE}, {"image", W_BYLINE}, {"source", W_BYLINE},
    {"quelle", W_BYLINE}, {"bild ", W_BYLINE}, {"credit", W_BYLINE}, {"getty", W_BYLINE}, {"reuters", W_BYLINE},
    {"categor", W_BYLINE}, {"kategor", W_BYLINE}, {"min read", W_BYLINE}, {"lesezeit", W_BYLINE},
    {"written by", W_BYLINE}, {"geschrieben", W_BYLINE}, {"views", W_BYLINE}, {"uhr ", W_BYLINE},
    {"editor", W_BYLINE}, {"redaktion", W_BYLINE}, {"cart", W_CONTROL}, {"warenkorb", W_CONTROL},
    {"login", W_CONTROL}, {"log in", W_CONTROL}, {"search", W_CONTROL}, {"suche", W_CONTROL}, {"menu", W_CONTROL},
    {"download", W_CONTROL}, {"print", W_CONTROL}, {"drucken", W_CONTROL}, {"close", W_CONTROL},
    {"schließ", W_CONTROL}, {"send ", W_CONTROL}, {"submit", W_CONTROL}, {"e-mail", W_CONTROL}, {"email", W_CONTROL},
    {"quantity", W_CONTROL}, {"click here", W_CONTROL}, {"klick", W_CONTROL}, {"hier ", W_CONTROL},
    {"contact", W_CONTROL}, {"kontakt", W_CONTROL}, {"tel.", W_CONTROL}, {"phone", W_CONTROL}, {"home", W_CONTROL},
    {"startseite", W_CONTROL}, {"advert", W_AD}, {"anzeige", W_AD}, {"sponsor", W_AD}, {"werbung", W_AD},
    {"publicid", W_AD}, {"publicit", W_AD}, {"promo", W_AD},
};

/* The beginning of a word, in lower case, with which authors ask readers to do something, or speak of themselves, their
   sponsors and their rights. */
static const char *const CALLS[] = {
    "about the author", "advertis", "affiliate", "all rights", "appeared first on", "author of", "become a", "book a",
    "book now", "book your", "browse our", "buy now", "call us", "check out", "click here", "comment below",
    "comments below", "commission", "connect with", "contact me", "contact our", "contact us", "copyright", "degree in",
    "disclaimer", "disclosure", "discount", "donat", "download our", "email address", "email me", "email us",
    "enjoyed this", "explore our", "featured in", "featured on", "fill out", "find out more", "follow her",
    "follow him", "follow me", "follow us", "for more stories", "free call", "free consultation", "free demo",
    "free quote", "free trial", "freelance", "get in touch", "get started", "give us a call", "got a story",
    "got a tip", "graduated from", "has written", "he covers", "he lives", "he writes", "help you", "her work",
    "her writing", "his work", "his writing", "holds a", "hope you", "in the comments", "informational purposes",
    "is a freelance", "is a senior", "is based in", "is the author", "is the founder", "join our", "join us",
    "journalist", "learn more", "leave a comment", "leave us", "leave your", "let me know", "let us know", "liked this",
    "lives in", "lives with", "look no further", "looking for", "love to hear", "medical advice", "membership",
    "need help", "never miss", "news page", "news team", "newsletter", "not constitute", "not intended",
    "originally appeared", "originally published", "our app", "our blog", "our clients", "our courses", "our customers",
    "our experts", "our free", "our latest", "our mission", "our platform", "our products", "our readers",
    "our services", "our shop", "our solutions", "our store", "our team", "our website", "passionate about",
    "permission", "previously", "privacy policy", "promo code", "reach out", "read more", "read our", "readers who",
    "ready to", "republished", "request a", "reviewed by", "rights reserved", "roundup", "schedule a", "schedule your",
    "see our", "send us", "share it", "share this", "share your", "sharing it", "she covers", "she lives", "she writes",
    "shop now", "shop our", "shop the", "sign up", "sponsor", "staff writer", "stay tuned", "submit your", "subscrib",
    "support our", "tell us", "terms of", "thank you for", "thanks for", "their writing", "today", "try it", "unlock",
    "use code", "view our", "views expressed", "visit our", "visit us", "want to know", "want to learn", "was updated",
    "we can help", "we offer", "works at", "writes about", "written by", "years of experience", "you can find",
    "your inbox", "your support",
};
enum { CALL_COUNT = sizeof CALLS / sizeof CALLS[0] };

/* Rows of a table of hints by the first two bytes of their words: a chain from `first`, linked by `next`. */
typedef struct { int16_t first[1024], next[512]; } HintIndex;
static HintIndex class_index, text_index, call_index;

INLINE int hint_slot(uint8_t a, uint8_t b) { return (a & 31) * 32 + (b & 31); }

static HintIndex index_hints(const Hint *hints, int count) {
    HintIndex index;
    memset(&index, -1, sizeof index);
    for (int row = count - 1; row >= 0; row--) {
        int slot = hint_slot((uint8_t)hints[row].word[0], (uint8_t)hints[row].word[1]);
        index.next[row] = index.first[slot];
        index.first[slot] = (int16_t)row;
    }
    return index;
}

/* Fill the indexes. Threads may do so at the same time: each builds its own, and copies what the others copy, so that no
   thread ever sees an index that another is still building. */
static void index_all_hints(void) {
    static bool done;
    if (__atomic_load_n(&done, __ATOMIC_ACQUIRE)) return;
    HintIndex classes = index_hints(CLASS_HINTS, sizeof CLASS_HINTS / sizeof CLASS_HINTS[0]);
    HintIndex texts = index_hints(TEXT_HINTS, sizeof TEXT_HINTS / sizeof TEXT_HINTS[0]);
    Hint phrases[CALL_COUNT];
    for (int row = 0; row < CALL_COUNT; row++) phrases[row] = (Hint){CALLS[row], 0};
    HintIndex calls = index_hints(phrases, CALL_COUNT);
    memcpy(&class_index, &classes, sizeof classes);
    memcpy(&text_index, &texts, sizeof texts);
    memcpy(&call_index, &calls, sizeof calls);
    __atomic_store_n(&done, true, __ATOMIC_RELEASE);
}

/* Groups of words in an attribute's value, as bits. */
static uint32_t class_hints(const uint8_t *value, int64_t size) {
    uint32_t groups = 0;
    for (int64_t i = 0; i + 2 < size; i++) {
        if (!is_letter(value[i])) continue;
        for (int row = class_index.first[hint_slot(value[i], value[i + 1])]; row >= 0; row = class_index.next[row]) {
            const char *word = CLASS_HINTS[row].word;
            int64_t k = 0;
            while (word[k] && i + k < size && lower(value[i + k]) == (uint8_t)word[k]) k++;
            if (!word[k]) groups |= 1u << CLASS_HINTS[row].group;
        }
    }
    return groups;
}

/* Add the words of boilerplate in a text to the counts by group, up to three each. */
static void text_hints(const uint8_t *text, int64_t size, uint8_t *counts) {
    bool start = true;
    for (int64_t i = 0; i + 1 < size; i++) {
        if (!is_letter(text[i]) && text[i] < 0x80) {
            start = true;
            continue;
        }
        if (!start) continue;
        start = false;
        for (int row = text_index.first[hint_slot(text[i], text[i + 1])]; row >= 0; row = text_index.next[row]) {
            const char *word = TEXT_HINTS[row].word;
            int64_t k = 0;
            for (; word[k]; k++) {
                uint8_t c = i + k < size ? text[i + k] : ' ';
                if (word[k] == ' ' ? c != ' ' && c != '\n' && c != ':' : lower(c) != (uint8_t)word[k]) break;
            }
            int group = TEXT_HINTS[row].group;
            if (!word[k] && counts[group] < 4) counts[group]++;
        }
    }
}

/* Number of different calls in a text. */
static int count_calls(const uint8_t *text, int64_t size) {
    uint64_t found[CALL_COUNT / 64 + 1] = {0};
    int count = 0;
    for (int64_t i = 0; i + 1 < size; i++) {
        if (!is_letter(text[i]) || (i > 0 && is_letter(text[i - 1]))) continue;
        for (int row = call_index.first[hint_slot(text[i], text[i + 1])]; row >= 0; row = call_index.next[row]) {
            int64_t k = 0;
            while (CALLS[row][k] && i + k < size && lower(text[i + k]) == (uint8_t)CALLS[row][k]) k++;
            found[row / 64] |= CALLS[row][k] ? 0 : (uint64_t)1 << row % 64;
        }
    }
    for (int k = 0; k <= CALL_COUNT / 64; k++) count += __builtin_popcountll(found[k]);
    return count;
}
