#include "plinth_text/words/script_words.h"

enum { JAPANESE_FROM = 20 }; /* minimum share of kana among Han and kana in Japanese text: one in 20 */
enum { COENG = 0x17D2, VIRAMA = 0x1039, ASAT = 0x103A, DOT_BELOW = 0x1037 };
/* Latin letters are below; behind an apostrophe after one, a new word begins, as in French and Italian. */
enum { LATIN_END = 0x250 };

/* Characters of a text: how many, and how many of them by script; `simple`: those of simplified script less those of
   traditional. */
typedef struct {
    int64_t n, han, kana, simple, thai, syllables;
} Counts;

/* Code points, where each starts, and kinds. */
static Counts decode_all(u8_in data, int64_t start, int64_t end, const ScriptSplitter *by) {
    Counts counts = {0};
    int64_t n = 0;
    for (int64_t at = start; at < end; n++) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        uint8_t kind = point < SCRIPTS_SIZE ? by->kinds[point] : S_MARK;
        if (kind >= HAN) {
            counts.han += kind == HAN;
            counts.kana += kind == KANA;
            counts.thai += kind == THAI;
            counts.syllables += kind >= LAO && kind <= MYANMAR;
            counts.simple += point < by->variants.size ? by->variants.at[point] : 0;
        }
        by->points[n] = point;
        by->places[n] = at;
        by->here[n] = kind == KANA ? HAN : kind;
        at += size;
    }
    by->places[n] = end;
    counts.n = n;
    return counts;
}

/* True if a syllable of Lao, Khmer or Myanmar begins at a character. */
static bool begins_syllable(const int32_t *points, uint8_t kind, int64_t i, int64_t n) {
    int32_t point = points[i], before = i ? points[i - 1] : 0, after = i + 1 < n ? points[i + 1] : 0;
    if (kind == LAO) { /* a vowel that is written before its consonant, or a consonant without one */
        bool follows = before >= 0xEC0 && before <= 0xEC4;
        return (point >= 0xEC0 && point <= 0xEC4) || (point >= 0xE81 && point <= 0xEAE && !follows);
    }
    if (kind == KHMER) return point <= 0x17B3 && before != COENG; /* not written below another */
    bool dotted = after == DOT_BELOW && i + 2 < n && points[i + 2] == ASAT;
    bool closes = after == ASAT || after == VIRAMA || dotted;
    return (point <= 0x102A || point == 0x103F) && before != VIRAMA && !closes;
}

static void mark_syllables(const ScriptSplitter *by, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint8_t kind = by->here[i];
        if (kind >= LAO && kind <= MYANMAR) by->first[i] = begins_syllable(by->points, kind, i, n);
    }
}

INLINE bool digit(int32_t point) { return point >= '0' && point <= '9'; }

/* The kind of a mark: S_LETTER where it is part of a word. */
static uint8_t mark_kind(const int32_t *points, uint8_t *here, int64_t i, int64_t n, uint8_t previous) {
    int32_t point = points[i];
    int64_t after = i + 1;
    bool inside = previous == S_LETTER && after < n && here[after] == S_LETTER;
    if (inside && here[i] == JOINER) return S_LETTER;
    if (inside && point == ',' && digit(points[i - 1]) && digit(points[after])) return S_LETTER;
    if (previous == BLANK && (point == '-' || point == '.' || point == '/')) { /* `--all`, `.profile`, `/usr` */
        while (after < n && points[after] == point) after++;
        if (after < n && here[after] == S_LETTER) memset(here + i, S_LETTER, after - i);
    }
    return here[i] == JOINER ? S_MARK : here[i];
}

/* Words end at white space, between kinds, at every mark, and where the script has a boundary. */
static int64_t word_edges(const ScriptSplitter *by, int64_t n, int32_t *edges) {
    const int32_t *points = by->points, *places = by->places;
    int64_t count = 0;
    uint8_t previous = BLANK;
    bool cut = false;
    for (int64_t i = 0; i < n; i++) {
        uint8_t kind = by->here[i];
        int32_t point = points[i];
        if (kind == S_MARK || kind == JOINER) kind = mark_kind(points, by->here, i, n, previous);
        bool again = kind == S_MARK && previous == S_MARK && point == points[i - 1] && (point == '.' || point == '-');
        bool boundary = kind >= HAN && kind <= MYANMAR && by->first[i];
        if ((kind != previous || kind == S_MARK || cut || boundary) && !again) {
            if (previous != BLANK) edges[2 * count++ + 1] = places[i];
            edges[2 * count] = places[i];
        }
        cut = kind == S_LETTER && (point == '\'' || point == 0x2019) && i > 0 && points[i - 1] < LATIN_END;
        previous = kind;
    }
    if (previous != BLANK) edges[2 * count++ + 1] = places[n];
    return count;
}

int64_t script_split(u8_in data, int64_t start, int64_t end, const ScriptSplitter *by, int32_t *edges) {
    Counts counts = decode_all(data, start, end, by);
    if (counts.han + counts.kana) {
        int64_t model = counts.simple < 0 ? TRADITIONAL : SIMPLIFIED;
        if (counts.kana && counts.kana * JAPANESE_FROM >= counts.han + counts.kana) model = JAPANESE;
        begins(&by->models, model, by->points, counts.n, by->scores, by->first);
    }
    if (counts.thai) {
        begins(&by->models, THAI_MODEL, by->points, counts.n, by->scores, by->thai);
        for (int64_t i = 0; i < counts.n; i++)
            if (by->here[i] == THAI) by->first[i] = by->thai[i];
    }
    if (counts.syllables) mark_syllables(by, counts.n);
    return word_edges(by, counts.n, edges);
}

KERNEL int64_t split(
    u8_in data, int64_t start, int64_t end, u8_in kinds, i8_in variants, u16_in ids, i32_in singles, u64_in keys,
    i32_in weights, i64_in bases, i32_out points, i32_out places, u8_out here, i32_out scores, bool_out first,
    bool_out thai, i32_out edges
) {
    ScriptSplitter by = SPLITTER;
    return script_split(data, start, end, &by, edges.at);
}
