"""Checkpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from plinth.records import Frozen, internal


class Average(Frozen):
    """The checkpoint that is evaluated and released is a mean of committed ones, instead of the last."""

    last: int = Field(1, ge=1, description="Of the newest so many.")
    steps: tuple[int, ...] = Field((), description="Of these; left out: of the newest `last`.")
    ema: bool = Field(
        False, description="Of the means of weights that they keep (`training.optimizer.ema_decay`) instead."
    )

    @model_validator(mode="after")
    def _agree(self) -> Average:
        if self.steps and (self.last != 1 or len(set(self.steps)) != len(self.steps)):
            raise ValueError("give `last`, or `steps`, each once")
        return self


class Checkpoints(Frozen):
    """Interval of checkpoints, and those that are kept."""

    every_steps: int = Field(100, ge=1, description="Steps between two checkpoints.")
    mode: Literal["async", "sync"] = internal(
        "async", description="async: training goes on while another process writes; sync: it waits for the disk."
    )
    keep_last: int = Field(2, ge=1, description="Older ones are removed.")
    keep_every: int = Field(0, ge=0, description="Also kept: steps divisible by this; 0 keeps none.")
    keep_best: int = Field(0, ge=0, description="Also kept: so many of the best: by held-out slices, or smoothed loss.")
    audit_steps: int = internal(
        8, ge=1, description="Steps before the end at which a checkpoint is kept, to prove that a resume is exact."
    )
    upload: str | None = Field(
        None,
        pattern=r"^s3://[^/]+(/.*)?$",
        description="Copy of every committed checkpoint, from which another machine can resume.",
    )
    average: Average | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="What is evaluated and released is a mean of checkpoints; left out: the last checkpoint.",
    )

    @model_validator(mode="after")
    def _kept(self) -> Checkpoints:
        if self.average and self.average.last > self.keep_last:
            raise ValueError(f"average.last {self.average.last} needs more than keep_last {self.keep_last} leaves")
        return self
