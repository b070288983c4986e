/* Flags of a code point, as in `characters.flags()`. */
#pragma once
enum { SPACE = 1, BREAK = 2, ALPHA = 4, PUNCTUATION = 8, TERMINAL = 16 };
