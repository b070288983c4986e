"""Sets that training must not see: benchmarks, probes, red-team prompts, and how text is held against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from plinth.records import Frozen, Name, internal, spelling


class ProtectedSet(Frozen):
    """One set of items: one JSON object per line, or one HTML page per item, named by its path in the folder."""

    path: str = Field(description="JSONL file, HTML page, or folder of them, relative to `input/`.")
    kind: Literal["benchmark", "probe", "red_team"] = internal("benchmark", description="Its use.")
    deny: tuple[str, ...] = spelling(
        (), description="Where it is published: a document whose `uri` holds one of these pieces is dropped."
    )
    family: str = internal("", description="Sets of one family share what is denied; by default the set's own name.")
    fields: tuple[str, ...] = Field(("text",), min_length=1, description="Fields whose texts make an item, in order.")
    id_field: str = internal("id", description="Field that names an item; lines without it are named by their number.")
    only: tuple[str, ...] = Field(
        (),
        exclude_if=lambda given: not given,
        description="Names of the items to take, where not every line is one.",
    )


class Family(Frozen):
    """Places where a family of sets is published."""

    deny: tuple[str, ...] = Field(description="Pieces of addresses; a document whose `uri` holds one is dropped.")


class Protected(Frozen):
    """Overlap of training text with protected sets: longest match in words, and fuzzy by the weight of words."""

    sets: Mapping[Name, ProtectedSet] = Field(default_factory=dict, description="Sets by name.")
    families: Mapping[Name, Family] = internal({}, description="What sets deny, by their names.")
    candidate_words: int = internal(3, ge=2, le=8, description="Two shared runs of so many words make a candidate.")
    longest_words: int = internal(13, ge=4, description="A shared run of so many words is a leak (GPT-3: 13) …")
    longest_share: float = internal(
        0.2,
        ge=0,
        le=1,
        description="… where the stretch around it holds this share of the item's word weight: a run "
        "of stock words is none.",
    )
    fuzzy: float = internal(
        0.8, gt=0, le=1, description="A leak: a stretch of the document holds this share of an item's word weight."
    )
    suspect: float = internal(0.65, gt=0, le=1, description="From here a document is a suspect, and down-weighted.")
    suspect_weight: float = internal(
        0.25, ge=0, le=1, description="Share of suspects that are kept, by hash of the id."
    )
    boilerplate_documents: int | None = internal(
        10,
        ge=1,
        description="Runs of `longest_words` words that more training documents than this have are no evidence (GPT-3: "
        "10), and an item of nothing else is undecided; `null` counts none.",
    )
    min_words: int = internal(8, ge=2, description="Shorter items are not looked for, and reported as such.")

    @model_validator(mode="after")
    def _denied(self) -> Protected:
        """Add the addresses that sets deny, under their names: `deny` itself is never dumped."""
        denied = {name: Family(deny=one.deny) for name, one in self.sets.items() if one.deny}
        # within validation, before the record is in use
        object.__setattr__(self, "families", {**self.families, **denied})
        return self


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
