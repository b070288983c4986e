"""Words of a text and their hashes, in one pass over the bytes.

A **word** is a maximal run of letters, digits and underscores; everything else (white space, punctuation,
symbols, control characters) separates words and is stripped. Letters are lower-cased where that is one code
point below U+0530 to another (Latin, Greek, Cyrillic, Armenian). In scripts that write no spaces (Chinese,
Japanese, Thai, Lao, Khmer, Myanmar) and for emoji, every character is a word of its own.

Hashes are 64 bits. A word's state is 0 before its first character c and (state xor c) * `WORD_FACTOR` after each;
the last is mixed. Long runs of ASCII are hashed in blocks (`word_blocks.h`), everything else byte by byte.
"""

from __future__ import annotations

import numpy as np

from plinth_text.arrays import I64, U8, U64
from plinth_text.compiled import compiled

#: A word's state is multiplied by this for every character.
WORD_FACTOR = np.uint64(0x9FB21C651E98DF25)
#: Runs of ASCII from this many bytes on are hashed in blocks of so many bytes.
WIDE, BLOCK = 384, 4096


def scratch(offsets: I64) -> U64:
    """A buffer for the word hashes of the longest text of a column."""
    longest = int(np.diff(offsets).max(initial=0))
    return np.empty(longest // 2 + 4, dtype=np.uint64)


@compiled
def hash_words(data: U8, start: int, end: int, out: U64) -> int:
    """Hash the words of `data[start:end]` into `out`; returns how many there are.

    `out` must hold (end - start) // 2 + 4 values: no encoding packs words closer.
    """
