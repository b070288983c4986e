"""The held-out set and the overlap of training text with it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.records import Frozen, internal


class Holdout(Frozen):
    """Held-out documents per bucket, chosen by keyed hash before training."""

    fraction: float = Field(0.01, gt=0, lt=1, description="Share of each bucket's documents.")
    max_documents: int = internal(2000, ge=1, description="At most this many are chosen per bucket; earlier ones stay.")
    min_documents: int = Field(1, ge=1, description="Fewer than this in any bucket fails the stage.")
    seed: int = internal(1, description="Key of the hash that chooses.")


class Contamination(Frozen):
    """Training documents that share word n-grams with the held-out set (GPT-3 used 13)."""

    remove: Literal["match", "document"] = Field(
        "match",
        description="`match`: the shared stretch with 200 characters around it is cut, and a document of more than ten "
        "pieces dropped (GPT-3); `document`: the whole document.",
    )
    ngram_words: int = Field(13, ge=1, description="Length of a shared stretch that counts.")
    max_overlap: float = Field(0.0, ge=0, le=1, description="With `document`: share of its n-grams that may be shared.")
    boilerplate_documents: int | None = Field(
        10,
        ge=1,
        description="An n-gram found in more training documents than this is boilerplate and ignored (GPT-3: 10); "
        "`null` ignores none.",
    )
