"""One way to write every text: line ends, mojibake, control characters, NFC, trailing spaces, blank lines.

Applying it twice changes nothing more. What a text says and how it is indented stays as it is.
"""

from __future__ import annotations

import re
import unicodedata

from plinth.recipe.corpus import Normalisation

#: \\r\\n, \\r, vertical tab, form feed, NEL, line and paragraph separator all become \\n.
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
#: C0 and C1 controls but tab and newline, the byte order mark, noncharacters.
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufdd0-\ufdef\ufffe\uffff]")
_MAX_ROUNDS = 8


def normalize(text: str, params: Normalisation) -> str:
    """The normal form of a text. Pure and idempotent.

    Mojibake is repaired line by line, and only where ftfy's own detector finds damage: clean text is left
    alone, quotes, ligatures and entities included.
    """
    for _ in range(_MAX_ROUNDS):
        settled = _once(text, params)
        # Repairing one layer can uncover another; plain ASCII settles at once.
        if settled == text or settled.isascii():
            return settled
        text = settled
    return text


def _once(text: str, params: Normalisation) -> str:
    clean_ascii = text.isascii()
    if params.repair_mojibake and not clean_ascii:
        text = _repair(text)
    text = _CONTROLS.sub("", _LINE_ENDS.sub("\n", text))
    if not clean_ascii:
        text = unicodedata.normalize("NFC", text)
    text = "\n".join(map(str.rstrip, text.split("\n")))
    limit = params.max_blank_lines + 1
    return re.sub(rf"\n{{{limit + 1},}}", "\n" * limit, text).strip("\n")


def _repair(text: str) -> str:
    from ftfy import fix_encoding
    from ftfy.badness import is_bad

    if not is_bad(text):
        return text
    lines = text.split("\n")
    return "\n".join(fix_encoding(line) if not line.isascii() and is_bad(line) else line for line in lines)
