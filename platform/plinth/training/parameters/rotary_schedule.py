"""Rotary positions that change while a run trains: longer contexts in a later stretch of the same run.

A change is of the model's arithmetic, not of its shape: no parameter and no optimizer state moves. What a step uses
follows from its number, so that a resume, a rollback and a replay use it too; every checkpoint's `config.json` says
what its last step used. (Xiong et al. 2023, arXiv:2309.16039, raise theta; Peng et al. 2023, arXiv:2309.00071, YaRN.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pydantic import Field, model_validator

from plinth.model.parameters import Model, RopeScaling
from plinth.records import Frozen
from plinth.tokens.order.steps import Change, RunChange


class RotaryChange(Frozen):
    """Rotary positions from a step on; what is left out stays as it is."""

    from_step: int = Field(ge=1, description="First step of the change, counted from 1.")
    rope_theta: float | None = Field(None, gt=0, description="Base of the rotary frequencies from there on.")
    rope_scaling: RopeScaling | None = Field(None, description="For longer contexts from there on.")


class TrainingChange(RunChange):
    """A change of batch, rows or rotary positions from a step on. With a `reason` it amends a run that has begun: it
    holds for steps not taken yet, and replaces what is scheduled for later."""

    rope_theta: float | None = Field(
        None, gt=0, description="Base of the rotary frequencies from there on; left out, it stays. Never amended."
    )
    rope_scaling: RopeScaling | None = Field(
        None, description="Scaling of the rotary frequencies from there on; left out, it stays. Never amended."
    )

    @model_validator(mode="after")
    def _changes_something(self) -> TrainingChange:
        rotary = self.rope_theta is not None or self.rope_scaling is not None
        if self.global_batch_sequences is None and self.sequence_tokens is None and not rotary:
            raise ValueError("give `global_batch_sequences`, `sequence_tokens`, `rope_theta` or `rope_scaling`")
        if rotary and self.reason:
            raise ValueError("rotary positions are part of a run's identity: they are planned, never amended")
        return self

    @property
    def schedules(self) -> tuple[str, ...]:
        rotary = self.rope_theta is not None or self.rope_scaling is not None
        return (*super().schedules, *(("rotary_schedule",) if rotary else ()))

    def entry(self, schedule: str) -> Change | RotaryChange:  # type: ignore[override]
        if schedule != "rotary_schedule":
            return super().entry(schedule)
        return RotaryChange(from_step=self.from_step, rope_theta=self.rope_theta, rope_scaling=self.rope_scaling)


def require_in_order(changes: Sequence[RotaryChange]) -> None:
    """Refuse changes that are listed before an earlier one.

    Raises:
        ValueError: names the two.
    """
    for before, after in pairwise(changes):
        if after.from_step <= before.from_step:
            raise ValueError(f"rotary positions from step {after.from_step} are listed after step {before.from_step}")


def model_at(model: Model, changes: Sequence[RotaryChange], step: int) -> Model:
    """The model as `step` trains it (steps count from 1; 0 is before the first)."""
    for change in changes:
        if change.from_step <= step:
            set_here = {name: getattr(change, name) for name in ("rope_theta", "rope_scaling")}
            model = model.model_copy(update={name: value for name, value in set_here.items() if value is not None})
    return model
