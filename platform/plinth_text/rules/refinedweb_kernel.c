#include "plinth_text/rules/phrases.h"
#include "plinth_text/unicode/classes.h"
#include "plinth_text/unicode/codepoints.h"

/* Why a line is cut; blank lines that the page's ends lose have no reason. */
enum { UPPER_CASE = 1, NUMERIC, COUNTER, ONE_WORD, STRIPPED = 100 };
enum { MIN_WORDS = 2, MAX_NAVIGATION_WORDS = 10 };
static const double MAX_UPPER = 0.5, MAX_DIGITS = 0.999999;

static const char *const COUNTED[] = {
    "likes", "shares", "comments", "retweets", "reposts", "quotes", "bookmarks", "upvotes", "downvotes", "downloads",
    "views", "followers",
};

/* Facts of a line, a row of `facts` each: first code point, one past the last with the line end, characters,
   upper-case ones, digits, words, words that count, one more when white space in front is gone, white space in front
   and behind, first byte and one past the last in the text, whether it can be a counter, whether it is cut. */
typedef struct {
    int32_t *begin, *end, *size, *uppers, *digits, *words, *counts, *hidden, *lead, *trail, *from, *to, *counter, *cut;
} Facts;
enum { FACTS = 14 };

/* What separates words for fastText: space, `\n`, `\r`, `\t`, `\v`, `\f`, NUL. */
INLINE bool separates_words(int64_t point) { return point == 0 || (point >= 9 && point <= 13) || point == 32; }

static bool phrase_within(const uint8_t *data, int64_t start, int64_t end, const char *phrase) {
    for (int64_t at = start; at < end; at++)
        if (phrase_at(data, at, end, phrase)) return true;
    return false;
}

/* True if a line may begin with `sign-in`, or end with `read more` and three characters, white space aside. */
static bool navigates(const uint8_t *data, int64_t head, int64_t end, int64_t lead, int64_t trail) {
    if (phrase_within(data, head, min_i64(end, head + 4 * lead + 8), "sign-in")) return true;
    return phrase_within(data, max_i64(head, end - 4 * trail - 24), end, "read more");
}

/* The facts of a line that starts at a byte; returns where it ends. `hard` becomes true if a short one has a phrase of
   navigation. */
static int64_t measure_line(
    u8_in data, int64_t start, int64_t head, int64_t end, int64_t *cp, u16_in table, const Facts *facts, int64_t n,
    bool *hard
) {
    int32_t signs = 0, uppers = 0, digits = 0, words = 0, counts = 0, hidden = 0, lead = 0, trail = 0, counter = 0;
    bool in_word = false, in_token = false, met_word = false, cart = false;
    int64_t at = head;
    facts->begin[n] = *cp;
    while (at < end && data.at[at] != 10) {
        int64_t step = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &step);
        uint16_t flag = table.at[point];
        if (flag & C_SPACE) {
            in_word = false;
            trail++;
            lead += words == 0;
        } else {
            if (!in_word) {
                /* a character that no ASCII white space separates from a space of another kind before it */
                hidden += words == 0 && in_token && (flag & C_ALNUM) != 0;
                words++;
            }
            in_word = true;
            trail = 0;
        }
        bool separates = point < 128 && separates_words(point);
        counts += !separates && !in_token && (flag & C_ALNUM) != 0;
        in_token = !separates;
        uppers += (flag & C_UPPER) != 0;
        digits += (flag & C_DIGIT) != 0;
        if (!met_word && flag & C_WORD) {
            met_word = true;
            counter = (flag & C_DECIMAL) != 0;
        }
        cart |= (point == 'I' || point == 'i') && phrase_at(data.at, at, end, "items in cart");
        signs++;
        at += step;
        ++*cp;
    }
    facts->size[n] = signs;
    facts->uppers[n] = uppers;
    facts->digits[n] = digits;
    facts->words[n] = words;
    facts->counts[n] = counts;
    facts->hidden[n] = hidden;
    facts->lead[n] = lead;
    facts->trail[n] = trail;
    facts->from[n] = head - start;
    facts->to[n] = at - start;
    facts->counter[n] = counter;
    facts->cut[n] = 0;
    if (words > 0 && words <= MAX_NAVIGATION_WORDS) *hard |= cart || navigates(data.at, head, at, lead, trail);
    *cp += at < end;
    facts->end[n] = *cp;
    return at;
}

