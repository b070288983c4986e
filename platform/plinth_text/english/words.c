#include "plinth_text/english/words.h"
#include "plinth_text/english/affixes.h"
#include "plinth_text/english/merges.h"
#include "plinth_text/english/urls.h"

/* Append letters as one word, or as the pieces of an exception. */
static void put_plain(u8_in data, int64_t start, int64_t end, const EnglishSplitter *by, EnglishWords *words) {
    int64_t slot = exception_at(data, start, end, by->tables);
    if (slot >= 0)
        put_pieces(slot, start, by->tables, words);
    else
        put_word(words, start, end);
}

/* Put the code points of a chunk into `points` and where each starts into `places`; returns how many. `held` becomes
   the flags that any has. */
static int64_t decode_chunk(u8_in data, int64_t start, int64_t end, const EnglishSplitter *by, uint16_t *held) {
    int64_t count = 0;
    *held = 0;
    for (int64_t at = start; at < end; count++) {
        int64_t size = 1, point = data.at[at];
        if (point >= 128) point = decode(data, at, end, &size);
        by->points[count] = point;
        by->places[count] = at;
        *held |= by->flags[point];
        at += size;
    }
    by->places[count] = end;
    return count;
}

/* Split a part of a chunk at its infixes. An infix at the start is none, but what it covers is passed over. */
static void put_split(int64_t low, int64_t high, const EnglishSplitter *by, EnglishWords *words) {
    const int32_t *points = by->points, *places = by->places;
    const uint16_t *flags = by->flags;
    int64_t begin = low, at = low + 1;
    if (flags[points[low]] & E_JOINT) at = low + max_i64(1, infix(points, low, high, low, flags));
    while (at < high) {
        int64_t size = flags[points[at]] & E_JOINT ? infix(points, low, high, at, flags) : 0;
        if (size) {
            if (at > begin) put_word(words, places[begin], places[at]);
            put_word(words, places[at], places[at + size]);
            begin = at + size;
        }
        at += max_i64(size, 1);
    }
    if (begin < high) put_word(words, places[begin], places[high]);
}

/* What is left of a chunk without affixes: an exception in its pieces, a URL, or words and infixes. */
static void put_middle(u8_in data, int64_t low, int64_t high, const EnglishSplitter *by, EnglishWords *words) {
    int64_t slot = exception_at(data, by->places[low], by->places[high], by->tables);
    if (slot >= 0) {
        put_pieces(slot, by->places[low], by->tables, words);
        return;
    }
    uint16_t joints = 0;
    for (int64_t at = low + 1; at < high; at++) joints |= by->flags[by->points[at]];
    if (joints & E_JOINT && !is_url(by->points, low, high, by->flags))
        put_split(low, high, by, words);
    else
        put_word(words, by->places[low], by->places[high]);
}

/* Append the words of a chunk. Suffixes are kept behind the places, from the last. */
static void put_chunk(u8_in data, int64_t start, int64_t end, const EnglishSplitter *by, EnglishWords *words) {
    uint16_t held;
    int64_t low = 0, high = decode_chunk(data, start, end, by, &held), last = -1, suffixes = by->cuts;
    int32_t *places = by->places;
    bool digits = held & E_NUMBER;
    while (low < high && high - low != last) {
        if (exception_at(data, places[low], places[high], by->tables) >= 0) break;
        last = high - low;
        int64_t ahead = prefix(by->points, low, high, by->flags);
        if (0 < ahead && ahead < last && exception_at(data, places[low + ahead], places[high], by->tables) >= 0) {
            put_word(words, places[low], places[low + ahead]);
            low += ahead;
            break;
        }
        int64_t behind = suffix(by->points, low + ahead, high, digits, by->flags, by->tables);
        if (0 < behind && behind < last && exception_at(data, places[low], places[high - behind], by->tables) >= 0) {
            places[suffixes++] = places[high - behind];
            high -= behind;
            break;
        }
        if (ahead) {
            put_word(words, places[low], places[low + ahead]);
            low += ahead;
        }
        if (behind) {
            places[suffixes++] = places[high - behind];
            high -= behind;
        }
    }
    if (low < high) put_middle(data, low, high, by, words);
    while (suffixes > by->cuts) {
        suffixes--;
        put_word(words, places[suffixes], suffixes > by->cuts ? places[suffixes - 1] : end);
    }
}

/* A chunk that is more than ASCII letters, up to white space. */
typedef struct {
    int64_t end, last; /* of the chunk; where its last character starts */
    uint16_t all, all_but_last, what, previous; /* flags that all have; of the last character and the one before it */
    int64_t blank; /* bytes of the white space behind it */
} Chunk;

INLINE Chunk read_chunk(u8_in data, int64_t begin, int64_t end, const uint16_t *flags) {
    Chunk chunk = {begin, begin, E_INERT, E_INERT, 0, 0, 0};
    while (chunk.end < end) {
        int64_t size = 1, point = data.at[chunk.end];
        if (point >= 128) point = decode(data, chunk.end, end, &size);
        uint16_t here = flags[point];
        if (here & E_BLANK) {
            chunk.blank = size;
            break;
        }
        chunk.all_but_last = chunk.all;
        chunk.previous = chunk.what;
        chunk.last = chunk.end;
        chunk.what = here;
        chunk.all &= here;
        chunk.end += size;
    }
    return chunk;
}

/* Letters and one mark that is a suffix. */
INLINE bool ends_with_mark(u8_in data, int64_t begin, const Chunk *chunk, const EnglishSplitter *by) {
    if (!chunk->all_but_last || chunk->last <= begin) return false;
    bool dot = data.at[chunk->last] == '.' && chunk->previous & E_BEFORE_PERIOD;
    return (chunk->what & E_SUFFIX || dot) && exception_at(data, begin, chunk->end, by->tables) < 0;
}

/* The words before exceptions across them; returns how many chunks are more than letters. */
static int64_t split_chunks(u8_in data, int64_t start, int64_t end, const EnglishSplitter *by, EnglishWords *words) {
    int64_t chunks = 0;
    for (int64_t at = start; at < end;) {
        int64_t begin = at;
        at = letters_end(data, begin, end);
        if (at > begin && (at == end || (data.at[at] < 128 && by->flags[data.at[at]] & E_BLANK))) {
            put_plain(data, begin, at++, by, words);
            continue;
        }
        Chunk chunk = read_chunk(data, begin, end, by->flags);
        at = chunk.end + chunk.blank;
        if (chunk.end == begin) continue;
        if (chunk.all) {
            put_plain(data, begin, chunk.end, by, words);
            continue;
        }
        chunks++;
        if (ends_with_mark(data, begin, &chunk, by)) {
            put_plain(data, begin, chunk.last, by, words);
            put_word(words, chunk.last, chunk.end);
        } else {
            put_chunk(data, begin, chunk.end, by, words);
        }
    }
    return chunks;
}

int64_t english_split(u8_in data, int64_t start, int64_t end, const EnglishSplitter *by, int32_t *edges) {
    EnglishWords words = {edges, 0};
    if (split_chunks(data, start, end, by, &words)) merge_words(data, by, &words);
    return words.count;
}

KERNEL int64_t split(
    u8_in data, int64_t start, int64_t end, u16_in flags, u64_in tables, u64_in pairs, u64_in rows, u8_in whole,
    int64_t most, i32_out points, i32_out places, u64_out matched, i64_out starts, u8_out taken, i32_out copy,
    i32_out edges
) {
    EnglishSplitter by = ENGLISH_SPLITTER;
    return english_split(data, start, end, &by, edges.at);
}
