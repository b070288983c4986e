"""Probes over a run: their scores at each look, the noise of the curve, and which ones may decide.

A look is one scoring of all probes; its event has, by probe, bits per byte of the right answers (`score`), the same
under the control (`control`), and what they were made of (`set`). Pure functions of the timeline; no torch.

Does not belong here: the arithmetic of one look (evaluation.probes), making it (probing).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from plinth.evaluation.probes.scoring import LAST, Worth, worth

#: Looks that a straight line is taken out of, at least.
FIT = 4


class ProbeLook(NamedTuple):
    """One probe at one look."""

    step: int
    tokens: int
    score: float  # bits per byte
    control: float
    items: str = ""  # digest of what was asked

    @property
    def signal(self) -> float:
        """How many bits per byte the context saves."""
        return self.control - self.score


class ProbeCurves:
    """Looks by probe, out of a growing timeline: of a step that came again the later one counts, and of looks at other
    items, once these have changed, none."""

    def __init__(self) -> None:
        self.looks: dict[str, list[ProbeLook]] = {}
        self._set = ""

    def require_set(self, items: str) -> None:
        """Say of which items the looks are that stand here already."""
        self._set = items

    def add(self, event: Mapping[str, Any]) -> None:
        """Take an event; those without probes are passed over."""
        if event["event"] != "evaluated" or not event.get("probes"):
            return
        if event["probe_set"] != self._set:
            self._set, self.looks = event["probe_set"], {}
        step, tokens = int(event["step"]), int(event["tokens"])
        for name, scores in event["probes"].items():
            kept = [look for look in self.looks.get(name, ()) if look.step < step]
            self.looks[name] = [*kept, ProbeLook(step, tokens, scores["score"], scores["control"], self._set)]


def curves(events: Iterable[Mapping[str, Any]]) -> dict[str, list[ProbeLook]]:
    """Looks by probe, in order."""
    found = ProbeCurves()
    for event in events:
        found.add(event)
    return found.looks


def value(looks: Sequence[ProbeLook], seeds: Sequence[float] = ()) -> Worth:
    """What a probe is worth at its last look; a curve that still moves has its local slope taken out of the noise.

    Args:
        looks: of one run, in order; at least one.
        seeds: last scores of runs that differ by seed alone, this one among them.
    """
    return worth(looks[-1].signal, detrended(looks[-LAST:]), seeds)


def detrended(looks: Sequence[ProbeLook]) -> list[float]:
    """Scores without the straight line through them, over tokens, about their mean.

    Deviations are widened by sqrt((n - 1) / (n - 2)), so that their standard deviation is the residual standard error
    of the fit: the line costs a degree of freedom. Fewer than `FIT` looks are left as they are: there a slope counts as
    noise, which makes the ratio too low rather than too high.
    """
    scores = [look.score for look in looks]
    n = len(looks)
    if n < FIT:
        return scores
    middle, mean = math.fsum(look.tokens for look in looks) / n, math.fsum(scores) / n
    spread = math.fsum((look.tokens - middle) ** 2 for look in looks)
    slope = math.fsum((look.tokens - middle) * (look.score - mean) for look in looks) / spread
    widened = math.sqrt((n - 1) / (n - 2))
    return [mean + widened * (look.score - mean - slope * (look.tokens - middle)) for look in looks]
