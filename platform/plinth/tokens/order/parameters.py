"""Batch size and sequence length over a run, and amendments of a run that has begun."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from pydantic import Field, model_validator

from plinth.records import Frozen, internal


class RunChange(Frozen):
    """Another batch, or rows of another length, from a step on. With a `reason` it amends a run that has begun: it
    holds for steps not taken yet, and replaces what is scheduled for later."""

    from_step: int = Field(ge=1, description="First step of the change, counted from 1.")
    global_batch_sequences: int | None = Field(
        None, ge=1, description="Sequences per optimizer step from there on; left out, they stay as they are."
    )
    sequence_tokens: int | None = Field(
        None,
        ge=8,
        description="Tokens of a row from there on, a whole part of mixture.sequence_tokens, which is cut into such "
        "rows; left out, they stay.",
    )
    reason: str = Field("", description="Of an amendment; recorded on the run's timeline.")

    @model_validator(mode="after")
    def _changes_something(self) -> RunChange:
        if self.global_batch_sequences is None and self.sequence_tokens is None:
            raise ValueError("give `global_batch_sequences`, `sequence_tokens` or both")
        return self

    @property
    def schedules(self) -> tuple[str, ...]:
        """Those of the schedules below that have this change."""
        if self.reason:
            return ("amendments",)
        given = {"batch_schedule": self.global_batch_sequences, "length_schedule": self.sequence_tokens}
        return tuple(name for name, value in given.items() if value is not None)

    def entry(self, schedule: str) -> Change:
        """This change as an entry of one of them."""
        kinds: dict[str, type[Change]] = {
            "batch_schedule": BatchChange,
            "length_schedule": LengthChange,
            "amendments": Amendment,
        }
        kind = kinds[schedule]
        return kind(**{name: value for name, value in self if name in kind.model_fields and value is not None})


class Change(Frozen):
    """A change at the first step that begins at or after this point."""

    from_tokens: int | None = internal(None, ge=0, description="Tokens trained before the change; or `from_step`.")
    from_step: int | None = Field(None, ge=1, description="First step of the change, counted from 1; or `from_tokens`.")

    @model_validator(mode="after")
    def _one_of_two(self) -> Change:
        if (self.from_tokens is None) == (self.from_step is None):
            raise ValueError("give `from_tokens` or `from_step`, one of the two")
        return self


class BatchChange(Change):
    """The global batch from a point on."""

    global_batch_sequences: int = Field(ge=1, description="Sequences per optimizer step from there on.")


class LengthChange(Change):
    """The length of training rows from a point on."""

    sequence_tokens: int = Field(
        ge=8, description="Tokens of a row; a whole part of mixture.sequence_tokens, which is cut into rows of this."
    )


class Amendment(Change):
    """A change of a running run; it replaces later scheduled changes of the batch or length that it sets."""

    global_batch_sequences: int | None = Field(
        None, ge=1, description="Sequences per optimizer step from there on; left out, they stay as they are."
    )
    sequence_tokens: int | None = Field(
        None, ge=8, description="Tokens of a row from there on, as in `length_schedule`; left out, they stay."
    )
    reason: str = Field(min_length=1, description="Reason, recorded on the run's timeline.")

    @model_validator(mode="after")
    def _changes_something(self) -> Amendment:
        if self.global_batch_sequences is None and self.sequence_tokens is None:
            raise ValueError("give `global_batch_sequences`, `sequence_tokens` or both")
        return self


class Schedules(Protocol):
    """The keys of `training` that decide batches and lengths."""

    @property
    def global_batch_sequences(self) -> int: ...
    @property
    def batch_schedule(self) -> tuple[BatchChange, ...]: ...
    @property
    def length_schedule(self) -> tuple[LengthChange, ...]: ...
    @property
    def amendments(self) -> tuple[Amendment, ...]: ...


def problems(
    training: Schedules, data_ranks: int, micro: int, sequence_tokens: int
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Problems that the recipe alone shows: key below `training`, and message.

    Args:
        micro: `micro_batch_sequences`.
    """
    batches: list[tuple[tuple[str | int, ...], int]] = [(("global_batch_sequences",), training.global_batch_sequences)]
    for name in ("batch_schedule", "amendments"):
        for index, change in enumerate(getattr(training, name)):
            if change.global_batch_sequences is not None:
                batches.append(((name, index, "global_batch_sequences"), change.global_batch_sequences))
    for key, batch in batches:
        if batch % (data_ranks * micro):
            yield key, f"{batch} is not a multiple of data ranks x micro_batch_sequences = {data_ranks} x {micro}"
    for key, length in lengths(training):
        if sequence_tokens % length:
            yield key, f"{length} does not divide mixture.sequence_tokens = {sequence_tokens}"
    for name in ("batch_schedule", "length_schedule", "amendments"):
        for index, message in _out_of_order(getattr(training, name)):
            yield (name, index), message


def lengths(training: Schedules) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """Every length of rows in the recipe: its key below `training`, and the length."""
    for name in ("length_schedule", "amendments"):
        for index, change in enumerate(getattr(training, name)):
            if change.sequence_tokens is not None:
                yield (name, index, "sequence_tokens"), change.sequence_tokens


def _out_of_order(changes: Sequence[Change]) -> Iterator[tuple[int, str]]:
    """Changes listed before an earlier one, as far as the recipe alone shows: index and message."""
    for unit in ("from_tokens", "from_step"):
        listed = [(index, getattr(change, unit)) for index, change in enumerate(changes)]
        points = [(index, point) for index, point in listed if point is not None]
        for (_, before), (index, point) in pairwise(points):
            if point <= before:
                yield index, f"{unit} {point:,} is not after {before:,} of the change listed before it"
