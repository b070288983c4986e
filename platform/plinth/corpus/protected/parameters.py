"""Parameters of protected sets (benchmarks, probes, red-team prompts), and of the comparison of training text with
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from plinth.records import Frozen, Name, internal, spelling


class ProtectedSet(Frozen):
    """Protected set of items: one JSON object per line, or one HTML page per item, named by its path in the folder."""

    path: str = Field(description="JSONL file, HTML page, or folder of them, relative to `input/`.")
    kind: Literal["benchmark", "probe", "red_team"] = internal("benchmark", description="Its use.")
    deny: tuple[str, ...] = spelling(
        (), description="Substrings of URLs where the set is published; documents with a matching `uri` are dropped."
    )
    family: str = internal("", description="Name shared by sets with the same `deny`; by default, the name of the set.")
    fields: tuple[str, ...] = Field(
        ("text",), min_length=1, description="Fields that are joined to the text of an item, in order."
    )
    id_field: str = internal("id", description="Field with the name of an item; by default, the line number.")
    only: tuple[str, ...] = Field(
        (),
        exclude_if=lambda given: not given,
        description="Names of the items to use; if empty, all items.",
    )


class Family(Frozen):
    """URLs where a family of sets is published."""

    deny: tuple[str, ...] = Field(description="Substrings of URLs; documents with a matching `uri` are dropped.")


class Protected(Frozen):
    """Protected sets, and limits on the overlap of training text: longest common run of words, share of word weight."""

    sets: Mapping[Name, ProtectedSet] = Field(default_factory=dict, description="Protected sets by name.")
    families: Mapping[Name, Family] = internal({}, description="Families of sets that share `deny`, by name.")
    candidate_words: int = internal(
        3,
        ge=2,
        le=8,
        description="Words of a short run; documents that share two such runs with an item are compared with it.",
    )
    longest_words: int = internal(
        13, ge=4, description="Minimum words of a shared run that counts as a leak (GPT-3: 13)."
    )
    longest_share: float = internal(
        0.2,
        ge=0,
        le=1,
        description="Minimum share of the item's word weight in the passage around the run, to exclude runs of common "
        "words.",
    )
    fuzzy: float = internal(
        0.8, gt=0, le=1, description="Minimum share of an item's word weight in a passage of the document, for a leak."
    )
    suspect: float = internal(0.65, gt=0, le=1, description="Minimum share for a suspect, which is down-weighted.")
    suspect_weight: float = internal(
        0.25, ge=0, le=1, description="Share of suspects that are kept, by hash of the id."
    )
    boilerplate_documents: int | None = internal(
        10,
        ge=1,
        description="Maximum number of training documents with a run of `longest_words` words; more common runs are "
        "ignored (GPT-3: 10), and items without other runs are undecided. `null`: no limit.",
    )
    min_words: int = internal(8, ge=2, description="Minimum words of an item; shorter items are reported as undecided.")

    @model_validator(mode="after")
    def _denied(self) -> Protected:
        """Add the URLs that sets deny as families, by family name, because `deny` of a set is not serialized."""
        denied = {name: Family(deny=one.deny) for name, one in self.sets.items() if one.deny}
        # within validation, before the record is in use
        object.__setattr__(self, "families", {**self.families, **denied})
        return self


class Holdout(Frozen):
    """Held-out documents per bucket, chosen by keyed hash before training."""

    fraction: float = Field(0.01, gt=0, lt=1, description="Share of each bucket's documents.")
    max_documents: int = internal(2000, ge=1, description="Maximum number chosen per bucket; earlier choices are kept.")
    min_documents: int = Field(1, ge=1, description="Minimum number per bucket; the stage fails if there are fewer.")
    seed: int = internal(1, description="Seed of the hash key.")


class Contamination(Frozen):
    """Training documents that share word n-grams with the held-out set (GPT-3 used 13)."""

    remove: Literal["match", "document"] = Field(
        "match",
        description="`match`: cut the shared passage with 200 characters around it, and drop documents of more than 10 "
        "pieces (GPT-3); `document`: drop the whole document.",
    )
    ngram_words: int = Field(13, ge=1, description="Minimum words of a shared passage.")
    max_overlap: float = Field(
        0.0, ge=0, le=1, description="Maximum share of shared n-grams, if `remove` is `document`."
    )
    boilerplate_documents: int | None = Field(
        10,
        ge=1,
        description="An n-gram found in more training documents than this is boilerplate and ignored (GPT-3: 10); "
        "`null` ignores none.",
    )
