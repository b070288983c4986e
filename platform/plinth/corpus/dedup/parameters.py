"""Parameters of the deduplication stages. Exact, near and semantic deduplication drop whole documents. Line and
substring deduplication cut repeated lines and passages.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from plinth.records import Frozen, internal, spelling

# Bands and rows of MinHash: published settings by name, or chosen for a threshold and a number of hashes.
#
# A pair of similarity s shares a band key with probability 1 - (1 - s^rows)^bands (`plinth_text.similarity.recall`).

#: Settings as their projects publish them. Where only a number of hashes is, bands and rows are optimized for the
#: threshold as the project does itself, with datasketch's routine.
#:
#:   fineweb      Penedo et al. 2024 (2406.17557), and datatrove's defaults: word 5-grams, 14 bands of 8
#:   marin        marin-community/marin: character 5-grams, 26 bands of 11, at most 500,000 characters
#:   nemo         NVIDIA NeMo Curator: character 24-grams, 20 bands of 13
#:   redpajama    RedPajama-Data-V2: word 13-grams, 128 hashes, here at its 0.8
#:   text-dedup   ChenghaoMou/text-dedup: word 5-grams, 240 hashes, 0.7
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "fineweb": {"shingle_words": 5, "bands": 14, "rows": 8, "threshold": 0.8},
    "marin": {"shingle_characters": 5, "bands": 26, "rows": 11, "max_characters": 500_000, "threshold": 0.8},
    "nemo": {"shingle_characters": 24, "bands": 20, "rows": 13, "threshold": 0.8},
    "redpajama": {"shingle_words": 13, "hashes": 128, "threshold": 0.8},
    "text-dedup": {"shingle_words": 5, "hashes": 240, "threshold": 0.7},
}
DEFAULT_THRESHOLD = 0.8


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `MinHash`, in which `preset`, `hashes` and `target_recall` are replaced by bands and rows.

    Raises:
        ValueError: fields contradict each other, or the number of hashes cannot reach the recall.
    """
    found, shape = dict(given), given.keys() & {"bands", "rows"}
    for name, value in PRESETS.get(str(given.get("preset")), {}).items():
        chosen_otherwise = (name in ("bands", "rows") and "hashes" in given) or (name == "hashes" and shape)
        if not chosen_otherwise:
            found.setdefault(name, value)
    hashes, target, threshold = found.get("hashes"), found.get("target_recall"), found.get("threshold")
    if hashes is None:
        if target is not None:
            raise ValueError("`target_recall` needs `hashes`")
        return found
    if shape:
        raise ValueError("set either `hashes`, or `bands` and `rows`")
    threshold = DEFAULT_THRESHOLD if threshold is None else threshold
    if not isinstance(hashes, int) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        return found  # the fields' own checks say what is wrong
    found["bands"], found["rows"] = for_recall(threshold, hashes, target) if target else optimal(threshold, hashes)
    return found


@lru_cache
def optimal(threshold: float, hashes: int) -> tuple[int, int]:
    """Return the numbers of bands and rows with the smallest sum of false positives and false negatives, using at most
    `hashes` hashes.

    datasketch measures false positives as the area under the recall curve below the threshold, and false negatives as
    the area over the curve above the threshold.
    """
    from datasketch.lsh import _optimal_param

    bands, rows = _optimal_param(threshold, hashes, 0.5, 0.5)
    return int(bands), int(rows)


