"""What the run sees, in which shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from plinth.records import Frozen


class Phase(Frozen):
    """A stretch of training with its own bucket weights."""

    name: str = Field(description="Such as `stable` or `annealing`.")
    fraction: float = Field(gt=0, le=1, description="Share of all training tokens.")
    weights: Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        min_length=1, description="Relative weights of buckets."
    )

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: Mapping[str, float]) -> Mapping[str, float]:
        if sum(weights.values()) <= 0:
            raise ValueError("at least one weight must be above 0")
        return weights


class Mixture(Frozen):
    """What the run sees, in phases; counts per block are exact, order is a keyed permutation."""

    sequence_tokens: int = Field(512, ge=8, description="Tokens of one training sequence.")
    packing: Literal["concatenate", "best-fit"] = Field(
        "concatenate",
        description="How documents fill sequences: `concatenate` cuts the stream every `sequence_tokens`, without "
        "padding; `best-fit` cuts only documents that are longer, and pads what is left (arXiv:2404.10830).",
    )
    total_tokens: int = Field(gt=0, description="Tokens of the whole run.")
    phases: tuple[Phase, ...] = Field(
        min_length=1, description="In the order of training; their fractions add up to 1."
    )
    block_sequences: int = Field(256, ge=1, description="Bucket counts are exact in each block of sequences.")
    max_epochs: float = Field(4.0, gt=0, description="No bucket may be repeated more often than this.")
    seed: int = Field(1, description="Of the order of sequences.")
