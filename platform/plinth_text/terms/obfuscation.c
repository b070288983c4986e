/* A piece is a run of letters and of characters that may stand for one (`fold_letters`). Its letters are hashed only
   where it shows obfuscation: a sign, a digit, an accent or another alphabet's letter among plain ones, or one letter
   three times in a row. */
#include "plinth_text/terms/obfuscation.h"
#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/unicode/fold_letters.h"
#include "plinth_text/words/hash_sets.h"
#include "plinth_text/words/word_hashes.h"

enum {
    LONGEST = 24,   /* letters of the longest run of single letters in which terms are sought */
    MIN_LETTERS = 3 /* of a term; as in `__init__.py` */
};

/* By byte: true for a plain letter. */
static const bool PLAIN[256] = {['A' ... 'Z'] = true, ['a' ... 'z'] = true};

typedef struct {
    int64_t first, last;    /* bytes: -1 before the first letter */
    int64_t letters, size;  /* letters, and all characters but invisible ones */
    int64_t before, row;    /* the last letter, and its number of consecutive repeats */
    bool shows, repeated;   /* signs of obfuscation */
} Piece;

static const Piece NO_PIECE = {.first = -1, .before = -1};

/* Single letters with the same mark between them. */
typedef struct {
    int64_t places[LONGEST], letters[LONGEST];
    int64_t count, mark, end;
} Singles;

typedef struct {
    u8_in data;
    int64_t start, end;
    u32_in letters;
    const TermHashes *skeletons, *runs;
    Hits *hits;
} Search;

/* The code point at data[at], and its length. */
INLINE int64_t point_at(u8_in data, int64_t at, int64_t end, int64_t *length) {
    *length = 1;
    return data.at[at] < 128 ? data.at[at] : decode(data, at, end, length);
}

Skeleton skeleton_of(u8_in data, int64_t start, int64_t end, u32_in letters) {
    Skeleton found = {FNV, FNV, FNV, 0};
    int64_t before = -1;
    for (int64_t at = start, length; at < end; at += length) {
        int64_t code = letter_code(letters, point_at(data, at, end, &length)), plain = code & FOLDED;
        if (plain == INVISIBLE) continue;
        found.i = (found.i ^ plain) * PRIME;
        found.l = (found.l ^ (code & BOTH ? LEET_L : plain)) * PRIME;
        if (plain != before) found.once = (found.once ^ plain) * PRIME;
        before = plain;
        found.letters++;
    }
    return (Skeleton){mix(found.i), mix(found.l), mix(found.once), found.letters};
}

/* True if the piece is over: a mark such as `!` is a letter only before another one. */
INLINE bool ends_piece(u8_in data, int64_t at, int64_t end) {
    if (at >= end) return true;
    uint8_t after = data.at[at];
    return !(after >= 128 || PLAIN[after] || (after >= '0' && after <= '9'));
}

INLINE void count_letter(Piece *piece, int64_t letter) {
    piece->row = letter == piece->before ? piece->row + 1 : 1;
    piece->before = letter;
}

/* Take plain letters from `at` on, most of any text: obfuscated only by repetition. Returns the position after them. */
INLINE int64_t take_plain(Piece *piece, u8_in data, int64_t at, int64_t end) {
    int64_t here = at;
    for (; at < end && PLAIN[data.at[at]]; at++) {
        count_letter(piece, data.at[at] | 32);
        piece->repeated |= piece->row >= 3;
    }
    if (at > here) {
        if (piece->first < 0) piece->first = here;
        piece->last = at;
        piece->letters += at - here;
        piece->size += at - here;
    }
    return at;
}

INLINE void take_sign(Piece *piece, int64_t at, int64_t length, int64_t code) {
    if (piece->first < 0) piece->first = at;
    piece->last = at + length;
    piece->shows |= (code & LEET) != 0;
    if ((code & FOLDED) == INVISIBLE) return;
    piece->letters += (code & SIGN) == 0;
    piece->size++;
    count_letter(piece, code & FOLDED);
    piece->repeated |= piece->row >= 3 && (code & LEET) == 0;
}

/* Add the term that a piece with signs of obfuscation is. */
static bool put_piece(const Search *search, const Piece *piece) {
    Skeleton found = skeleton_of(search->data, piece->first, piece->last, search->letters);
    int64_t term = term_of(search->skeletons, found.i);
    if (term < 0) term = term_of(search->skeletons, found.l);
    if (term < 0 && piece->repeated) term = term_of(search->runs, found.once);
    return term < 0 || add_hit(search->hits, piece->first, piece->last, term);
}

/* Add the terms spelled in single letters: from every letter on the longest one. */
static bool put_singles(const Search *search, const Singles *singles) {
    for (int64_t i = 0, taken; i + MIN_LETTERS <= singles->count; i += max_i64(taken, 1)) {
        uint64_t value = FNV;
        int64_t term = -1;
        taken = 0;
        for (int64_t j = i; j < singles->count; j++) {
            value = (value ^ singles->letters[j]) * PRIME;
            int64_t found = j - i + 1 >= MIN_LETTERS ? term_of(search->skeletons, mix(value)) : -1;
            if (found < 0) continue;
            taken = j - i + 1;
            term = found;
        }
        if (!taken) continue;
        int64_t end = i + taken < singles->count ? singles->places[i + taken] - 1 : singles->end;
        if (!add_hit(search->hits, singles->places[i], end, term)) return false;
    }
    return true;
}

/* Add a piece to the run of single letters, or end that run. */
INLINE bool take_single(const Search *search, const Piece *piece, Singles *singles) {
    bool single = piece->size == 1 && piece->letters == 1;
    if (!singles->count && !single) return true;
    int64_t mark = piece->first > search->start ? search->data.at[piece->first - 1] : '\n';
    bool joins = single && singles->count > 0 && singles->count < LONGEST && singles->end + 1 == piece->first &&
                 mark != '\n';
    if (!joins || (singles->count > 1 && mark != singles->mark)) {
        if (!put_singles(search, singles)) return false;
        if (joins) { /* the letter before begins a run of another mark */
            singles->places[0] = singles->places[singles->count - 1];
            singles->letters[0] = singles->letters[singles->count - 1];
        }
        singles->count = joins;
    }
    singles->mark = mark;
    if (single) {
        singles->places[singles->count] = piece->first;
        singles->letters[singles->count++] = piece->before;
        singles->end = piece->last;
    }
    return true;
}

bool obfuscated_terms(u8_in data, int64_t start, int64_t end, u32_in letters, const TermHashes *skeletons,
                      const TermHashes *runs, Hits *hits) {
    Search search = {data, start, end, letters, skeletons, runs, hits};
    Piece piece = NO_PIECE;
    Singles singles = {.mark = -1, .end = start};
    for (int64_t at = start, length = 1;; at += length) {
        at = take_plain(&piece, data, at, end);
        if (at < end) {
            int64_t code = letter_code(letters, point_at(data, at, end, &length));
            if (code && !(code & MARK && ends_piece(data, at + length, end))) {
                take_sign(&piece, at, length, code);
                continue;
            }
        }
        if (piece.first >= 0) {
            bool shows = piece.size > 1 && piece.letters && (piece.shows || piece.repeated);
            if (shows && !put_piece(&search, &piece)) return false;
            if (!take_single(&search, &piece, &singles)) return false;
        }
        if (at >= end) return put_singles(&search, &singles);
        piece = NO_PIECE;
    }
}
