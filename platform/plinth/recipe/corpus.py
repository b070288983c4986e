"""The corpus part of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from plinth.records import Frozen


class Terms(Frozen):
    """What the owner of a source lets us do with it. Required: unknown is refused, not defaulted."""

    train: bool = Field(description="May a model be trained on it?")
    redistribute: bool = Field(description="May the text itself be passed on?")
    commercial: bool = Field(description="May the result be used commercially?")


class Source(Frozen):
    """Files of one format, with the facts that every document of them carries."""

    kind: Literal["warc", "html", "jsonl", "text", "tree"] = Field(description="Reader.")
    path: str = Field(description="File, folder, glob or `s3://` location; relative to the workspace's `input/`.")
    licence: str = Field(description="SPDX expression, or `per-document` where each record carries its own.")
    terms: Terms = Field(description="Owner's terms.")
    domain: str = Field(description="Where it comes from: a host name or a short name.")
    snapshot: str = Field(description="Crawl or capture, such as `2026-46`.")
    text_field: str = Field("text", description="JSONL: field that holds the text.")
    suffixes: tuple[str, ...] = Field((), description="Tree and text: file name endings to read; empty means all.")


class Bucket(Frozen):
    """Sources that are filtered, measured and weighted together."""

    description: str = Field(description="One sentence for the catalogue.")
    owner: str = Field(description="E-mail address or team that answers for it.")
    sources: tuple[Source, ...] = Field(min_length=1, description="What is read, in this order.")
    policy: str = Field("default", description="Name of the policy that judges its documents.")


class Extraction(Frozen):
    """Main content out of HTML."""

    engine: Literal["resiliparse", "trafilatura"] = Field(
        "resiliparse",
        description="`resiliparse` is fast; `trafilatura` is ten times slower and cuts boilerplate closer.",
    )
    seconds_per_page: float = Field(5.0, gt=0, description="A page that takes longer becomes a reject.")
    max_bytes: int = Field(
        16 * 2**20, gt=0, description="A page or record larger than this becomes a reject (`too-large`)."
    )


class Normalisation(Frozen):
    """Unicode NFC, mojibake, control characters, whitespace, line ends."""

    repair_mojibake: bool = Field(True, description="Mend text that was decoded with the wrong encoding (ftfy).")
    max_blank_lines: int = Field(2, ge=0, description="Longer runs of blank lines are shortened.")


class Documents(Frozen):
    """How sources become document parts."""

    part_bytes: int = Field(128 * 2**20, gt=0, description="Aim for this much source per part.")
    max_reject_rate: float = Field(0.05, ge=0, le=1, description="More rejects than this fail the stage.")
    extraction: Extraction = Extraction()
    normalisation: Normalisation = Normalisation()


class Rule(Frozen):
    """Drop a document when an expression over annotation columns is true.

    Expressions compare columns (`gopher_quality.word_count < 50`) with `and`, `or`, `not`, `in`.
    """

    reason: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="Kept with the document.")
    drop: str = Field(description="Expression over annotation columns.")


class EditRule(Frozen):
    """Turn spans found by an annotator into edits of the text."""

    reason: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="Name of the edit.")
    spans: str = Field(description="Span column, such as `pii.spans`.")


class Policy(Frozen):
    """Columns to verdicts. The first rule that drops a document is its reason; all that fire are counted."""

    rules: tuple[Rule, ...] = Field((), description="What drops a document, in order.")
    edits: tuple[EditRule, ...] = Field((), description="What is replaced in the text of a kept document.")


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


class Holdout(Frozen):
    """Held-out documents per bucket, chosen by keyed hash before training."""

    fraction: float = Field(0.01, gt=0, lt=1, description="Share of each bucket's documents.")
    max_documents: int = Field(2000, ge=1, description="At most this many per bucket.")
    min_documents: int = Field(1, ge=1, description="Fewer than this in any bucket fails the stage.")
    seed: int = Field(1, description="Key of the hash that chooses.")


class Contamination(Frozen):
    """Training documents that share word n-grams with the held-out set (GPT-3 used 13)."""

    ngram_words: int = Field(13, ge=1, description="Length of a shared stretch that counts.")
    max_overlap: float = Field(0.0, ge=0, le=1, description="Share of a document's n-grams that may be shared.")
    boilerplate_documents: int | None = Field(
        10,
        ge=1,
        description="An n-gram found in more training documents than this is boilerplate and ignored (GPT-3: 10); "
        "`null` ignores none.",
    )


class Corpus(Frozen):
    """Everything up to curated text."""

    buckets: Mapping[str, Bucket] = Field(min_length=1, description="Buckets by name.")
    documents: Documents = Documents()
    annotate: Mapping[str, Mapping[str, Any]] = Field(
        description="Annotators by name, each with its parameters (`{}` for the defaults)."
    )
    policies: Mapping[str, Policy] = Field(description="Policies by the name that buckets give.")
    dedup: Dedup = Dedup()
    holdout: Holdout = Holdout()
    contamination: Contamination = Contamination()
    permitted_licences: tuple[str, ...] = Field(
        description="SPDX identifiers that may reach a shard; everything else is stopped by the licence gate."
    )
