#include "plinth_text/words/word_hashes.h"

uint64_t plinth_ascii_lower[256], plinth_ascii_word[256];
#define ASCII_LOWER plinth_ascii_lower
#define ASCII_WORD plinth_ascii_word

__attribute__((constructor)) static void fill_tables(void) {
    for (int byte = 0; byte < 128; byte++) {
        bool capital = byte >= 'A' && byte <= 'Z';
        if (capital || (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '_') {
            ASCII_LOWER[byte] = capital ? byte + 32 : byte;
            ASCII_WORD[byte] = UINT64_MAX;
        }
    }
}

/* A position in the words of a text. */
typedef struct {
    int64_t count;  /* words so far */
    uint64_t state; /* of the open word */
    bool inside;    /* a word is open */
} Words;

/* Hash ASCII on to `end`, without a branch: the state is stored at every byte, and the number advances only where a
   word ends. */
INLINE void ascii_run(u8_in data, int64_t start, int64_t end, uint64_t *out, Words *words) {
    uint64_t count = words->count, state = words->state, within = 0 - (uint64_t)words->inside;
    const uint8_t *last = data.at + end;
    for (const uint8_t *at = data.at + start; at < last; at++) {
        uint64_t word = ASCII_WORD[*at];
        out[count] = state;
        count -= within & ~word;
        state = ((state ^ ASCII_LOWER[*at]) * WORD_FACTOR) & word;
        within = word;
    }
    *words = (Words){count, state, within & 1};
}

/* The position after the last separator of data[start:end]; `start` where there is none. */
INLINE int64_t after_separator(u8_in data, int64_t start, int64_t end) {
    while (end > start && ASCII_WORD[data.at[end - 1]]) end--;
    return end;
}

/* As `ascii_run`, in blocks that end at a separator; a word that is open at `start`, and one longer than a block, go
   byte by byte. */
static void ascii_blocks(u8_in data, int64_t start, int64_t end, Block *block, uint64_t *out, Words *words) {
    for (int64_t at = start; at < end;) {
        int64_t stop = words->inside ? at : after_separator(data, at, min_i64(at + BLOCK, end));
        if (stop > at) {
            words->count += hash_block(data.at + at, stop - at, ASCII_LOWER, block, out + words->count);
            at = stop;
        } else {
            while (stop < end && ASCII_WORD[data.at[stop]]) stop++;
            stop = min_i64(stop + 1, end);
            ascii_run(data, at, stop, out, words);
            at = stop;
        }
    }
}

static void close_word(uint64_t *out, Words *words) {
    out[words->count] = words->state;
    words->count += words->inside;
    words->state = 0;
    words->inside = false;
}

int64_t hash_words_of(u8_in data, int64_t start, int64_t end, uint64_t *out) {
    Words words = {0};
    Block block;
    for (int64_t at = start; at < end;) {
        int64_t stop = ascii_end(data, at, end);
        if (stop - at >= WIDE)
            ascii_blocks(data, at, stop, &block, out, &words);
        else
            ascii_run(data, at, stop, out, &words);
        at = stop;
        while (at < end && data.at[at] >= 128) {
            int64_t size, point = decode(data, at, end, &size);
            at += size;
            uint8_t what = kind(point);
            if (what == LETTER) {
                words.state = (words.state ^ (point < LOWER_SIZE ? LOWER[point] : (uint64_t)point)) * WORD_FACTOR;
                words.inside = true;
                continue;
            }
            close_word(out, &words);
            if (what == SINGLE) out[words.count++] = (uint64_t)point * WORD_FACTOR;
        }
    }
    close_word(out, &words);
    for (int64_t i = 0; i < words.count; i++) out[i] = mix(out[i]);
    return words.count;
}

KERNEL int64_t hash_words(u8_in data, int64_t start, int64_t end, u64_out out) {
    return hash_words_of(data, start, end, out.at);
}
