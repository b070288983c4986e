/* Kinds of code points for words in any script, as in `unicode.kinds()`. */
#pragma once
enum { S_LETTER, BLANK, S_MARK, HAN, KANA, THAI, LAO, KHMER, MYANMAR, JOINER };
enum { SCRIPTS_SIZE = 0x32000 };
