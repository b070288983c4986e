"""A text as digest and shingle hashes, so that it is found again without being kept.

Two texts are alike when of the smaller set of shingles a share of at least `threshold` is in the other. That takes a
near duplicate (a Jaccard similarity of the threshold implies it), a page that quotes the whole text, and an excerpt.
A text of few shingles is alike only what equals it but for case and white space.

Whoever reads signed records imports this; kernels are imported where texts are compared.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pydantic import Field

from plinth.corpus.dedup.parameters import MinHash
from plinth.records import Frozen

U64 = npt.NDArray[np.uint64]

#: Fewer shingles are a phrase, and would take what merely uses it.
LEAST_SHINGLES = 20


class Alike(Frozen):
    """When texts are alike: the corpus' shingles, without its bound on their number, and its threshold."""

    shingle_words: int = Field(5, ge=1)
    shingle_characters: int | None = Field(None, ge=1)
    threshold: float = Field(0.8, gt=0, le=1)

    @property
    def minhash(self) -> MinHash:
        """Parameters of `shingles.sets`."""
        return MinHash(**self.model_dump(), max_characters=None)


class TextSignature(Frozen):
    """A text that can be recognised. `shingles` are sorted hashes, 8 bytes each, little-endian, in base64."""

    digest: str = Field(pattern=r"^[0-9a-f]{32}$")
    shingles: str = ""

    @cached_property
    def set(self) -> U64:
        """The hashes."""
        return np.frombuffer(base64.b64decode(self.shingles), dtype="<u8").astype(np.uint64, copy=False)


def sign_texts(texts: list[str], alike: Alike) -> tuple[TextSignature, ...]:
    """The signatures of texts; equal ones once, in order of their digests."""
    import pyarrow as pa

    from plinth.corpus.dedup.near import shingles
    from plinth_text.unicode.fold import digests

    column = pa.array(texts, pa.large_string())
    found: Mapping[str, U64] = {
        digest.hex(): own
        for digest, own in zip(digests(column).to_pylist(), shingles.sets(column, alike.minhash), strict=True)
    }
    return tuple(
        TextSignature(digest=digest, shingles=_coded(own) if own.size >= LEAST_SHINGLES else "")
        for digest, own in sorted(found.items())
    )


def overlap(a: U64, b: U64) -> float:
    """Share of the smaller set that is in the other; 0 where either has fewer than `LEAST_SHINGLES`."""
    from plinth_text.words.ngrams import shared

    smaller = min(a.size, b.size)
    return shared(a, b) / smaller if smaller >= LEAST_SHINGLES else 0.0


def _coded(hashes: U64) -> str:
    return base64.b64encode(hashes.astype("<u8", copy=False).tobytes()).decode("ascii")
