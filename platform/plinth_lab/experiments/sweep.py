"""Arms of one key's values, as learning rates or batch sizes, and the best value with an interval.

The loss over the logarithm of such a setting is nearly a parabola about its optimum. For each seed one is fitted to the
best value and up to two neighbours on either side; the interval is Student's over the optima of the seeds. A best value
at the end of the range says only on which side to look further.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from plinth.evaluation.statistics import Estimate, mean
from plinth.records import Frozen
from plinth_lab.experiments.effects import ArmScores

#: Neighbours of the best value, on either side, that the parabola is fitted to.
NEIGHBOURS = 2


class Sweep(Frozen):
    """Values of one key of the recipe, an arm each: a geometric range, or a list."""

    key: str = Field(pattern=r"^[a-z_0-9]+(\.[a-z_0-9]+)+$", description="As `training.optimizer.lr`.")
    low: float | None = Field(None, gt=0, description="First of the range.")
    high: float | None = Field(None, gt=0, description="Last of the range.")
    points: int = Field(5, ge=3, le=32, description="Values of the range, each the same multiple of the one before.")
    values: tuple[int | float | str | bool, ...] = Field((), description="Instead of a range.")

    @model_validator(mode="after")
    def _one_of_both(self) -> Sweep:
        ranged = self.low is not None and self.high is not None and self.low < self.high
        if ranged == bool(self.values) or (self.low is None) != (self.high is None):
            raise ValueError("expected `low` and a `high` above it, or `values`")
        if self.values and len({name_of(value) for value in self.values}) < max(2, len(self.values)):
            raise ValueError("values: expected at least two that differ")
        return self

    def swept(self) -> tuple[int | float | str | bool, ...]:
        """The values, those of a range with three digits."""
        if self.values or self.low is None or self.high is None:
            return self.values
        return tuple(float(f"{value:.3g}") for value in np.geomspace(self.low, self.high, self.points).tolist())

    def arms(self) -> dict[str, dict[str, Any]]:
        """Overlay of each value's arm, by name."""
        found = {}
        for value in self.swept():
            overlay: Any = value
            for step in reversed(self.key.split(".")):
                overlay = {step: overlay}
            found[name_of(value)] = overlay
        return found

    def base(self) -> str:
        """The arm that the others are compared with: the middle value."""
        names = [name_of(value) for value in self.swept()]
        return names[len(names) // 2]


class SweepOptimum(Frozen):
    """The best value at a size; `best` is the arm with the lowest mean. Without `optimum`, `why` says why."""

    size: str
    key: str
    best: str = ""
    optimum: Estimate | None = None
    why: str = ""


def name_of(value: float | str | bool) -> str:
    """Name of a value's arm: `at-0-001` of 0.001."""
    text = f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    return "at-" + re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def optima(sweep: Sweep, scores: Sequence[ArmScores]) -> list[SweepOptimum]:
    """The best value at each size; none where the values are no numbers."""
    values = {name_of(value): value for value in sweep.swept()}
    if any(isinstance(value, str | bool) or value <= 0 for value in values.values()):
        return []
    numbers = {name: math.log(float(value)) for name, value in values.items()}
    return [_optimum(sweep.key, size, numbers, scores) for size in dict.fromkeys(one.size for one in scores)]


def _optimum(key: str, size: str, values: Mapping[str, float], scores: Sequence[ArmScores]) -> SweepOptimum:
    losses: dict[int, dict[str, float]] = {}
    for one in scores:
        if one.size == size and not one.trouble and one.arm in values:
            losses.setdefault(one.seed, {})[one.arm] = float(one.bits.sum() / one.bytes.sum())
    common = [name for name in values if losses and all(name in own for own in losses.values())]
    if not common:
        return SweepOptimum(size=size, key=key, why="no value finished with every seed")
    best = min(common, key=lambda name: sum(own[name] for own in losses.values()))
    found, edges = [], 0
    for own in losses.values():
        at = _vertex(sorted((values[name], loss) for name, loss in own.items()))
        edges += at is None
        found += [] if at is None else [at]
    if edges:
        why = f"the best of {edges} of {len(losses)} seeds is at an end of the values: widen them on its side"
        return SweepOptimum(size=size, key=key, best=best, why=why)
    if len(found) < 2:
        return SweepOptimum(size=size, key=key, best=best, why="one seed has no interval")
    logs = mean(found)
    ends = {name: math.exp(getattr(logs, name)) for name in ("value", "low", "high")}
    interval = logs.model_copy(update={**ends, "p": None, "unit": None, "freedom": None})
    return SweepOptimum(size=size, key=key, best=best, optimum=interval)


def _vertex(points: Sequence[tuple[float, float]]) -> float | None:
    """Where the parabola about the lowest of the points [x, loss] is lowest; None where that is an end."""
    at = min(range(len(points)), key=lambda one: points[one][1])
    if not 0 < at < len(points) - 1:
        return None
    near = points[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]
    x, loss = np.array(near).T
    curve, slope, _ = np.polyfit(x - x.mean(), loss, 2).tolist()
    vertex = x.mean() - slope / (2 * curve) if curve > 0 else math.nan
    inside = points[at - 1][0] <= vertex <= points[at + 1][0]
    return float(vertex) if inside else points[at][0]
