"""Parameters of protected sets (benchmarks, probes, red-team prompts), and of the comparison of training text with
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from plinth.records import Frozen, Name, internal, spelling


class ProtectedSet(Frozen):
    """Protected set of items. The items are JSON objects, one per line, or HTML pages that are named by their path in
    the folder."""

    path: str = Field(description="JSONL file, HTML page, or folder with such files, relative to `input/`.")
    kind: Literal["benchmark", "probe", "red_team"] = internal("benchmark", description="Its use.")
    deny: tuple[str, ...] = spelling(
        (),
        description="Parts of URLs where the set is published; documents whose `uri` contains one of them are "
        "dropped.",
    )
    family: str = internal("", description="Name shared by sets with the same `deny`; by default, the name of the set.")
    fields: tuple[str, ...] = Field(
        ("text",), min_length=1, description="Fields that are joined to the text of an item, in order."
    )
    id_field: str = internal(
        "id",
        description="Field with the name of an item; by default, items are named by line number.",
    )
    only: tuple[str, ...] = Field(
        (),
        exclude_if=lambda given: not given,
        description="Names of the items to use; if empty, all items.",
    )


class Family(Frozen):
    """URLs where a family of protected sets is published."""

    deny: tuple[str, ...] = Field(description="Parts of URLs; documents whose `uri` contains one of them are dropped.")


class Protected(Frozen):
    """Protected sets, and limits on the overlap of training text with their items: the longest common run of words, and
    the share of an item's word weight."""

    sets: Mapping[Name, ProtectedSet] = Field(default_factory=dict, description="Protected sets by name.")
    families: Mapping[Name, Family] = internal({}, description="Families of sets that share `deny`, by name.")
    candidate_words: int = internal(
        3,
        ge=2,
        le=8,
        description="Number of words in a short run; a document that shares two short runs with an item is compared "
        "with it.",
    )
    longest_words: int = internal(
        13, ge=4, description="Minimum number of words in a shared run that counts as a leak (GPT-3: 13)."
    )
    longest_share: float = internal(
        0.2,
        ge=0,
        le=1,
        description="Minimum share of the item's word weight in the passage around the run, to exclude runs of common "
        "words.",
    )
    fuzzy: float = internal(
        0.8,
        gt=0,
        le=1,
        description="Minimum share of an item's word weight in one passage of a document that counts as a leak.",
    )
    suspect: float = internal(
        0.65,
        gt=0,
        le=1,
        description="Minimum share of an item's word weight in a passage for a suspected document; only some "
        "suspects are kept.",
    )
    suspect_weight: float = internal(
        0.25, ge=0, le=1, description="Share of suspected documents that are kept, chosen by a hash of the document id."
    )
    boilerplate_documents: int | None = internal(
        10,
        ge=1,
        description="Maximum number of training documents with a run of `longest_words` words; more common runs are "
        "ignored (GPT-3: 10), and items without other runs are undecided. `null`: no limit.",
    )
    min_words: int = internal(
        8,
        ge=2,
        description="Minimum number of words in an item; shorter items are reported as undecided.",
    )

    @model_validator(mode="after")
    def _denied(self) -> Protected:
        """Convert the URLs in `deny` of the sets to families, by family name, because `deny` of a set is not
        serialized."""
        denied = {name: Family(deny=one.deny) for name, one in self.sets.items() if one.deny}
        # within validation, before the record is in use
        object.__setattr__(self, "families", {**self.families, **denied})
        return self


class Holdout(Frozen):
    """Held-out documents per bucket, chosen by keyed hash before training."""

    fraction: float = Field(0.01, gt=0, lt=1, description="Share of each bucket's documents to hold out.")
    max_documents: int = internal(
        2000,
        ge=1,
        description="Maximum number of documents chosen per bucket; documents held out earlier stay held out.",
    )
    min_documents: int = Field(
        1,
        ge=1,
        description="Minimum number of documents to hold out per bucket; the stage fails if a bucket has fewer.",
    )
    seed: int = internal(1, description="Seed for the key of the hash that chooses documents.")


class Contamination(Frozen):
    """Removal of training documents, or passages in them, that share word n-grams with the held-out set (GPT-3:
    13-grams)."""

    remove: Literal["match", "document"] = Field(
        "match",
        description="`match`: cut the shared passage with 200 characters around it, and drop documents of more than 10 "
        "pieces (GPT-3); `document`: drop the whole document.",
    )
    ngram_words: int = Field(13, ge=1, description="Minimum number of words in a shared passage.")
    max_overlap: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Maximum share of a document's n-grams that may be shared with held-out text, if `remove` is "
        "`document`.",
    )
    boilerplate_documents: int | None = Field(
        10,
        ge=1,
        description="An n-gram found in more training documents than this is boilerplate and ignored (GPT-3: 10); "
        "`null` ignores none.",
    )
