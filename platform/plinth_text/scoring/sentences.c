#include "plinth_text/unicode/codepoints.h"
#include "plinth_text/words/hash_sets.h"

enum { BLANK, TOKEN_MARK, LINE_END, LETTER_CLASS }; /* classes of characters */
enum { BOUNDARY = 0 };                              /* ends a sentence in the stream of hashes */

static uint8_t ascii_class(uint8_t byte) {
    if (byte == 10 || byte == 13) return LINE_END;
    if (byte < 33 || byte == 127) return BLANK;
    bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9');
    return letter ? LETTER_CLASS : TOKEN_MARK;
}

static uint8_t ascii_folded(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return '0';
    return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte;
}

static uint8_t CLASS_OF[128], FOLDED_BYTE[128];

__attribute__((constructor)) static void fill_tables(void) {
    for (int byte = 0; byte < 128; byte++) {
        CLASS_OF[byte] = ascii_class(byte);
        FOLDED_BYTE[byte] = ascii_folded(byte);
    }
}

/* The class of a code point beyond ASCII; `point` becomes its lower case. */
static uint8_t wide_class(int64_t *point) {
    if (wide_space(*point)) return *point == 0x85 || *point == 0x2028 || *point == 0x2029 ? LINE_END : BLANK;
    if (kind(*point) != LETTER) return TOKEN_MARK;
    if (*point < LOWER_SIZE) *point = LOWER[*point];
    return LETTER_CLASS;
}

/* The stream of tokens so far, and the places of their first and last bytes. */
typedef struct {
    uint64_t *hashes;
    int64_t *places;
    int64_t size;
} Stream;

INLINE void put(Stream *stream, uint64_t hash, int64_t begin, int64_t end) {
    stream->hashes[stream->size] = hash;
    stream->places[2 * stream->size] = begin;
    stream->places[2 * stream->size + 1] = end;
    stream->size++;
}

INLINE void put_token(Stream *stream, uint64_t value, int64_t begin, int64_t end) {
    uint64_t mixed = (value ^ (value >> 32)) * 0x9E3779B97F4A7C15u;
    mixed ^= mixed >> 29;
    put(stream, mixed != BOUNDARY ? mixed : 1, begin, end);
}

INLINE void close_sentence(Stream *stream, int64_t first, int64_t at) {
    if (stream->size > first && stream->hashes[stream->size - 1] != BOUNDARY) put(stream, BOUNDARY, at, at);
}

static void stream_tokens(u8_in data, int64_t start, int64_t end, Stream *stream) {
    int64_t begin = -1, first = stream->size;
    uint64_t value = FNV;
    for (int64_t at = start; at < end;) {
        int64_t length = 1, point = data.at[at];
        uint8_t what;
        if (point >= 128) {
            point = decode(data, at, end, &length);
            what = wide_class(&point);
        } else {
            what = CLASS_OF[point];
            point = FOLDED_BYTE[point];
        }
        if (what == LETTER_CLASS) {
            if (begin < 0) {
                begin = at;
                value = FNV;
            }
            value = (value ^ (uint64_t)point) * PRIME;
        } else {
            if (begin >= 0) put_token(stream, value, begin, at);
            begin = -1;
            if (what == TOKEN_MARK) put_token(stream, (FNV ^ (uint64_t)point) * PRIME, at, at + length);
            if (what == LINE_END) close_sentence(stream, first, at);
        }
        at += length;
    }
    if (begin >= 0) put_token(stream, value, begin, end);
    close_sentence(stream, first, end);
}

KERNEL int64_t sentence_tokens(u8_in data, i64_in offsets, u64_out hashes, i64_rows_out places, i64_out out) {
    Stream stream = {hashes.at, places.at, 0};
    for (int64_t doc = 0; doc < offsets.size - 1; doc++) {
        stream_tokens(data, offsets.at[doc], offsets.at[doc + 1], &stream);
        out.at[doc + 1] = stream.size;
    }
    return stream.size;
}