def for_recall(threshold: float, hashes: int, target: float) -> tuple[int, int]:
    """Return the numbers of bands and rows that find at least the share `target` of the pairs at the threshold. Of
    these, the numbers with the most rows per band are returned, because more rows per band give fewer false candidates.

    Raises:
        ValueError: the recall is too low even with one row per band.
    """
    from plinth_text.similarity import recall  # loads Arrow, which most recipes do not need

    for rows in range(hashes, 0, -1):
        if recall(threshold, hashes // rows, rows) >= target:
            return hashes // rows, rows
    raise ValueError(f"{hashes} hashes cannot reach a recall of {target:.0%} at similarity {threshold}")

# The rest of the deduplication cascade: look-alikes by meaning (drops), repeated lines and passages (edits).
#
# Each is off unless the recipe names it under `corpus.dedup`; `{}` switches it on with its defaults.


class Remainder(Frozen):
    """Minimum size of a document after cuts. Documents without cuts are never dropped."""

    min_words: int = internal(
        20,
        ge=0,
        description="Minimum number of words after cuts; documents with fewer words are dropped.",
    )
    min_share: float = internal(
        0.2,
        ge=0,
        le=1,
        description="Minimum share of a document's characters that must remain after cuts; other documents are "
        "dropped.",
    )


class LineParameters(Remainder):
    """Cut lines and paragraphs that occur in several documents. The first occurrence is kept.

    CCNet and Dolma cut every repeated line (`max_documents: 1`); RefinedWeb and others cut lines that many pages of one
    site share. Lines are compared without regard to case and white space.
    """

    scope: Literal["bucket", "domain", "corpus"] = Field(
        "corpus",
        description="Documents among which copies of a line are counted. `domain`: documents whose URI has the same "
        "host; documents without a host are counted by bucket.",
    )
    max_documents: int = internal(
        1,
        ge=1,
        description="Maximum number of documents in which a line may occur; lines in more documents are cut.",
    )
    units: tuple[Literal["line", "paragraph"], ...] = internal(
        ("line", "paragraph"),
        min_length=1,
        description="Units to compare: lines, paragraphs (blocks between blank lines), or both.",
    )
    min_characters: int = Field(
        50,
        ge=1,
        description="Minimum number of characters, without spaces, for a line or paragraph to be cut.",
    )
    boilerplate_documents: int | None = internal(
        10,
        ge=1,
        description="Maximum number of documents of a domain with the same header or footer line; all copies of more "
        "common lines are cut. `null`: no limit.",
    )
    edge_lines: int = internal(3, ge=1, description="Number of lines in a header or footer, without blank lines.")
    exclude: tuple[str, ...] = Field(
        (), description="Buckets to skip, such as code or tables; their lines are neither cut nor counted."
    )


class Substring(Remainder):
    """Cut passages of at least `min_tokens` words that are repeated across documents or within a document.

    Lee et al. 2022 ("Deduplicating training data makes language models better") use 50 BPE tokens. Words are used here
    because they do not depend on a tokenizer; 50 English words are about 65 BPE tokens, so the rule is slightly
    stricter. In scripts without spaces a character is a word.
    """

    min_tokens: int = Field(
        50,
        ge=2,
        description="Minimum length of a repeated passage in words; 38 words are about 50 BPE tokens.",
    )
    exclude: tuple[str, ...] = Field((), description="Buckets to skip; their passages are neither cut nor compared.")


class Semantic(Frozen):
    """Semantic deduplication in chosen buckets, for reordered or lightly reworded documents that MinHash misses.

    Without `vectors`, documents are compared by hashed TF-IDF of words, fitted on the same buckets. TF-IDF ignores word
    order and synonyms. Supply vectors of an embedding model for better results. The longest document of each cluster is
    kept. If documents are equally long, the document with the smallest id is kept.
    """

    buckets: tuple[str, ...] = Field(
        min_length=1, description="Buckets to compare. Documents are compared within and across these buckets."
    )
    threshold: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Minimum cosine similarity of two documents to count as duplicates.",
    )
    dimensions: int = internal(512, ge=16, le=4096, description="Number of dimensions of the built-in TF-IDF vectors.")
    min_words: int = internal(30, ge=1, description="Minimum number of words of a document to be compared.")
    recall: float = internal(
        0.99, gt=0, lt=1, description="Expected share of the pairs at the similarity threshold that the search finds."
    )
    vectors: str | None = Field(
        None,
        description="Name of a list in `corpus.lists`: Parquet files with columns `uri` and `embedding` (lists of "
        "numbers of equal length), from your own model. Documents without a vector are not compared.",
    )

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len(set(self.buckets)) < len(self.buckets):
            raise ValueError("duplicate bucket")
        return self


