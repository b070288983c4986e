"""The figures that people quote of a run: one definition each. Index, results page, run page, Dagster and MLflow read
them from here and label them with these words.

Does not belong here: curves over the run (`report.run.metrics`), its rank-seconds (`goodput`), the mean step by part
(`step_parts`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from plinth.training.telemetry.timeline import Event, History

#: Steps of which the final loss is the mean. One step's loss is mostly the noise of its batch.
FINAL_STEPS: Final = 20
#: What each figure is, for people; its unit follows from the name.
LABELS: Final[Mapping[str, str]] = {
    "final_loss": f"training loss, mean of the last {FINAL_STEPS} steps",
    "median_step_s": "median step time, seconds",
    "median_tokens_per_s": "median tokens per second",
}


class RunFigures(NamedTuple):
    """Figures of a run, finished or under way; None before its first step. Undone steps of a rollback do not count."""

    final_loss: float | None = None
    median_step_s: float | None = None
    median_tokens_per_s: float | None = None

    def known(self) -> dict[str, float]:
        """The figures that are known, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def rounded(self) -> dict[str, str]:
        """The figures that are known, by name, with the digits that people compare."""
        forms = {"final_loss": "{:.3f}", "median_step_s": "{:.3f}", "median_tokens_per_s": "{:,.0f}"}
        return {name: forms[name].format(value) for name, value in self.known().items()}


def of_history(history: History) -> RunFigures:
    """The figures of a timeline that was read whole."""
    steps = list(history.steps.values())
    losses = list(_finite("loss", steps[-FINAL_STEPS:]))
    seconds, speeds = list(_finite("step_s", steps)), list(_finite("tokens_per_s", steps))
    return RunFigures(
        final_loss=statistics.fmean(losses) if losses else None,
        median_step_s=statistics.median(seconds) if seconds else None,
        median_tokens_per_s=statistics.median(speeds) if speeds else None,
    )


def of_events(events: Iterable[Mapping[str, Any]]) -> RunFigures:
    """The same, of events in order."""
    history = History()
    for event in events:
        history.add(Event(event))
    history.steps = dict(sorted(history.steps.items()))
    return of_history(history)


def _finite(name: str, steps: Iterable[Event]) -> Iterator[float]:
    """Values of a field; a step whose value is not finite, which a timeline has as text, is left out."""
    values = (step.get(name) for step in steps)
    yield from (float(value) for value in values if isinstance(value, int | float) and math.isfinite(value))
