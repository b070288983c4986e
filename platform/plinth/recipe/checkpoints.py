"""Checkpoints."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class Checkpoints(Frozen):
    """When to commit the full state, and what to keep."""

    every_steps: int = Field(100, ge=1, description="Steps between two checkpoints.")
    keep_last: int = Field(2, ge=1, description="Older ones are removed.")
    audit_steps: int = Field(
        8, ge=1, description="Steps before the end at which a checkpoint is kept, to prove that a resume is exact."
    )
