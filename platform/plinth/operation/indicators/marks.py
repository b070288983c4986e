"""Indicators of what happens now and then in a run: checkpoint age, checkpoint frequency, validation trend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from plinth.operation.indicators.facts import Event, RunFacts
from plinth.operation.indicators.parameters import Objectives
from plinth.operation.indicators.tallies import Tally, up_to, whole


def checkpoint_age(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Seconds since the last checkpoint, or the first step, are good up to the bound."""
    for one, begin, end, _ in _gaps(run):
        yield from up_to("checkpoint age", run.run, begin, end, objectives.checkpoint_age_s, one)


def checkpoint_frequency(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """A gap between checkpoints is good whole, or bad whole; one that is open, as far as it has come."""
    for ranks, begin, end, closed in _gaps(run):
        good = end - begin <= objectives.checkpoint_every_s
        made = whole("checkpoint frequency", run.run, begin, end, good, ranks)
        yield made._replace(measured=end - begin, weight=1.0) if closed else made._replace(measured=0.0, weight=0.0)


def validation_trend(run: RunFacts, objectives: Objectives) -> Iterator[Tally]:
    """Seconds since the look before are good where a look is not worse than the best of the run before it."""
    looks: dict[int, float] = {}
    for one, its in zip(run.attempts, run.inside, strict=True):
        since = _first_step(its)
        if since is None:
            continue
        for event in its:
            if event["event"] != "evaluated" or not event.get("slices"):
                continue
            tokens, loss, time = int(event["tokens"]), _mean(event), float(event["time"])
            best = min((own for at, own in looks.items() if at < tokens), default=math.inf)
            rise = loss - best if math.isfinite(best) else 0.0 if math.isfinite(loss) else math.inf
            made = whole("validation trend", run.run, since, time, rise <= objectives.validation_rise, one.ranks)
            yield made._replace(measured=max(0.0, rise))
            if math.isfinite(loss):
                looks[tokens] = loss
            since = time


def _mean(event: Event) -> float:
    """Mean of the slices; infinite where one of them is no number."""
    values = [float(one) for one in event["slices"].values()]
    mean = math.fsum(values) / len(values)
    return mean if math.isfinite(mean) and not event.get("not_finite") else math.inf


def _first_step(its: Sequence[Event]) -> float | None:
    return next((float(event["time"]) for event in its if event["event"] == "step"), None)


def _gaps(run: RunFacts) -> Iterator[tuple[int, float, float, bool]]:
    """Ranks, begin, end: from the first step to the first checkpoint, between checkpoints, and from the last, where
    steps followed it, to the end; and whether a checkpoint ended it."""
    for one, its in zip(run.attempts, run.inside, strict=True):
        steps = [float(event["time"]) for event in its if event["event"] == "step"]
        if not steps:
            continue
        commits = [float(event["time"]) for event in its if event["event"] == "checkpoint"]
        times = [steps[0], *(time for time in commits if time > steps[0])]
        for begin, end in pairwise(times):
            yield one.ranks, begin, end, True
        if steps[-1] > times[-1] or len(times) == 1:
            yield one.ranks, times[-1], max(one.end, steps[-1]), False