class MinHash(Frozen):
    """Parameters of MinHash-LSH over shingles. Defaults are FineWeb's: word 5-grams, 14 bands of 8 rows.

    `preset` selects a published setting; `hashes` derives bands and rows from the threshold. Both are resolved when the
    recipe is loaded, and the resulting bands and rows are recorded.
    """

    preset: Literal["fineweb", "marin", "nemo", "redpajama", "text-dedup"] | None = spelling(
        None,
        description="Name of a published setting (docs/deduplication.md); fields set in the recipe override its "
        "values.",
    )
    hashes: int | None = Field(
        None,
        ge=2,
        exclude=True,
        description="Number of hashes per signature, which is divided into bands and rows automatically.",
    )
    target_recall: float | None = internal(
        None,
        gt=0,
        lt=1,
        exclude=True,
        description="Recall of pairs at the threshold at which false candidates are minimized; requires `hashes`. If "
        "null, false positives and negatives have equal weight, as in datasketch.",
    )
    shingle_words: int = Field(5, ge=1, description="Words per shingle.")
    shingle_characters: int | None = internal(
        None,
        ge=1,
        description="Number of characters per shingle; if null, shingles consist of words.",
    )
    max_characters: int | None = internal(
        500_000, ge=1, description="Number of characters to compare from the beginning of each text; `null` means all."
    )
    bands: int = Field(14, ge=1, description="Number of bands; with more bands, pairs of lower similarity are found.")
    rows: int = Field(
        8,
        ge=1,
        description="Number of hashes per band; with more hashes, only pairs of higher similarity are found.",
    )
    threshold: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Minimum Jaccard similarity of two documents to count as duplicates.",
    )
    verify: Literal["text", "signature"] = Field(
        "text",
        description="Similarity to compare: the exact Jaccard similarity (`text`), or its estimate from signatures "
        "(`signature`).",
    )
    seed: int = internal(1, description="Seed of the hash permutations.")

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.keys() & {"preset", "hashes", "target_recall"}:
            return given

        return resolve(given)

    def signature(self) -> dict[str, Any]:
        """Return the parameters that signatures depend on."""
        return {
            "shingle_words": self.shingle_words if self.shingle_characters is None else None,
            "shingle_characters": self.shingle_characters,
            "max_characters": self.max_characters,
            "permutations": self.bands * self.rows,
            "seed": self.seed,
        }

    def similarity(self) -> dict[str, Any]:
        """Return the parameters that the similarity of two texts depends on."""
        if self.verify == "signature":
            return {"verify": self.verify, **self.signature()}
        names = ("shingle_words", "shingle_characters", "max_characters")
        return {"verify": self.verify, **{name: self.signature()[name] for name in names}}

    def resolved(self) -> dict[str, Any]:
        """Return the parameters that the clusters depend on."""
        shape = {"bands": self.bands, "rows": self.rows, "threshold": self.threshold, "verify": self.verify}
        return self.signature() | shape


class Dedup(Frozen):
    """Exact and near deduplication across all buckets; one survivor per cluster."""

    minhash: MinHash = MinHash()
    keep: Literal["smallest_id", "longest", "earliest", "best_quality"] = Field(
        "longest",
        description="Document that is kept from each cluster of duplicates; if several qualify, the document with the "
        "smallest id.",
    )
    quality: str | None = Field(
        None,
        pattern=r"^[^.]+\..+$",
        description="Annotation column that `keep: best_quality` compares, such as `quality.score`.",
    )
    prefer: tuple[str, ...] = Field(
        (), max_length=255, description="Buckets whose documents are preferred as survivors, in order of preference."
    )
    semantic: Semantic | None = Field(
        None,
        description="Semantic deduplication by vectors, in chosen buckets. If `null`, the stage is disabled.",
    )
    lines: LineParameters | None = Field(
        None,
        description="Cuts of repeated lines and paragraphs. If `null`, the stage is disabled.",
    )
    substring: Substring | None = Field(
        None,
        description="Cuts of repeated passages. If `null`, the stage is disabled.",
    )

    @model_validator(mode="after")
    def _has_quality(self) -> Self:
        if (self.keep == "best_quality") != (self.quality is not None):
            raise ValueError("`keep: best_quality` and `quality: annotation.column` require each other")
        return self

    def survivors(self) -> dict[str, Any]:
        """Return the parameters that determine the survivor of a cluster."""
        return {"keep": self.keep, "quality": self.quality, "prefer": list(self.prefer)}
