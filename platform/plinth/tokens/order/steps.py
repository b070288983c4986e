"""Positions in the order that each training step takes; schedules of batch size and row length; amendments of a run.

    stretch   range of steps with one global batch and one row length; a run has only a few
    step      -> stretch by bisection -> first position and count          O(log stretches)
    position  -> stretch by bisection -> step                              O(log stretches)

Steps count from 0 here, as in `order`, so step n of training is step n - 1 here. A step always takes whole sequences of
S tokens. A shorter row length l cuts each sequence into S / l rows, so the tokens and their order stay the same.
Sequences at the end that do not fill a step are not used.

The module `order` computes the sequence at a position, and `training.schedule` computes the learning rate.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import Field, model_validator

from plinth.errors import MissingError, RecipeError
from plinth.records import Frozen, internal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

class RunChange(Frozen):
    """Change of the batch size or row length that applies from a step on.

    A change with a `reason` is an amendment of a started run: it applies to steps that are not taken yet, and replaces
    later scheduled changes.
    """

    from_step: int = Field(ge=1, description="First step to which the change applies, counted from 1.")
    global_batch_sequences: int | None = Field(
        None, ge=1, description="Sequences per optimizer step from this step on; if null, unchanged."
    )
    sequence_tokens: int | None = Field(
        None,
        ge=8,
        description="Tokens per row from this step on. Must divide mixture.sequence_tokens, because sequences are cut "
        "into rows. If null, unchanged.",
    )
    reason: str = Field("", description="Reason for amending a started run; recorded on the run's timeline.")

    @model_validator(mode="after")
    def _changes_something(self) -> RunChange:
        if self.global_batch_sequences is None and self.sequence_tokens is None:
            raise ValueError("give `global_batch_sequences`, `sequence_tokens` or both")
        return self

    @property
    def schedules(self) -> tuple[str, ...]:
        """Names of the schedules to which this change belongs."""
        if self.reason:
            return ("amendments",)
        given = {"batch_schedule": self.global_batch_sequences, "length_schedule": self.sequence_tokens}
        return tuple(name for name, value in given.items() if value is not None)

    def entry(self, schedule: str) -> Change:
        """Return this change as an entry of the named schedule."""
        kinds: dict[str, type[Change]] = {
            "batch_schedule": BatchChange,
            "length_schedule": LengthChange,
            "amendments": Amendment,
        }
        kind = kinds[schedule]
        return kind(**{name: value for name, value in self if name in kind.model_fields and value is not None})


class Change(Frozen):
    """Change that takes effect at the first step at or after a point of the run."""

    from_tokens: int | None = internal(
        None, ge=0, description="Number of tokens trained before the change, unless `from_step` is set."
    )
    from_step: int | None = Field(
        None, ge=1, description="First step of the change, counted from 1, unless `from_tokens` is set."
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Change:
        if (self.from_tokens is None) == (self.from_step is None):
            raise ValueError("set either `from_tokens` or `from_step`")
        return self


class BatchChange(Change):
    """Change of the global batch size from a point of the run on."""

    global_batch_sequences: int = Field(ge=1, description="Sequences per optimizer step from this step on.")


class LengthChange(Change):
    """Change of the length of training rows from a point of the run on."""

    sequence_tokens: int = Field(
        ge=8, description="Tokens per row. Must divide mixture.sequence_tokens, because sequences are cut into rows."
    )


class Amendment(Change):
    """Change of a started run. It replaces later scheduled changes of the value that it sets (batch size or row
    length)."""

    global_batch_sequences: int | None = Field(
        None, ge=1, description="Sequences per optimizer step from this step on; if null, unchanged."
    )
    sequence_tokens: int | None = Field(
        None, ge=8, description="Tokens per row from this step on, as in `length_schedule`; if null, unchanged."
    )
    reason: str = Field(min_length=1, description="Reason for the amendment; recorded on the run's timeline.")

    @model_validator(mode="after")
    def _changes_something(self) -> Amendment:
        if self.global_batch_sequences is None and self.sequence_tokens is None:
            raise ValueError("give `global_batch_sequences`, `sequence_tokens` or both")
        return self


class Schedules(Protocol):
    """Recipe keys of `training` that set batch sizes and row lengths."""

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
    """Yield the errors in schedules that the recipe alone shows, each as a key within `training` and a message.

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
    """Yield every row length in the recipe, with its key within `training`."""
    for name in ("length_schedule", "amendments"):
        for index, change in enumerate(getattr(training, name)):
            if change.sequence_tokens is not None:
                yield (name, index, "sequence_tokens"), change.sequence_tokens


