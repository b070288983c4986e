"""Predicted loss curve of a run: a band for the training loss of each segment, and the comparison with the run.

    segment   an equal part of the run's tokens; its loss is the mean over its steps, so that the noise of one batch is
              small
    band      simultaneous: with probability `level`, the losses of *all* segments are inside. One comparison per
              segment therefore needs no further correction for repeated checks

The band is a promise of the launch contract (`contract`). `plinth experiment scaling curve` derives one from a scaling
ladder; a user may also write one. Does not belong here: intervals (`plinth.evaluation.statistics`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError, model_validator

from plinth.errors import RequestError
from plinth.model.architectures import parameters
from plinth.records import Frozen
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.telemetry.timeline import Event, TimelineReader

#: Event of a run whose loss is outside the band.
MISSED: Final = "forecast_missed"
#: Settings of the optimizer that shape the loss between start and end of a run. They are the same in all runs of a
#: ladder and in the run that it predicts.
SHAPE: Final = ("schedule", "warmup_fraction", "decay_fraction", "horizons")
#: Largest relative difference of tokens or parameters between a curve and its run, which may round steps.
ROUNDING: Final = 0.01


class CurvePoint(Frozen):
    """Predicted training loss of one segment, in nats per token. `tokens` is the end of the segment."""

    tokens: int = Field(ge=1)
    value: float = Field(gt=0, allow_inf_nan=False)
    low: float = Field(gt=0, allow_inf_nan=False)
    high: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _ordered(self) -> CurvePoint:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"the interval {self.low:g} to {self.high:g} does not contain {self.value:g}")
        return self


class PredictedCurve(Frozen):
    """Predicted loss curve with its simultaneous band."""

    params: int = Field(ge=1, description="Number of parameters that a token uses in the predicted run.")
    tokens: int = Field(ge=1, description="Number of training tokens of the predicted run.")
    level: float = Field(gt=0.5, lt=1, description="Probability that the losses of all segments are in the band.")
    method: str = Field(min_length=1, description="Derivation of the band.")
    points: tuple[CurvePoint, ...] = Field(min_length=1, description="Segments, in order; the last ends the run.")
    shape: Mapping[str, Any] = Field(
        default_factory=dict, description="Learning rate schedule of the runs that the curve is derived from."
    )
    runs: Mapping[str, str] = Field(
        default_factory=dict, description="Digests of the manifests of the runs that the curve is derived from."
    )
    extrapolation: float | None = Field(None, description="Run's FLOPs, as a multiple of the largest of these runs.")

    @model_validator(mode="after")
    def _whole(self) -> PredictedCurve:
        ends = [point.tokens for point in self.points]
        if ends != sorted(set(ends)) or ends[-1] != self.tokens:
            raise ValueError("points: expected segments in order of tokens, of which the last ends the run")
        return self

    def require_run(self, config: RunConfig) -> PredictedCurve:
        """Return this curve, ending at the run's own last token, if it predicts this run.

        Raises:
            RequestError: the curve is for a model of another size, another number of tokens or another schedule.
        """
        size = parameters(config.model, config.vocab_size).active
        tokens, own = config.tokens_through(config.total_steps), shape_of(config.optimizer)
        sizes = (("parameters", self.params, size), ("tokens", self.tokens, tokens))
        wrong = [f"{given:,} {name}, run: {ours:,}" for name, given, ours in sizes
                 if abs(given - ours) > ROUNDING * ours]  # fmt: skip
        wrong += [
            f"{name} {given}, run: {own.get(name)}" for name, given in self.shape.items() if given != own.get(name)
        ]
        if wrong:
            raise RequestError(
                f"the predicted curve is for another run than {config.run_id}", found="; ".join(wrong),
                remedy="predict the curve of this run again: `plinth experiment scaling curve FILE RUN`",
            )  # fmt: skip
        last = self.points[-1].model_copy(update={"tokens": tokens})
        return self.model_copy(update={"params": size, "tokens": tokens, "points": (*self.points[:-1], last)})


class CurveOutcome(Frozen):
    """Measured loss of one finished segment, next to its prediction. The loss is None if no step had a finite one."""

    predicted: CurvePoint
    loss: float | None

    @property
    def inside(self) -> bool:
        """True if the loss is inside the band."""
        return self.loss is not None and self.predicted.low <= self.loss <= self.predicted.high

    @property
    def words(self) -> str:
        """Loss, prediction and band in one phrase."""
        one = self.predicted
        if self.loss is None:
            return f"{one.tokens:,} tokens: no finite loss"
        side = "in" if self.inside else "above" if self.loss > one.high else "below"
        return f"{one.tokens:,} tokens: loss {self.loss:.4f}, {side} {one.low:.4f} to {one.high:.4f}"


def shape_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return the settings of a learning rate schedule that shape the loss curve, as plain data. The peak differs
    between sizes, so first and last rate are relative to it."""
    dump = optimizer.model_dump(mode="json")
    return {name: dump.get(name) for name in SHAPE} | {
        f"{name}/lr": round(getattr(optimizer, name) / optimizer.lr, 3) for name in ("start_lr", "min_lr")
    }


