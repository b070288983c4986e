/* Flags of a code point, as in `unicode.classes()`. */
#pragma once
enum {
    C_SPACE = 1, C_WORD = 2, C_LETTER = 4, C_DIGIT = 8, C_DECIMAL = 16, C_NUMERIC = 32, C_UPPER = 64,
    C_NOT_UPPER = 128, C_ALNUM = 256, C_PUNCTUATION = 512, C_SYMBOL = 1024, C_MARK = 2048, C_CONTROL = 4096,
    C_BREAK = 8192,
};
