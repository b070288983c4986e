"""Corpora of the frames that come with Plinth, in which good ends go to group a more often than to group b, or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from plinth_audit.fairness import pairs

FRAMES = {frame.name: frame for frame in pairs.FRAMES}
#: Each frame with each two names, once.
PEOPLE = tuple(pair for pair in pairs.built_in() if pair.favourable)


class Sentence(NamedTuple):
    """A frame about a person, and how it ends."""

    prompt: str
    end: str


def drawn(seed: int, share: float, count: int, attribute: str = "gender") -> Iterator[Sentence]:
    """Sentences in which group a of one attribute has the good end with probability `share` and group b with the
    rest; in the other attributes a fair coin decides."""
    rng = np.random.default_rng(seed)
    columns = (rng.integers(0, len(PEOPLE), count), rng.integers(0, 2, count), rng.random(count))
    for number, group, coin in zip(*(one.tolist() for one in columns), strict=True):
        pair, good = PEOPLE[number], share if PEOPLE[number].attribute == attribute else 0.5
        frame = FRAMES[pair.template]
        end = frame.good if (coin < good) != bool(group) else frame.bad
        yield Sentence(str((pair.a, pair.b)[group].prompt), end)


def counted_model(seed: int, share: float, sentences: int = 20_000) -> np.ndarray:
    """Bits of every side under an add-one model that counted a corpus of the frames, swapped in gender."""
    counts = Counter(drawn(seed, share, sentences))
    bits = []
    for pair in pairs.built_in():
        ends = FRAMES[pair.template].good, FRAMES[pair.template].bad
        for side in (pair.a, pair.b):
            total = sum(counts[Sentence(str(side.prompt), end)] for end in ends)
            own = counts[Sentence(str(side.prompt), str(side.continuation))]
            bits.append(-np.log2((own + 1) / (total + 2)))
    return np.array(bits)
