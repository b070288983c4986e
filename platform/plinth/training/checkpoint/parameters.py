"""Checkpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.records import Frozen, internal


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