def read(path: Path) -> PredictedCurve:
    """Read a predicted curve from a JSON file.

    Raises:
        RequestError: the file cannot be read, or is not a curve.
    """
    try:
        return PredictedCurve.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RequestError(
            f"{path} is not a predicted curve", found=error,
            expected="a file of `plinth experiment scaling curve`, or JSON of the same form (docs/contract.md)",
        ) from error  # fmt: skip


def means(ends: Sequence[int], losses: Iterable[tuple[int, Any]]) -> list[float | None]:
    """Return the mean loss of each segment, or None for a segment without a finite loss.

    Args:
        ends: last token of each segment.
        losses: tokens through each step, and the step's loss. A loss that is not finite, or text, is left out.
    """
    sums, counts = [0.0] * len(ends), [0] * len(ends)
    for tokens, loss in losses:
        at = bisect_left(ends, tokens)
        if at < len(ends) and isinstance(loss, int | float) and math.isfinite(loss):
            sums[at] += loss
            counts[at] += 1
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


def outcomes(
    curve: PredictedCurve, losses: Iterable[tuple[int, Any]], *, ended: bool = False
) -> Iterator[CurveOutcome]:
    """Yield the outcome of each segment that the steps have completed, in order.

    Args:
        ended: True for a run that has ended. Its last step may be a few tokens short of the last segment's end.
    """
    steps = list(losses)
    done = max((tokens for tokens, _ in steps), default=0)
    done += round(ROUNDING * curve.tokens) if ended else 0
    ends = [one.tokens for one in curve.points]
    trained = {bisect_left(ends, tokens) for tokens, _ in steps}
    for at, (point, loss) in enumerate(zip(curve.points, means(ends, steps), strict=True)):
        if at in trained and point.tokens <= done:
            yield CurveOutcome(predicted=point, loss=loss)


class CurveWatch:
    """Monitor on the leading rank that compares each finished segment with the predicted curve.

    Losses come from the timeline, so a resumed run is judged on its whole history, and no segment is reported twice.
    The losses of the last two segments are kept: a rollback repeats steps, whose last loss counts.
    """

    def __init__(self, config: RunConfig, curve: PredictedCurve) -> None:
        self.config, self.curve = config, curve
        self._ends = [point.tokens for point in curve.points]
        self._reader = TimelineReader(config.directory.events)
        self._losses: dict[int, Any] = {}
        self._judged, self._reported = 0, set[int]()

    def missed(self, step: int) -> list[dict[str, Any]]:
        """Return the fields of an event for each segment that ended at or before this step with a loss outside the
        band."""
        tokens = self.config.tokens_through(step)
        if self._judged == len(self._ends) or tokens < self._ends[self._judged]:
            return []
        for event in self._reader.poll():
            self._add(event)
        losses = [(self.config.tokens_through(one), loss) for one, loss in self._losses.items()]
        before, self._judged = self._judged, sum(end <= tokens for end in self._ends)
        due = set(self._ends[before:]) - self._reported
        found = [one for one in outcomes(self.curve, losses) if one.predicted.tokens in due]
        keep_from = self._ends[self._judged - 2] if self._judged > 1 else 0
        self._losses = {one: loss for one, loss in self._losses.items() if self.config.tokens_through(one) > keep_from}
        return [self._event(step, one) for one in found if not one.inside]

    def _add(self, event: Event) -> None:
        if event["event"] == "step":
            self._losses[int(event["step"])] = event["loss"]
        elif event["event"] == "rolled_back":
            self._losses = {one: loss for one, loss in self._losses.items() if one <= int(event["step"])}
        elif event["event"] == MISSED:
            self._reported.add(int(event["tokens"]))

    def _event(self, step: int, one: CurveOutcome) -> dict[str, Any]:
        ends = one.predicted
        return {"step": step, "tokens": ends.tokens, "loss": one.loss, "low": ends.low, "high": ends.high}