def _out_of_order(changes: Sequence[Change]) -> Iterator[tuple[int, str]]:
    """Yield the index and a message for each change that is listed too late, if the recipe alone shows this."""
    for unit in ("from_tokens", "from_step"):
        listed = [(index, getattr(change, unit)) for index, change in enumerate(changes)]
        points = [(index, point) for index, point in listed if point is not None]
        for (_, before), (index, point) in pairwise(points):
            if point <= before:
                yield index, f"{unit} {point:,} is not after {before:,}, where the change listed before it starts"

class MisplacedChange(RecipeError):
    """Change of a schedule that never takes effect, or takes effect no later than the change listed before it.

    `key` and `why` locate the change in the recipe. Both are empty if the error comes from another process.
    """

    key: tuple[str, int] = ("", 0)
    why: str = ""


@dataclass(frozen=True)
class StepRange:
    """Range of steps that begins at `first_step` and `first_position`, with `batch` sequences per step in rows of
    `length`."""

    first_step: int
    first_position: int
    batch: int
    length: int


@dataclass(frozen=True)
class Steps:
    """Steps of a run.

    Args:
        sequences: number of sequences in the order.
        sequence_tokens: tokens per sequence, S.
        stretches: ranges of steps, in order; the first begins at step 0 and position 0.
    """

    #: True if the positions of a step come after those of the step before.
    ascending: ClassVar[bool] = True

    sequences: int
    sequence_tokens: int
    stretches: tuple[StepRange, ...]

    @property
    def total(self) -> int:
        """Number of whole steps in the run."""
        last = self.stretches[-1]
        return last.first_step + max(0, self.sequences - last.first_position) // last.batch

    @property
    def used(self) -> int:
        """Number of positions that the steps take; later positions are not used."""
        last = self.stretches[-1]
        return last.first_position + (self.total - last.first_step) * last.batch

    @property
    def batches(self) -> tuple[int, ...]:
        """Distinct global batch sizes of the run, in ascending order."""
        return tuple(sorted({stretch.batch for stretch in self.stretches}))

    def take(self, step: int) -> tuple[int, int]:
        """Return the first position of a step, and the number of positions that it takes.

        Raises:
            MissingError: the run has no such step.
        """
        stretch = self._at(step)
        return stretch.first_position + (step - stretch.first_step) * stretch.batch, stretch.batch

    def positions(self, step: int) -> NDArray[np.int64]:
        """Return the positions that a step takes, in ascending order.

        Raises:
            MissingError: the run has no such step.
        """
        import numpy as np

        first, count = self.take(step)
        return np.arange(first, first + count, dtype=np.int64)

    def steps_of(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield every step that takes a position, with the row of the position in the step.

        Raises:
            MissingError: the order has no such position.
        """
        found = self.step_of(position)
        if found is not None:
            yield found

    def batch(self, step: int) -> int:
        """Return the number of sequences in a step.

        Raises:
            MissingError: the run has no such step.
        """
        return self._at(step).batch

    def length(self, step: int) -> int:
        """Return the number of tokens per row in a step.

        Raises:
            MissingError: the run has no such step.
        """
        return self._at(step).length

    def tokens(self, step: int) -> int:
        """Return the number of tokens in a step, over all ranks.

        Raises:
            MissingError: the run has no such step.
        """
        return self._at(step).batch * self.sequence_tokens

    def tokens_before(self, step: int) -> int:
        """Return the number of tokens trained before a step. If `step` is the total number of steps, count the whole
        run.

        Raises:
            MissingError: the run has no such step.
        """
        return (self.used if step == self.total else self.take(step)[0]) * self.sequence_tokens

    def step_of(self, position: int) -> tuple[int, int] | None:
        """Return the step that takes a position, with its row in the step, or None if no step takes it.

        The last positions of an order may be unused, because they do not fill a step.

        Raises:
            MissingError: the order has no such position.
        """
        if not 0 <= position < self.sequences:
            raise MissingError(f"position {position}", expected=f"a position from 0 to {self.sequences - 1}")
        if position >= self.used:
            return None
        firsts = [stretch.first_position for stretch in self.stretches]
        stretch = self.stretches[bisect_right(firsts, position) - 1]
        step, row = divmod(position - stretch.first_position, stretch.batch)
        return stretch.first_step + step, row

    def through(self, step: int) -> list[list[int]]:
        """Return the step ranges that begin before `step`, each as first step, batch and length."""
        return [[each.first_step, each.batch, each.length] for each in self.stretches if each.first_step < step]

    def _at(self, step: int) -> StepRange:
        if not 0 <= step < self.total:
            raise MissingError(
                f"the run has no step {step}",
                found=f"{self.sequences} sequences, {', '.join(map(str, self.batches))} to a step",
                expected=f"a step from 0 to {self.total - 1}",
            )
        return self.stretches[bisect_right([stretch.first_step for stretch in self.stretches], step) - 1]


def constant(sequences: int, sequence_tokens: int, batch: int) -> Steps:
    """Return the steps of a run with a constant global batch size."""
    return Steps(sequences, sequence_tokens, (StepRange(0, 0, batch, sequence_tokens),))


@lru_cache(maxsize=64)
def schedule(
    sequences: int,
    sequence_tokens: int,
    batch: int,
    batches: tuple[BatchChange, ...] = (),
    lengths: tuple[LengthChange, ...] = (),
    amendments: tuple[Amendment, ...] = (),
) -> Steps:
    """Return the steps of a run whose batch and length follow schedules.

    A change applies from the first step that begins at or after its point. An amendment that sets the batch replaces
    all later changes of the batch; an amendment that sets the length replaces all later changes of the length.

    Raises:
        MisplacedChange: a change never takes effect, or takes effect no later than the change listed before it.
    """
    queues: list[list[Change]] = [list(amendments), list(batches), list(lengths)]
    names = ("amendments", "batch_schedule", "length_schedule")
    listed = [len(queue) for queue in queues]
    last: list[int] = [-1, -1, -1]
    made = [StepRange(0, 0, batch, sequence_tokens)]
    while any(queues):
        now = made[-1]
        coming = [(_effect(queue[0], now, sequence_tokens), kind) for kind, queue in enumerate(queues) if queue]
        step, kind = min(coming)
        index, change = listed[kind] - len(queues[kind]), queues[kind].pop(0)
        if step <= last[kind] or step < now.first_step:
            why = f"it takes effect at step {step + 1:,}, which is not after the previous change"
            raise _misplaced_change(names[kind], index, change, why)
        position = now.first_position + (step - now.first_step) * now.batch
        if position + _batch(change, now) > sequences:
            why = f"the run ends earlier, after {sequences:,} sequences"
            raise _misplaced_change(names[kind], index, change, why)
        last[kind] = step
        if isinstance(change, Amendment):
            for queue, named in ((queues[1], change.global_batch_sequences), (queues[2], change.sequence_tokens)):
                if named is not None:
                    queue.clear()
        stretch = StepRange(step, position, _batch(change, now), _length(change, now))
        made = [*(made[:-1] if step == now.first_step else made), stretch]
    return Steps(sequences, sequence_tokens, tuple(made))


def _misplaced_change(name: str, index: int, change: Change, why: str) -> MisplacedChange:
    tokens, step = change.from_tokens, change.from_step
    point = f"from_tokens {tokens:,}" if tokens is not None else f"from_step {step:,}"
    error = MisplacedChange(
        f"training.changes: {name}[{index}], the change at {point}, cannot be applied",
        found=why,
        remedy="list changes in the order of their steps, all before the end of the run",
    )
    error.key, error.why = (name, index), f"{point} cannot be applied: {why}"
    return error


def _effect(change: Change, now: StepRange, sequence_tokens: int) -> int:
    """Return the step at which a change takes effect, counted from 0, if no other change comes before it."""
    if change.from_step is not None:
        return change.from_step - 1
    position = -(-(change.from_tokens or 0) // sequence_tokens)
    return now.first_step + max(0, -(-(position - now.first_position) // now.batch))


def _batch(change: Change, now: StepRange) -> int:
    named = change.global_batch_sequences if isinstance(change, BatchChange | Amendment) else None
    return now.batch if named is None else named


def _length(change: Change, now: StepRange) -> int:
    named = change.sequence_tokens if isinstance(change, LengthChange | Amendment) else None
    return now.length if named is None else named