/* `str.strip` on the rest of the page. */
static void strip_page(int64_t n, const Facts *facts) {
    int64_t first = 0, last = n - 1;
    for (; first < n && (facts->cut[first] || !facts->words[first]); first++)
        if (!facts->cut[first]) facts->cut[first] = STRIPPED;
    for (; last > first && (facts->cut[last] || !facts->words[last]); last--)
        if (!facts->cut[last]) facts->cut[last] = STRIPPED;
    if (first == n) return;
    facts->size[first] -= facts->lead[first];
    facts->counts[first] += facts->hidden[first];
    facts->lead[first] = facts->hidden[first] = 0;
    facts->size[last] -= facts->trail[last];
    facts->trail[last] = 0;
}

INLINE int64_t point_at(u8_in data, int64_t at, int64_t end, int64_t *step) {
    *step = 1;
    return data.at[at] < 128 ? data.at[at] : decode(data, at, end, step);
}

/* Bytes of what a counter counts, if it starts here; else 0. */
static int64_t counted_noun(const uint8_t *data, int64_t at, int64_t end) {
    for (size_t k = 0; k < sizeof COUNTED / sizeof *COUNTED; k++)
        if (phrase_at(data, at, end, COUNTED[k])) return strlen(COUNTED[k]);
    return 0;
}

/* True if a line is a number, a thousand's letter perhaps, and what is counted, with signs around it. */
static bool is_counter(u8_in data, int64_t start, int64_t end, u16_in table) {
    int64_t at = start, number = 0, spaces = 0, step;
    for (; at < end; at += step)
        if (table.at[point_at(data, at, end, &step)] & C_WORD) break;
    for (; at < end; at += step, number++) {
        int64_t point = point_at(data, at, end, &step);
        if (!(table.at[point] & C_DECIMAL || (number && (point == ',' || point == '.')))) break;
    }
    if (!number) return false;
    if (at < end && data.at[at] && strchr("KMBkmb", data.at[at])) at++;
    for (; at < end; at += step, spaces++)
        if (!(table.at[point_at(data, at, end, &step)] & C_SPACE)) break;
    if (!spaces) return false;
    int64_t noun = counted_noun(data.at, at, end);
    if (!noun) return false;
    for (at += noun; at < end; at += step)
        if (table.at[point_at(data, at, end, &step)] & C_WORD) return false;
    return true;
}

/* Mark the lines that go, step by step. */
static void apply_rules(u8_in data, int64_t start, int64_t n, u16_in table, const Facts *facts) {
    int32_t *cut = facts->cut;
    for (int64_t line = 0; line < n; line++)
        if (facts->size[line] && (double)facts->uppers[line] / facts->size[line] > MAX_UPPER) cut[line] = UPPER_CASE;
    strip_page(n, facts);
    for (int64_t line = 0; line < n; line++)
        if (!cut[line] && facts->size[line] && (double)facts->digits[line] / facts->size[line] > MAX_DIGITS)
            cut[line] = NUMERIC;
    strip_page(n, facts);
    for (int64_t line = 0; line < n; line++)
        if (!cut[line] && facts->counter[line] &&
            is_counter(data, start + facts->from[line], start + facts->to[line], table))
            cut[line] = COUNTER;
    strip_page(n, facts);
    for (int64_t line = 0; line < n; line++)
        if (!cut[line] && facts->size[line] && facts->words[line] < MIN_WORDS) cut[line] = ONE_WORD;
    strip_page(n, facts);
}

KERNEL int64_t cuts(
    u8_in data, i64_in offsets, u16_in table, i32_rows_out facts, i64_rows_out per_text, bool_out emptied, bool_out hard,
    i64_out of, i32_rows_out places, u8_out why
) {
    int32_t *rows[FACTS];
    for (int k = 0; k < FACTS; k++) rows[k] = facts.at + k * facts.columns;
    Facts by = {rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6],
                rows[7], rows[8], rows[9], rows[10], rows[11], rows[12], rows[13]};
    int64_t found = 0;
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        int64_t start = offsets.at[doc], end = offsets.at[doc + 1], n = 0, cp = 0, words = 0, left = 0;
        bool is_hard = false, something = false;
        for (int64_t at = start; at <= end; n++) at = measure_line(data, start, at, end, &cp, table, &by, n, &is_hard) + 1;
        hard.at[doc] = is_hard;
        if (is_hard) continue;
        for (int64_t line = 0; line < n; line++) words += by.counts[line];
        apply_rules(data, start, n, table, &by);
        for (int64_t line = 0; line < n; line++) {
            if (!by.cut[line]) {
                left += by.counts[line];
                something |= by.words[line] > 0;
            } else if (by.cut[line] != STRIPPED) {
                of.at[found] = doc;
                why.at[found] = by.cut[line];
                places.at[found] = by.begin[line];
                places.at[places.columns + found++] = by.end[line];
            }
        }
        per_text.at[doc] = words;
        per_text.at[per_text.columns + doc] = left;
        emptied.at[doc] = !something;
    }
    return found;
}
