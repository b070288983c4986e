"""The deduplication cascade."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from plinth.corpus.dedup.span_parameters import LineParameters, Semantic, Substring
from plinth.records import Frozen, internal, spelling


class MinHash(Frozen):
    """MinHash-LSH over shingles. Defaults are FineWeb's: word 5-grams, 14 bands of 8 rows.

    `preset` takes a published setting, `hashes` has bands and rows chosen for the threshold. Both are resolved
    when the recipe is read: what is recorded are bands and rows.
    """

    preset: Literal["fineweb", "marin", "nemo", "redpajama", "text-dedup"] | None = spelling(
        None, description="A published setting (docs/deduplication.md); fields given beside it win."
    )
    hashes: int | None = Field(
        None, ge=2, exclude=True, description="Hashes to divide into bands and rows; not with `bands` and `rows`."
    )
    target_recall: float | None = internal(
        None,
        gt=0,
        lt=1,
        exclude=True,
        description="With `hashes`: the fewest false candidates that find such a share of pairs at the threshold. "
        "Without it false positives and negatives weigh the same, as datasketch optimises them.",
    )
    shingle_words: int = Field(5, ge=1, description="Words per shingle.")
    shingle_characters: int | None = internal(None, ge=1, description="Characters per shingle, instead of words.")
    max_characters: int | None = internal(
        500_000, ge=1, description="Of a longer text only so many characters are compared. `null`: all."
    )
    bands: int = Field(14, ge=1, description="More bands find less similar pairs.")
    rows: int = Field(8, ge=1, description="Hashes per band; more find only more similar pairs.")
    threshold: float = Field(0.8, gt=0, le=1, description="Similarity a pair must have.")
    verify: Literal["text", "signature"] = Field(
        "text", description="True Jaccard similarity of the shingles, or its estimate by signatures, text unread."
    )
    seed: int = internal(1, description="Of the hash permutations.")

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.keys() & {"preset", "hashes", "target_recall"}:
            return given
        from plinth.corpus.dedup.near.bands import resolve

        return resolve(given)

    def signature(self) -> dict[str, Any]:
        """Parameters that signatures depend on."""
        return {
            "shingle_words": self.shingle_words if self.shingle_characters is None else None,
            "shingle_characters": self.shingle_characters,
            "max_characters": self.max_characters,
            "permutations": self.bands * self.rows,
            "seed": self.seed,
        }

    def similarity(self) -> dict[str, Any]:
        """Parameters that the similarity of two texts depends on."""
        if self.verify == "signature":
            return {"verify": self.verify, **self.signature()}
        names = ("shingle_words", "shingle_characters", "max_characters")
        return {"verify": self.verify, **{name: self.signature()[name] for name in names}}

    def resolved(self) -> dict[str, Any]:
        """Parameters that the clusters depend on."""
        shape = {"bands": self.bands, "rows": self.rows, "threshold": self.threshold, "verify": self.verify}
        return self.signature() | shape


class Dedup(Frozen):
    """Exact, then near duplicates, across all buckets; one survivor per cluster."""

    minhash: MinHash = MinHash()
    keep: Literal["smallest_id", "longest", "earliest", "best_quality"] = Field(
        "longest", description="Member that survives; ties go to the smallest id."
    )
    quality: str | None = Field(
        None, pattern=r"^[^.]+\..+$", description="For `best_quality`: annotation and column, like `quality.score`."
    )
    prefer: tuple[str, ...] = Field(
        (), max_length=255, description="Buckets whose members survive before those of others, best first."
    )
    semantic: Semantic | None = Field(None, description="Look-alikes by vectors, in chosen buckets. `null`: off.")
    lines: LineParameters | None = Field(None, description="Repeated lines and paragraphs become cuts. `null`: off.")
    substring: Substring | None = Field(None, description="Repeated passages become cuts. `null`: off.")

    @model_validator(mode="after")
    def _has_quality(self) -> Self:
        if (self.keep == "best_quality") != (self.quality is not None):
            raise ValueError("`keep: best_quality` and `quality: annotation.column` go together")
        return self

    def survivors(self) -> dict[str, Any]:
        """Parameters that the choice of survivors depends on."""
        return {"keep": self.keep, "quality": self.quality, "prefer": list(self.prefer)}
