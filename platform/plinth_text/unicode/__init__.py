"""Code points of UTF-8 buffers: decode, lower-case, fold and classify them. The `*.h` files do the same in C.

Three tables classify code points: `flags` for datatrove's counts, `classes` for the other rule sets, and `kinds` for
splitting words in any script.
"""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth_text.arrays import U8
from plinth_text.compiled import compiled

#: The class of a code point beyond ASCII: part of a word, between words, or a word by itself. These are ranges written
#: out in `codepoints.c`, not tables of the running Python: the same text gives the same words under every version.
LETTER, SEPARATOR, SINGLE = 0, 1, 2
#: Code points below this may have a lower case (`lower`), and those below the other one a class.
LOWER_SIZE, CLASSES_SIZE = 0x530, 0x40000


@compiled
def lower_table(out: npt.NDArray[np.uint32]) -> None:
    """Write the lower case of each code point into `out`, [`LOWER_SIZE`].

    A code point stays unchanged unless its lower case is one code point in the same range.
    """


@compiled
def class_table(out: npt.NDArray[np.uint8]) -> None:
    """Write the class of each code point (`LETTER`, `SEPARATOR` or `SINGLE`) into `out`, [`CLASSES_SIZE`]."""


@compiled
def characters(data: npt.NDArray[np.uint8], points: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> int:
    """Write the code point and size of each character into `points` and `sizes`; return the number of characters. For
    tests."""


@lru_cache(maxsize=1)
def lower() -> npt.NDArray[np.uint32]:
    """Return the lower case of each code point, [`LOWER_SIZE`]."""
    out = np.empty(LOWER_SIZE, dtype=np.uint32)
    lower_table(out)
    return out


def utf8(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes [B] and offsets [D + 1] of a string column. A `large_string` column is not copied.

    Offsets are positions in the bytes, and need not start at 0, because the array may be a slice. A null text is empty.
    """
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if not pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.large_string())
    if texts.null_count:
        texts = texts.fill_null("")
    _, raw_offsets, raw_data = texts.buffers()
    if len(texts) == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    offsets = np.frombuffer(raw_offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(raw_data, dtype=np.uint8) if raw_data is not None else np.zeros(0, dtype=np.uint8)
    return data, offsets


# Fold texts: texts that differ only in case and white space become equal.
#
# Letters are lower-cased as in `plinth_text.words`; runs of white space (ASCII and Unicode) become one space, none at
# the ends. The rest, punctuation included, stays as it is.


def digests(texts: pa.Array) -> pa.Array:
    """Return the first 16 bytes of SHA-256 over each folded text, as `binary(16)`."""
    data, offsets = utf8(texts)
    longest = int(np.diff(offsets).max(initial=0))
    out = np.empty(longest + 1, dtype=np.uint8)
    view = out.data
    values = bytearray()
    for doc in range(offsets.size - 1):
        size = fold(data, offsets[doc], offsets[doc + 1], out)
        values += hashlib.sha256(view[:size]).digest()[:16]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), offsets.size - 1, [None, pa.py_buffer(bytes(values))])


@compiled
def fold(data: U8, start: int, end: int, out: U8) -> int:
    """Fold `data[start:end]` into `out`, and return the folded length. `out` must have space for one more byte."""


# Classes of code points as one byte of flags each: the same answers as Python's `str` methods.
#
# `SPACE`, `BREAK` and `ALPHA` follow `str.isspace`, `str.splitlines` and `str.isalpha` of the running Python;
# results that depend on them are stored with `unicodedata.unidata_version`. `PUNCTUATION` and `TERMINAL` are
# fixed ranges: the characters that datatrove 0.10 counts as symbols, and those it lets a line end with
# (Unicode's Sentence_Terminal, as of its release).

SPACE, BREAK, ALPHA, PUNCTUATION, TERMINAL = 1, 2, 4, 8, 16

_BREAKS = (0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029)

#: First and last code point of each range of sentence ends.
_TERMINALS = (
    (0x21, 0x21), (0x2E, 0x2E), (0x3F, 0x3F), (0x589, 0x589), (0x61D, 0x61F), (0x6D4, 0x6D4), (0x700, 0x702),
    (0x7F9, 0x7F9), (0x837, 0x837), (0x839, 0x839), (0x83D, 0x83E), (0x964, 0x965), (0x104A, 0x104B),
    (0x1362, 0x1362), (0x1367, 0x1368), (0x166E, 0x166E), (0x1735, 0x1736), (0x17D4, 0x17D6), (0x17D9, 0x17DA),
    (0x1803, 0x1803), (0x1809, 0x1809), (0x1944, 0x1945), (0x1AA8, 0x1AAB), (0x1B5A, 0x1B5B), (0x1B5E, 0x1B5F),
    (0x1B7D, 0x1B7E), (0x1C3B, 0x1C3C), (0x1C7E, 0x1C7F), (0x203C, 0x203D), (0x2047, 0x2049), (0x2E2E, 0x2E2E),
    (0x2E3C, 0x2E3C), (0x2E53, 0x2E54), (0x3002, 0x3002), (0xA4FF, 0xA4FF), (0xA60E, 0xA60F), (0xA6F3, 0xA6F3),
    (0xA6F7, 0xA6F7), (0xA876, 0xA877), (0xA8CE, 0xA8CF), (0xA92F, 0xA92F), (0xA9C8, 0xA9C9), (0xAA5D, 0xAA5F),
    (0xAAF0, 0xAAF1), (0xABEB, 0xABEB), (0xFE52, 0xFE52), (0xFE56, 0xFE57), (0xFF01, 0xFF01), (0xFF0E, 0xFF0E),
    (0xFF1F, 0xFF1F), (0xFF61, 0xFF61), (0x10A56, 0x10A57), (0x10F55, 0x10F59), (0x10F86, 0x10F89),
    (0x11047, 0x11048), (0x110BE, 0x110C1), (0x11141, 0x11143), (0x111C5, 0x111C6), (0x111CD, 0x111CD),
    (0x111DE, 0x111DF), (0x11238, 0x11239), (0x1123B, 0x1123C), (0x112A9, 0x112A9), (0x1144B, 0x1144C),
    (0x115C2, 0x115C3), (0x115C9, 0x115D7), (0x11641, 0x11642), (0x1173C, 0x1173E), (0x11944, 0x11944),
    (0x11946, 0x11946), (0x11A42, 0x11A43), (0x11A9B, 0x11A9C), (0x11C41, 0x11C42), (0x11EF7, 0x11EF8),
    (0x11F43, 0x11F44), (0x16A6E, 0x16A6F), (0x16AF5, 0x16AF5), (0x16B37, 0x16B38), (0x16B44, 0x16B44),
    (0x16E98, 0x16E98), (0x1BC9F, 0x1BC9F), (0x1DA88, 0x1DA88),
)  # fmt: skip
#: Further symbols: sentence ends are symbols too.
_SYMBOLS = (
    (0x00, 0x08), (0x0B, 0x1F), (0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x9F), (0xAB, 0xAB), (0xB4, 0xB4),
    (0xBB, 0xBB), (0x2013, 0x2014), (0x2019, 0x2019), (0x201C, 0x201E), (0x2026, 0x2026), (0x2236, 0x2236),
    (0x2501, 0x2501), (0x25BA, 0x25BA), (0x3001, 0x3001), (0x3008, 0x300D), (0x3010, 0x3011), (0xFF05, 0xFF05),
    (0xFF08, 0xFF09), (0xFF0C, 0xFF0C), (0xFF11, 0xFF11), (0xFF1A, 0xFF1B), (0xFF5E, 0xFF5E),
)  # fmt: skip


@lru_cache(maxsize=1)
def flags() -> npt.NDArray[np.uint8]:
    """Return the flags `SPACE` to `TERMINAL` of each code point, [0x110000]."""
    table = np.zeros(sys.maxunicode + 1, dtype=np.uint8)
    characters = np.arange(table.size, dtype=np.uint32).view("U1")
    table[np.strings.isalpha(characters)] |= ALPHA  # by the tables of the running Python
    table[np.strings.isspace(characters)] |= SPACE
    table[list(_BREAKS)] |= BREAK
    for first, last in _TERMINALS:
        table[first : last + 1] |= TERMINAL | PUNCTUATION
    for first, last in _SYMBOLS:
        table[first : last + 1] |= PUNCTUATION
    return table


# Classes of code points as flags, and their normal forms, for the rule sets beyond datatrove's.
#
# The classes of `str` methods and regular expressions that RedPajama, Dolma and DCLM use, and RedPajama's normal form
# of a code point. All follow the running Python's Unicode tables: results that depend on them are stored with
# `unicodedata.unidata_version`.

#: `str.isspace`; `\w`; `str.isalpha`; `str.isdigit`; `\d`; `str.isnumeric`.
C_SPACE, C_WORD, C_LETTER, C_DIGIT, C_DECIMAL, C_NUMERIC = 1, 2, 4, 8, 16, 32
#: `str.isupper` of the character; a cased letter that is not upper case; `str.isalnum`.
C_UPPER, C_NOT_UPPER, C_ALNUM = 64, 128, 256
#: General categories P, S, M, and C without white space.
C_PUNCTUATION, C_SYMBOL, C_MARK, C_CONTROL = 512, 1024, 2048, 4096
#: `str.splitlines` ends a line here.
C_BREAK = 8192

_GENERAL = {"P": C_PUNCTUATION, "S": C_SYMBOL, "M": C_MARK}
#: Beyond these planes nothing is assigned but tags, variation selectors and private use.
_LAST, _TAGS, _PRIVATE = 0x34000, range(0xE0000, 0xE01F0), range(0xF0000, 0x110000)


@lru_cache(maxsize=1)
def classes() -> npt.NDArray[np.uint16]:
    """Return the flags `C_SPACE` to `C_BREAK` of each code point, [0x110000]."""
    table = np.full(0x110000, C_CONTROL, dtype=np.uint16)  # unassigned and private use are category C
    for point in (*range(_LAST), *_TAGS):
        table[point] = _classes_of(chr(point))
    return table


def _classes_of(character: str) -> int:
    space, alnum, category = character.isspace(), character.isalnum(), unicodedata.category(character)
    return (
        C_SPACE * space
        | C_WORD * (alnum or character == "_")
        | C_LETTER * character.isalpha()
        | C_DIGIT * character.isdigit()
        | C_DECIMAL * character.isdecimal()
        | C_NUMERIC * character.isnumeric()
        | C_UPPER * character.isupper()
        | C_NOT_UPPER * (character.islower() or category == "Lt")
        | C_ALNUM * alnum
        | _GENERAL.get(category[0], 0)
        | C_CONTROL * (category[0] == "C" and not space)
        | C_BREAK * (ord(character) in _BREAKS)
    )


class Expansions(NamedTuple):
    """Table of `unicodedata.normalize("NFD", character.lower())` for each code point.

    Args:
        starts: [0x30001] the result for code point p is `points[starts[p]:starts[p + 1]]`; code points beyond the table
            are unchanged.
        points: the results, one after another.
        numeric: [0x30000] number of numeric characters in the result.
        combines: [0x30000] bit 0 is set if the result begins with a combining mark, so that marks before it may have to
            change places; bit 1 is set if the result ends with a combining mark.
    """

    starts: npt.NDArray[np.int32]
    points: npt.NDArray[np.uint32]
    numeric: npt.NDArray[np.uint8]
    combines: npt.NDArray[np.uint8]


@lru_cache(maxsize=1)
def expansions() -> Expansions:
    """Return the table of lower-cased, normalized code points.

    The table does not cover texts with a capital sigma, or with marks that normalization reorders.
    """
    starts, points = np.zeros(0x30001, dtype=np.int32), []
    numeric, combines = np.zeros(0x30000, dtype=np.uint8), np.zeros(0x30000, dtype=np.uint8)
    for point in range(0x30000):
        character = chr(point)
        made = unicodedata.normalize("NFD", character.lower())
        points += [ord(one) for one in made]
        starts[point + 1] = len(points)
        numeric[point] = sum(one.isnumeric() for one in made)
        combines[point] = (unicodedata.combining(made[0]) > 0) | (unicodedata.combining(made[-1]) > 0) << 1
    return Expansions(starts, np.array(points, dtype=np.uint32), numeric, combines)


# Kinds of code points for splitting words in any script: spaced letters, scripts without spaces, marks, white space.
#
# The scripts are ranges of Unicode blocks; marks and white space follow the running Python's tables.

#: Kinds of code points. S_LETTER: characters of words in scripts with spaces between words, including digits.
S_LETTER, BLANK, S_MARK, HAN, KANA, THAI, LAO, KHMER, MYANMAR = range(9)
#: A mark that stays inside a word when letters stand on both sides: `l'eau`, `foo(3)`, `3.5`.
JOINER = 9
#: Scripts that are written without spaces between words, by their kind.
UNSPACED = {HAN: "han", KANA: "kana", THAI: "thai", LAO: "lao", KHMER: "khmer", MYANMAR: "myanmar"}
#: Beyond, nothing is assigned but symbols, tags and private use.
SCRIPTS_SIZE = 0x32000

_RANGES = (
    (HAN, 0x2E80, 0x2FDF), (HAN, 0x3005, 0x3007), (HAN, 0x3021, 0x3029), (HAN, 0x3400, 0x4DBF), (HAN, 0x4E00, 0x9FFF),
    (HAN, 0xF900, 0xFAFF), (HAN, 0x20000, 0x31FFF),
    (KANA, 0x3031, 0x3035), (KANA, 0x3041, 0x309F), (KANA, 0x30A1, 0x30FA), (KANA, 0x30FC, 0x30FF),
    (KANA, 0x31F0, 0x31FF), (KANA, 0xFF66, 0xFF9F), (KANA, 0x1B000, 0x1B16F),
    (THAI, 0x0E01, 0x0E3A), (THAI, 0x0E40, 0x0E4E), (LAO, 0x0E81, 0x0ECD), (LAO, 0x0EDC, 0x0EDF),
    (KHMER, 0x1780, 0x17D3), (KHMER, 0x17D7, 0x17D7), (KHMER, 0x17DC, 0x17DD),
    (MYANMAR, 0x1000, 0x103F), (MYANMAR, 0x1050, 0x108F), (MYANMAR, 0x109A, 0x109D), (MYANMAR, 0xA9E0, 0xA9EF),
    (MYANMAR, 0xA9FA, 0xA9FE), (MYANMAR, 0xAA60, 0xAA7F),
)  # fmt: skip
#: CJK punctuation and full-width forms of ASCII marks, for a character class.
_WIDE_MARKS = "\u3000-\u3004\u3008-\u3020\u3030\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
#: Between Tibetan syllables, and spaces of no width, which publishers put between Khmer, Lao and Thai words.
_SEPARATORS = (0x0F0B, 0x0F0C, 0x200B, 0xFEFF)
#: ASCII marks but those at which spaCy splits inside words, and a few of other blocks.
_ASCII_JOINERS = "!\"#$%&'()*+-.;?@[\\]^_`{|}"
_JOINERS = (*map(ord, _ASCII_JOINERS), 0xB7, 0x5F3, 0x5F4, 0x2010, 0x2011, 0x2019, 0x30FB)


@lru_cache(maxsize=1)
def kinds() -> npt.NDArray[np.uint8]:
    """Return the kind of each code point below `SCRIPTS_SIZE`, for splitting text of any script into words."""
    table = np.full(SCRIPTS_SIZE, S_LETTER, dtype=np.uint8)
    marks = [point for point in range(SCRIPTS_SIZE) if unicodedata.category(chr(point))[0] in "PS"]
    table[marks] = S_MARK
    for kind, first, last in _RANGES:
        table[first : last + 1] = kind
    table[list(_JOINERS)] = JOINER
    table[np.flatnonzero(flags()[:SCRIPTS_SIZE] & SPACE)] = BLANK
    table[list(_SEPARATORS)] = BLANK
    return table


def word_counts(text: str) -> dict[str, int]:
    """Count white-space-separated words, and the characters of each script that has no spaces between words.

    Returns:
        counts by `words` and by the names in `UNSPACED` that occur. Spaced words inside such a script count as words;
        CJK and full-width marks separate words and are not counted.
    """
    unspaced, pieces = _patterns()
    if not unspaced.search(text):  # twenty times faster
        return {"words": len(text.split())}
    return {"words": 0} | Counter(found.lastgroup or "words" for found in pieces.finditer(text))


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return two patterns for counting words.

    The first pattern matches a character that requires more than splitting at white space. The second pattern matches a
    character of a script without spaces, or a word.
    """
    classes: dict[str, str] = dict.fromkeys(UNSPACED.values(), "")
    for kind, first, last in _RANGES:
        classes[UNSPACED[kind]] += f"{chr(first)}-{chr(last)}"
    every = "".join(classes.values()) + _WIDE_MARKS
    groups = "|".join(f"(?P<{name}>[{characters}])" for name, characters in classes.items())
    return re.compile(f"[{every}]"), re.compile(rf"{groups}|(?P<words>[^\s{every}]+)")


@lru_cache(maxsize=1)
def variants() -> npt.NDArray[np.int8]:
    """Return the variant of each Han character below 0x10000: 1 if only simplified, -1 if only traditional, otherwise
    0.

    Simplified characters are those of GB 2312 (mainland China), and traditional characters those of Big5 (Taiwan).
    """
    table = np.zeros(0x10000, dtype=np.int8)
    for point in range(0x4E00, 0xA000):
        table[point] = _in(chr(point), "gb2312") - _in(chr(point), "big5")
    return table


def _in(character: str, charset: str) -> bool:
    return bool(character.encode(charset, "ignore"))
