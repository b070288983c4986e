"""Texts and coins from the seed.

A text is meaningless words of one to three syllables. Of the words that a name gives, those with exactly so many tokens
under the run's tokenizer are taken: canaries and references of one length have losses that differ little, and planted
documents of one length fill sequences without a cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from plinth.corpus.canaries.parameters import Canaries
from plinth.errors import StageError

CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aeio"
SYLLABLES = (2, 2, 3, 1)
#: Attempts at a text of a given length; about one in six succeeds.
ATTEMPTS = 1000

#: Tokens of each text.
Measure = Callable[[Sequence[str]], Sequence[int]]


class Canary(NamedTuple):
    """A canary: its group of repetitions, and whether the coin planted it."""

    number: int
    repetitions: int
    planted: bool
    text: str


def canaries(params: Canaries, tokens: int, measure: Measure) -> list[Canary]:
    """All canaries, planted or not, each of `tokens` tokens.

    Raises:
        StageError: no text of so many tokens was found.
    """
    made = texts([f"canary {params.seed} {number}" for number in range(params.count)], tokens, measure)
    groups = params.repetitions
    return [Canary(n, groups[n % len(groups)], coin(params.seed, n), text) for n, text in enumerate(made)]


def references(params: Canaries, tokens: int, measure: Measure) -> list[str]:
    """Texts as canaries are, which never enter the run.

    Raises:
        StageError: as `canaries`.
    """
    return texts([f"reference {params.seed} {number}" for number in range(params.references)], tokens, measure)


def coin(seed: int, number: int) -> bool:
    """Whether a canary is planted."""
    return bool(hashlib.sha256(f"coin {seed} {number}".encode()).digest()[0] & 1)


def texts(names: Sequence[str], tokens: int, measure: Measure) -> list[str]:
    """A text of exactly `tokens` tokens for each name.

    Raises:
        StageError: none was found in `ATTEMPTS`.
    """
    found: dict[str, str] = {}
    sample = words("calibration", 256)
    words_of = max(2, round(tokens * 256 / max(1, measure([sample])[0])))
    for attempt in range(ATTEMPTS):
        open_names = [name for name in names if name not in found]
        if not open_names:
            break
        tried = [words(f"{name} {attempt}", words_of + attempt % 3 - 1) for name in open_names]
        sizes = measure(tried)
        found |= {n: text for n, text, size in zip(open_names, tried, sizes, strict=True) if size == tokens}
    if len(found) < len(set(names)):
        raise StageError(
            f"no generated text of {tokens} tokens",
            found=f"{len(found)} of {len(names)} texts in {ATTEMPTS} attempts",
            expected="a tokenizer that cuts unknown words into letters or syllables",
            remedy="leave out corpus.canaries, or train another tokenizer",
        )
    return [found[name] for name in names]


def words(name: str, count: int) -> str:
    """`count` words; six bits of a byte give a syllable, two of a word's first byte how many it has."""
    drawn = iter(hashlib.shake_256(name.encode()).digest(3 * count))
    made = []
    for _ in range(count):
        first = next(drawn)
        syllables = [first, *islice(drawn, SYLLABLES[first >> 6] - 1)]
        made.append("".join(CONSONANTS[byte & 15] + VOWELS[byte >> 4 & 3] for byte in syllables))
    return " ".join(made)
