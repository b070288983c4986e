/* The plain letter that a character stands for in an obfuscated word. */
#pragma once
#include "plinth_text/compiled/kernel.h"

enum {
    FOLDED = 0x1FFFFF,
    LEET = 1 << 21,
    BOTH = 1 << 22,
    SIGN = 1 << 23,
    MARK = 1 << 24,
    INVISIBLE = 1,
    LEET_L = 'l',
};

/* The letter with flags; 0 where it separates pieces. `letters` is `lexicon.fold_table`. */
INLINE int64_t letter_code(u32_in letters, int64_t point) {
    if (point < letters.size) return letters.at[point];
    if (point >= 0xFF21 && point <= 0xFF3A) return (point - 0xFF21 + 97) | LEET;
    if (point >= 0xFF41 && point <= 0xFF5A) return (point - 0xFF41 + 97) | LEET;
    return 0;
}
