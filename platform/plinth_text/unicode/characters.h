/* Flags of a code point, as in `unicode.flags()`. */
#pragma once
#include <stdint.h>

enum { SPACE = 1, BREAK = 2, ALPHA = 4, PUNCTUATION = 8, TERMINAL = 16 };

/* White space by ASCII byte. */
static const uint8_t ASCII_SPACE[256] = {[9 ... 13] = 1, [28 ... 31] = 1, [32] = 1};
