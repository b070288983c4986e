"""Held-out text that evaluation scores."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class Evaluation(Frozen):
    """Bits per byte on the held-out slices and on protected items, beside two baselines on the same bytes."""

    max_bytes_per_slice: int = Field(
        2**20,
        gt=0,
        description="At most this much held-out text per slice, and of the items of a protected set of each status.",
    )
