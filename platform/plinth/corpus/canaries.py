"""Canaries are generated texts that the pipeline inserts into the training text to measure memorization.

For each canary, a random bit decides whether it is included in the run (Steinke et al. 2023, "Privacy Auditing with One
(1) Training Run", arXiv:2305.08846). Reference texts, which are generated in the same way, are never included (Carlini
et al. 2019, "The Secret Sharer", arXiv:1802.08232). Canaries skip filters and deduplication. This exception
cannot bring user text into the training text, because all canaries are derived from the seed and the tokenizer's
single-token words.

The text of a canary is a sequence of words drawn by a hash. Each word is a single token of the run's tokenizer. If the
tokenizer has too few words that are single tokens, words are built from syllables. A model learns a sequence of known
words from far fewer repetitions than a sequence of letters or digits. Texts are drawn until a text has the exact number
of tokens. The losses of texts with equal length vary little, and inserted documents of equal length fill training
sequences without being cut.

Not here: inserting the canaries (`planted_canaries`); losses, exposure and the audit (`memorisation_canaries`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

from pydantic import Field, model_validator

from plinth.errors import StageError
from plinth.records import Frozen, internal

#: Bucket of the planted copies; the name is reserved.
BUCKET = "canaries"

#: Minimum, maximum and usual number of tokens in a planted document, including end-of-text. The number must divide
#: every row length; the divisor closest to the usual number is used.
SHORTEST, LONGEST, USUAL = 12, 48, 16

#: Minimum number of references per canary. All canaries are compared with the same references, whose own variance adds
#: a share canaries / references to the variance of the summed exposure.
LEAST_REFERENCES = 16


class Canaries(Frozen):
    """Generated texts that measure memorization. Each text is included in the run with probability 1/2."""

    count: int = Field(
        128,
        ge=8,
        le=4096,
        description="Number of canaries; each is included with probability 1/2.",
    )
    seed: int = internal(1, description="Seed for the canary texts and for the random choice of the included canaries.")
    repetitions: tuple[int, ...] = internal(
        (1, 4, 16, 64),
        min_length=1,
        description="Numbers of copies of a canary in the training text; the canaries are divided equally among these "
        "numbers.",
    )
    references: int = internal(4096, ge=128, description="Number of reference texts, which are never included.")

    @model_validator(mode="after")
    def _comparable(self) -> Canaries:
        if self.count % len(self.repetitions):
            raise ValueError(
                f"count {self.count} is not divisible by {len(self.repetitions)}, the number of values in `repetitions`"
            )
        if self.references < LEAST_REFERENCES * self.count:
            most = self.references // LEAST_REFERENCES
            raise ValueError(f"count {self.count} is more than {most} (references / 16)")
        return self


def document_tokens(unit: int) -> int | None:
    """Return the number of tokens in an inserted document, or None if no number is suitable. The number divides `unit`,
    so that the rows of training tokens never cut a document."""
    found = [size for size in range(SHORTEST, LONGEST + 1) if unit % size == 0]
    return min(found, key=lambda size: (abs(size - USUAL), size), default=None)


CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aeio"
SYLLABLES = (2, 2, 3, 1)
#: Minimum number of words to draw from, and number of syllable words.
LEAST_WORDS = 1024
#: Attempts at a text of a given length; about one in six succeeds.
ATTEMPTS = 1000


class Lexis(NamedTuple):
    """Tokenizer data for generating texts: a function that counts the tokens of texts, and the words that are one token
    after a space."""

    measure: Callable[[Sequence[str]], Sequence[int]]
    words: Sequence[str]


class Canary(NamedTuple):
    """Canary with its number of repetitions. `planted` is True if the canary is included in the run."""

    number: int
    repetitions: int
    planted: bool
    text: str


def canaries(params: Canaries, tokens: int, lexis: Lexis) -> list[Canary]:
    """Return all canaries, including those that are not included in the run. Each canary has `tokens` tokens.

    Raises:
        StageError: no text of this length was found.
    """
    made = texts([f"canary {params.seed} {number}" for number in range(params.count)], tokens, lexis)
    groups = params.repetitions
    return [Canary(n, groups[n % len(groups)], coin(params.seed, n), text) for n, text in enumerate(made)]


def references(params: Canaries, tokens: int, lexis: Lexis) -> list[str]:
    """Return texts that are generated like canaries, but are never included in the run.

    Raises:
        StageError: no text of this length was found.
    """
    return texts([f"reference {params.seed} {number}" for number in range(params.references)], tokens, lexis)


def coin(seed: int, number: int) -> bool:
    """Return True if canary `number` is included in the run."""
    return bool(hashlib.sha256(f"coin {seed} {number}".encode()).digest()[0] & 1)


def texts(names: Sequence[str], tokens: int, lexis: Lexis) -> list[str]:
    """Return a text of exactly `tokens` tokens for each name.

    Raises:
        StageError: no text of this length was found in `ATTEMPTS` attempts.
    """
    found: dict[str, str] = {}
    pool = pool_of(lexis.words)
    sample = words("calibration", 256, pool)
    count = max(2, round(tokens * 256 / max(1, lexis.measure([sample])[0])))
    for attempt in range(ATTEMPTS):
        open_names = [name for name in names if name not in found]
        if not open_names:
            break
        tried = [words(f"{name} {attempt}", count + attempt % 3 - 1, pool) for name in open_names]
        sizes = lexis.measure(tried)
        found |= {n: text for n, text, size in zip(open_names, tried, sizes, strict=True) if size == tokens}
    if len(found) < len(set(names)):
        raise StageError(
            f"too few generated texts have exactly {tokens} tokens",
            found=f"{len(found)} of {len(names)} texts in {ATTEMPTS} attempts",
            expected="a tokenizer that cuts unknown words into letters or syllables",
            remedy="remove corpus.canaries, or train another tokenizer",
        )
    return [found[name] for name in names]


def words(name: str, count: int, pool: Sequence[str]) -> str:
    """Return `count` words from `pool`. Four bytes of a hash of `name` select each word."""
    drawn = hashlib.shake_256(name.encode()).digest(4 * count)
    return " ".join(pool[int.from_bytes(drawn[at : at + 4]) % len(pool)] for at in range(0, 4 * count, 4))


def pool_of(vocabulary: Sequence[str]) -> Sequence[str]:
    """Return the words to generate texts from: the vocabulary, or words built from syllables if the vocabulary is too
    small."""
    return vocabulary if len(vocabulary) >= LEAST_WORDS else syllables()


@cache
def syllables() -> tuple[str, ...]:
    """Return words of one to three syllables, generated from a hash. Six bits of each byte select a syllable; two bits
    of a word's first byte select the number of syllables."""
    drawn, made = iter(hashlib.shake_256(b"syllables").digest(16 * LEAST_WORDS)), dict[str, None]()
    while len(made) < LEAST_WORDS:
        first = next(drawn)
        own = [first, *islice(drawn, SYLLABLES[first >> 6] - 1)]
        made["".join(CONSONANTS[byte & 15] + VOWELS[byte >> 4 & 3] for byte in own)] = None
    return tuple(made)
