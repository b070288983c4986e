"""The rest of the deduplication cascade: look-alikes by meaning (drops), repeated lines and passages (edits).

Each is off unless the recipe names it under `corpus.dedup`; `{}` switches it on with its defaults.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from plinth.records import Frozen, internal


class Remainder(Frozen):
    """Least remainder of a document after cuts. Documents without cuts are never dropped."""

    min_words: int = internal(20, ge=0, description="Fewer words left after cuts: the document is dropped.")
    min_share: float = internal(
        0.2, ge=0, le=1, description="A smaller share of its characters left after cuts: the document is dropped."
    )


class LineParameters(Remainder):
    """Lines and paragraphs that other documents have too become cuts; the first occurrence stays.

    CCNet and Dolma cut whatever was seen before (`max_documents: 1`); RefinedWeb and others cut lines that
    many pages of one site share. Equal means equal but for case and white space.
    """

    scope: Literal["bucket", "domain", "corpus"] = Field(
        "corpus", description="Documents that are counted together. `domain` is the host of the URI, else the bucket."
    )
    max_documents: int = internal(1, ge=1, description="A line may occur in so many documents and stay.")
    units: tuple[Literal["line", "paragraph"], ...] = internal(
        ("line", "paragraph"), min_length=1, description="Lines, blocks between blank lines, or both."
    )
    min_characters: int = Field(50, ge=1, description="Shorter lines and paragraphs stay (white space not counted).")
    boilerplate_documents: int | None = internal(
        10,
        ge=1,
        description="A line at the head or foot of more documents of one domain is boilerplate: every copy is cut. "
        "`null`: no such rule.",
    )
    edge_lines: int = internal(3, ge=1, description="How many lines, blank ones not counted, are a head or a foot.")
    exclude: tuple[str, ...] = Field((), description="Buckets that are neither cut nor counted (code, tables).")


class Substring(Remainder):
    """Passages of at least so many words that occurred before, in any document or the same one, are cut.

    Lee et al. 2022 ("Deduplicating training data makes language models better") use 50 BPE tokens. Words are
    counted here: they need no tokenizer, do not change with one, and 50 words of English are about 65 BPE
    tokens, so the rule is a little more careful. In scripts without spaces a character is a word.
    """

    min_tokens: int = Field(50, ge=2, description="Shortest passage, in words; 38 words are about 50 BPE tokens.")
    exclude: tuple[str, ...] = Field((), description="Buckets that are neither cut nor compared.")


class Semantic(Frozen):
    """Look-alikes that MinHash does not see: reordered, lightly reworded. Only in buckets chosen for it.

    Without `vectors`, documents are compared by hashed TF-IDF of words, learned from the same buckets: it sees
    the same vocabulary in any order, and no synonyms. Bring vectors of a real model for more than that. Of each
    cluster the longest document stays; ties go to the smallest id.
    """

    buckets: tuple[str, ...] = Field(min_length=1, description="Buckets to compare, with each other too.")
    threshold: float = Field(0.95, gt=0, le=1, description="Cosine similarity from which documents are the same.")
    dimensions: int = internal(512, ge=16, le=4096, description="Length of our vectors.")
    min_words: int = internal(30, ge=1, description="Shorter documents are not compared.")
    recall: float = internal(
        0.99, gt=0, lt=1, description="Share of pairs at the threshold that the search shall find, by its theory."
    )
    vectors: str | None = Field(
        None,
        description="Name of an entry of `corpus.lists`: Parquet files with columns `uri` and `embedding` (lists of "
        "numbers, one length), from a model of yours. Documents without a vector are not compared.",
    )

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len(set(self.buckets)) < len(self.buckets):
            raise ValueError("a bucket is named twice")
        return self
