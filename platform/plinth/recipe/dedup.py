"""The deduplication cascade."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.recipe.spans import Lines, Semantic, Substring
from plinth.records import Frozen


class MinHash(Frozen):
    """Word-shingle MinHash-LSH. Defaults are FineWeb's: 5-grams, 14 bands of 8 rows."""

    shingle_words: int = Field(5, ge=1, description="Words per shingle.")
    bands: int = Field(14, ge=1, description="More bands find less similar pairs.")
    rows: int = Field(8, ge=1, description="Hashes per band; more find only more similar pairs.")
    threshold: float = Field(0.8, gt=0, le=1, description="True Jaccard similarity a pair must have.")
    seed: int = Field(1, description="Of the hash permutations.")


class Dedup(Frozen):
    """Exact, then near duplicates, across all buckets; one survivor per cluster."""

    minhash: MinHash = MinHash()
    keep: Literal["smallest_id", "longest"] = Field(
        "longest", description="Which member survives; ties go to the smallest id."
    )
    semantic: Semantic | None = Field(None, description="Look-alikes by vectors, in chosen buckets. `null`: off.")
    lines: Lines | None = Field(None, description="Repeated lines and paragraphs become cuts. `null`: off.")
    substring: Substring | None = Field(None, description="Repeated passages become cuts. `null`: off.")
