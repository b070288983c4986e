"""Held-out slices and probes while a run trains."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen, internal


class Validation(Frozen):
    """Evaluation of held-out text and probes during training: interval and amount. It does not change the weights."""

    every_steps: int = Field(0, ge=0, description="Steps between two evaluations; 0: with every checkpoint.")
    bytes_per_slice: int = Field(
        2**18,
        ge=1,
        description="Held-out text of each slice, by smallest id: with as much as evaluation.max_bytes_per_slice the "
        "same documents, so that the numbers are those of the final evaluation.",
    )
    probes_share: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Share of the run's training that probes may cost, counted in tokens; 0: none while it trains. "
        "Items and looks are chosen to keep to it, once, and every look asks the same items.",
    )
    slices: tuple[str, ...] = internal((), description="Buckets to evaluate; empty: all that have held-out text.")
