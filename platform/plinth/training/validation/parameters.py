"""Held-out slices while a run trains."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class Validation(Frozen):
    """How often held-out text is looked at, and how much of it. Looking changes nothing of what is learnt."""

    every_steps: int = Field(0, ge=0, description="Steps between two looks; 0: with every checkpoint.")
    bytes_per_slice: int = Field(
        2**18,
        ge=1,
        description="Held-out text of each slice, by smallest id: with as much as evaluation.max_bytes_per_slice the "
        "same documents, so that the numbers are those of the final evaluation.",
    )
    slices: tuple[str, ...] = Field((), description="Buckets to look at; empty: all that have held-out text.")
