"""Held-out slices while a run trains."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen, internal


class Validation(Frozen):
    """Evaluation of held-out text during training: interval and amount. It does not change the weights."""

    every_steps: int = Field(0, ge=0, description="Steps between two evaluations; 0: with every checkpoint.")
    bytes_per_slice: int = Field(
        2**18,
        ge=1,
        description="Held-out text of each slice, by smallest id: with as much as evaluation.max_bytes_per_slice the "
        "same documents, so that the numbers are those of the final evaluation.",
    )
    slices: tuple[str, ...] = internal((), description="Buckets to evaluate; empty: all that have held-out text.")
