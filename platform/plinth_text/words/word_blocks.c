#include "plinth_text/words/word_blocks.h"
#include "plinth_text/words/chunks.h"

/* By eight bits, of which no two neighbors are set: the numbers of those that are, 16 bits each; how many. */
static uint64_t PACKED[256], COUNTS[256];

__attribute__((constructor)) static void fill_tables(void) {
    for (int bits = 0; bits < 256; bits++)
        for (uint64_t place = 0; place < 8; place++)
            if ((bits >> place & 1) && COUNTS[bits] < 4) PACKED[bits] |= place << (16 * COUNTS[bits]++);
}

INLINE int64_t strides(int64_t count) { return (count + STRIDE - 1) & ~(int64_t)(STRIDE - 1); }

/* Word characters in lower case, zeros for the rest, before the text and after it, from folded[8] on. A constant that
   is added to a byte below 128 sets its top bit where the byte is at least the one named. */
static void fold_block(const uint8_t *text, int64_t size, const uint64_t *lower, uint8_t *folded) {
    int64_t whole = size / 8;
    write8(folded, 0, 0);
    for (int64_t group = 0; group < whole; group++) {
        uint64_t eight = read8(text, 8 * group), low = eight | EVERY(0x20);
        uint64_t letter = (low + EVERY(128 - 'a')) & ~(low + EVERY(128 - '{')) & TOPS;
        uint64_t other = ((eight + EVERY(128 - '0')) & ~(eight + EVERY(128 - ':'))) |
                         ((eight + EVERY(128 - '_')) & ~(eight + EVERY(128 - '`')));
        uint64_t word = (letter | other) & TOPS;
        write8(folded, 8 * group + 8, (eight | (letter >> 2)) & (word - (word >> 7)));
    }
    write8(folded, 8 * whole + 8, 0);
    for (int64_t i = 8 * whole; i < size; i++) folded[i + 8] = lower[text[i]];
    write8(folded, size + 8, 0);
}

/* Eight bits for eight bytes: where a word begins. The product brings the lowest bits of eight bytes together. */
static void mark_starts(const uint8_t *folded, int64_t groups, uint8_t *marks) {
    for (int64_t group = 0; group < strides(groups); group++) {
        uint64_t here = read8(folded, 8 * group + 8), before = read8(folded, 8 * group + 7);
        uint64_t begins = (here + EVERY(0x7F)) & ~(before + EVERY(0x7F)) & TOPS;
        marks[group] = ((begins >> 7) * 0x0102040810204080u) >> 56;
    }
}

/* Where in `folded` the words begin, 16 bits each; four are written whether they are there or not. */
static int64_t word_places(const uint8_t *marks, int64_t groups, uint16_t *places) {
    const uint64_t step = 0x0008000800080008u;
    uint64_t count = 0, base = step;
    for (int64_t group = 0; group < groups; group++) {
        write8((uint8_t *)places, 2 * count, base + PACKED[marks[group]]);
        count += COUNTS[marks[group]];
        base += step;
    }
    return count;
}

/* Eight bytes, those from the first zero on cleared; `whole`: there is none. */
INLINE uint64_t until_zero(uint64_t eight, bool *whole) {
    uint64_t zero = (eight - EVERY(1)) & ~eight & TOPS;
    *whole = zero == 0;
    return eight & ((zero & (0 - zero)) - 1);
}

/* The state after up to eight characters; zeros are none. */
INLINE uint64_t hashed(uint64_t state, uint64_t eight) {
    for (int k = 0; k < 8; k++) {
        uint64_t byte = (eight >> (8 * k)) & 0xFF;
        state = byte ? (state ^ byte) * WORD_FACTOR : state;
    }
    return state;
}

/* The first eight bytes of every word as its state; words that fill them are `longer`: number and position. */
static int64_t first_bytes(int64_t count, Block *block) {
    uint64_t longer = 0;
    for (int64_t i = 0; i < count; i++) {
        bool whole;
        block->states[i] = until_zero(read8(block->folded, block->places[i]), &whole);
        block->longer[longer] = ((uint64_t)i << 32) | block->places[i];
        longer += whole;
    }
    return longer;
}

/* Hash on eight bytes of every word that has more, until none has. */
static void hash_rest(int64_t longer, Block *block) {
    while (longer) {
        for (int64_t j = 0; j < longer; j++) {
            bool whole;
            block->bytes[j] = until_zero(read8(block->folded, (block->longer[j] & UINT32_MAX) + 8), &whole);
            block->own[j] = block->states[block->longer[j] >> 32];
        }
        for (int64_t j = 0; j < strides(longer); j++) block->own[j] = hashed(block->own[j], block->bytes[j]);
        int64_t left = 0;
        for (int64_t j = 0; j < longer; j++) {
            uint64_t word = block->longer[j];
            block->states[word >> 32] = block->own[j];
            block->longer[left] = word + 8;
            left += block->bytes[j] >> 56 != 0;
        }
        longer = left;
    }
}

int64_t hash_block(const uint8_t *text, int64_t size, const uint64_t *lower, Block *block, uint64_t *out) {
    fold_block(text, size, lower, block->folded);
    int64_t groups = (size + 7) / 8;
    mark_starts(block->folded, groups, block->marks);
    int64_t count = word_places(block->marks, groups, block->places);
    int64_t longer = first_bytes(count, block);
    for (int64_t i = 0; i < strides(count); i++) block->states[i] = hashed(0, block->states[i]);
    if (longer) hash_rest(longer, block);
    memcpy(out, block->states, count * sizeof *out);
    return count;
}
