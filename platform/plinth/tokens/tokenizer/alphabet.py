"""The characters that get tokens of their own, and texts prepared for a trainer that must not learn the others.

Shared by the vocabularies of characters (`bpe-fallback`, `unigram`). The alphabet of a byte-level vocabulary is the
256 bytes.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator

#: Always in the alphabet: the characters of programs and of English, whatever the sample.
ALWAYS = frozenset(string.printable) - {"\x0b", "\x0c"}

#: Replaces a character without a token before training. It is in no alphabet, so trainers drop it.
RARE = "\x00"

#: A merge spelt `<0x41>` would be read as that byte; no merge crosses this position.
_BYTE_NAME = re.compile(r"(?<=<)(?=0x[0-9A-F]{2}>)")


def choose(texts: Iterable[str], coverage: float, most: int) -> list[str]:
    """The commonest characters that make up a share of all, at most `most`, in code-point order.

    Ties are broken by code point. Printable ASCII is always among them.

    Args:
        coverage: share of the texts' characters, as in SentencePiece (Kudo and Richardson 2018).
        most: how many characters to choose, if ASCII has not taken as many already.
    """
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(text)
    total = seen.total()
    chosen, covered = set(ALWAYS), sum(seen[character] for character in ALWAYS)
    for character, count in sorted(seen.items(), key=lambda item: (-item[1], item[0])):
        if covered >= coverage * total or len(chosen) >= most:
            break
        if character not in chosen and character != RARE:
            chosen.add(character)
            covered += count
    return sorted(chosen)


def prepared(texts: Iterable[str], alphabet: Iterable[str]) -> Iterator[str]:
    """Texts for training: characters without a token are `RARE`, names of bytes are cut in two."""
    known = frozenset(alphabet)
    for text in texts:
        rare = set(text) - known
        if rare:
            text = text.translate({ord(character): RARE for character in rare})
        yield from _BYTE_NAME.split(text) if "<0x" in text else (text,)
