"""The normal form of text: line ends, mojibake, invisible and control characters, NFC, trailing spaces, blank
lines; for sources that set it, boundaries (`boundaries`).

Applying it twice changes nothing more. Wording and indentation stay as they are; no letter is lost. A text means what
it shows: controls that reorder lines for the eye alone ("Trojan Source", CVE-2021-42574) and characters that hide
ASCII from it (tags) are removed.
"""

from __future__ import annotations

import re
import sys
import unicodedata

from plinth.corpus.documents.boundaries import mend
from plinth.corpus.sources.parameters import Normalisation

#: Vertical tab, form feed; and beyond ASCII: next line, line and paragraph separator.
_ASCII_LINE_ENDS = ("\r\n", "\r", "\x0b", "\x0c")
_OTHER_LINE_ENDS = ("\x85", "\u2028", "\u2029")
#: C0 controls but tab and newline, delete; and beyond ASCII: C1, the byte order mark, noncharacters.
_ASCII_CONTROLS = bytes([*range(9), *range(11, 32), 127])
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufdd0-\ufdef\ufffe\uffff]")
#: A soft hyphen where a line ends says that the word goes on.
_SOFT_BREAK = re.compile("(?<=[^\\W\\d_])\xad[ \t]*\n[ \t]*(?=[^\\W\\d_])")
#: Soft hyphen, word joiner; zero-width space but in scripts that write no spaces (Thai, Lao, Tibetan, Myanmar, Khmer),
#: where it parts words; joiners between Latin letters, where they join nothing.
_INVISIBLES = "\xad\u2060\u200b\u200c\u200d"
_INVISIBLE = re.compile(
    "[\xad\u2060]"
    "|(?<![\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff])\u200b(?![\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff])"
    "|(?<=[A-Za-z\u00c0-\u024f])[\u200c\u200d]+(?=[A-Za-z\u00c0-\u024f])"
)
#: Embeddings, overrides, isolates and their ends (UAX #9). The marks U+200E, U+200F and U+061C, with which Arabic and
#: Hebrew are written, stay: they move no letter past another.
_REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_REORDERINGS = re.compile(f"[{_REORDERING}]")
#: Tags, but in the flag of a subdivision: a black flag, its code of three to six, and the end (UTS #51, ED-14A).
_TAG = re.compile("[\U000e0000-\U000e007f]")
_TAGS = re.compile("(\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f)|[\U000e0000-\U000e007f]+")
_MAX_ROUNDS = 8


def normalize(text: str, params: Normalisation, repair_boundaries: bool = False) -> str:
    """The normal form of a text. Pure and idempotent.

    Mojibake is repaired line by line, and only where ftfy's own detector finds damage: clean text is left
    alone, quotes, ligatures and entities included.
    """
    for _ in range(_MAX_ROUNDS):
        settled = _once(text, params, repair_boundaries)
        # Repairing one layer can uncover another; plain ASCII settles at once.
        if settled == text or (settled.isascii() and not repair_boundaries):
            return settled
        text = settled
    return text


def _once(text: str, params: Normalisation, repair_boundaries: bool) -> str:
    # Most text needs none of this: every step is first a fast search that finds nothing.
    for end in _ASCII_LINE_ENDS:
        if end == "\x0c" and repair_boundaries:
            text = mend(text)
        text = text.replace(end, "\n")
    if text.isascii():
        lines = text.encode().translate(None, _ASCII_CONTROLS).decode().split("\n")
    else:
        lines = _beyond_ascii(text, params)
    text = "\n".join(map(str.rstrip, lines))
    limit = params.max_blank_lines + 1
    if "\n" * (limit + 1) in text:
        text = re.sub(rf"\n{{{limit + 1},}}", "\n" * limit, text)
    return text.strip("\n")


def _beyond_ascii(text: str, params: Normalisation) -> list[str]:
    if params.repair_mojibake:
        # Before C1 controls go: they are half of what mojibake is made of.
        text = "\n".join(_repaired(text.split("\n")))
    for end in _OTHER_LINE_ENDS:
        text = text.replace(end, "\n")
    text = _CONTROLS.sub("", text)
    if params.strip_invisible:
        text = _without_invisible(text)
    return unicodedata.normalize("NFC", text).split("\n")


def _without_invisible(text: str) -> str:
    if any(mark in text for mark in _REORDERING):
        text = _REORDERINGS.sub("", text)
    # Only strings with a character beyond U+FFFF take four bytes each: no other has to be searched.
    if sys.getsizeof(text) >= 4 * len(text) and _TAG.search(text):
        text = _TAGS.sub(r"\1", text)
    if any(mark in text for mark in _INVISIBLES):
        text = _INVISIBLE.sub("", _SOFT_BREAK.sub("", text))
    return text


def _repaired(lines: list[str]) -> list[str]:
    from ftfy import fix_encoding
    from ftfy.badness import is_bad

    suspects = [line for line in lines if not line.isascii()]
    if not is_bad("\n".join(suspects)):
        return lines
    return [fix_encoding(line) if not line.isascii() and is_bad(line) else line for line in lines]
