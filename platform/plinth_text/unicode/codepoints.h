/* Code points in UTF-8 buffers: decode one, lower-case it, and test whether it separates words. */
#pragma once
#include "plinth_text/compiled/kernel.h"

enum { LETTER, SEPARATOR, SINGLE };
enum { LOWER_SIZE = 0x530, CLASSES_SIZE = 0x40000, LAST_POINT = 0x10FFFF };

/* Lower case of code points below U+0530, where it is one code point in the same range; else the point itself. */
extern uint32_t plinth_lower[LOWER_SIZE] __attribute__((visibility("hidden")));
extern uint8_t plinth_classes[CLASSES_SIZE] __attribute__((visibility("hidden")));
#define LOWER plinth_lower
#define CLASSES plinth_classes

/* LETTER, SEPARATOR or SINGLE, for a code point from U+0080 on. */
INLINE uint8_t kind(int64_t point) { return point < CLASSES_SIZE ? CLASSES[point] : LETTER; }

/* The code point that starts at data[at] (at least 128); its length in bytes goes to `size`.

   Never reads at or past `end`: a sequence cut short is one separator of the bytes that are left. So is one beyond
   Unicode, which tables do not have: bytes of a column need not be UTF-8. */
INLINE int64_t decode(u8_in data, int64_t at, int64_t end, int64_t *size) {
    int64_t lead = data.at[at];
    *size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (at + *size > end) {
        *size = end - at;
        return 0xFFFD;
    }
    int64_t point = lead & (0x7F >> *size);
    for (int64_t i = 1; i < *size; i++) point = (point << 6) | (data.at[at + i] & 0x3F);
    return point <= LAST_POINT ? point : 0xFFFD;
}

/* White space of Unicode beyond ASCII, for folding. */
INLINE bool wide_space(int64_t point) {
    if (point < 0x1680) return point == 0x85 || point == 0xA0;
    if (point > 0x205F) return point == 0x3000;
    return point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 ||
           point == 0x202F || point == 0x205F;
}
