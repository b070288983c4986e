"""When a run has had enough: a pure function from what its timeline tells to a verdict with every signal's state.

    budgets      tokens trained, seconds, money             each stops the run by itself
    plateau      training loss and slices no longer fall    the rest combine by `when: any | all`
    regression   probes score worse than they have
    reuse        a bucket's documents were seen too often

Everything is read from `events.jsonl`, so a resumed run judges by what the whole run has seen, and steps that a
resume repeated cost again but are fitted once. Seconds are those of steps and of synchronous saves, over all
attempts; start-up is not counted. Slices and probes come with `evaluated` events, from whoever evaluates.

Does not belong here: ending the run (loop), spikes and explosions (guard/).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from plinth import fingerprint
from plinth.recipe.stopping import Plateau, Regression, Stopping
from plinth.training.telemetry import Event, Reader, Story

#: Means that a window of training losses is reduced to before the fit, so that neighbouring steps, whose errors
#: resemble each other, do not count as independent.
BLOCKS = 16

#: Evaluations of a slice within the window, at least.
MIN_EVALUATIONS = 4


class Point(NamedTuple):
    """A number at a place of the run."""

    tokens: int
    value: float
    error: float = 0.0  # standard error


@dataclass
class Signals:
    """What the rules look at. `tokens` is the position in the run, `spent_tokens` counts repeated steps too."""

    tokens: int = 0
    spent_tokens: int = 0
    seconds: float = 0.0
    rank_seconds: float = 0.0
    losses: list[Point] = field(default_factory=list)
    slices: dict[str, list[Point]] = field(default_factory=dict)
    probes: dict[str, list[Point]] = field(default_factory=dict)
    epochs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """One rule: what was found against its bound; `value` is None while there is too little to judge by."""

    rule: str
    holds: bool
    value: float | None
    bound: float
    reason: str


@dataclass(frozen=True)
class Verdict:
    """Whether to stop, and how every rule that is set stands."""

    stop: bool
    states: tuple[State, ...]

    @property
    def reasons(self) -> list[str]:
        """In words, of the rules that hold."""
        return [state.reason for state in self.states if state.holds]


def judge(rules: Stopping, signals: Signals) -> Verdict:
    """The verdict. Deterministic; asks nothing but its arguments."""
    budgets = tuple(_budgets(rules, signals))
    others = tuple(_others(rules, signals)) if signals.tokens >= rules.min_tokens else ()
    combined = (any if rules.when == "any" else all)(state.holds for state in others)
    return Verdict(any(state.holds for state in budgets) or (bool(others) and combined), budgets + others)


def _budgets(rules: Stopping, signals: Signals) -> Iterator[State]:
    price = signals.rank_seconds / 3600 * rules.price_per_rank_hour
    for name, spent, budget in (
        ("tokens", float(signals.spent_tokens), rules.tokens),
        ("seconds", signals.seconds, rules.seconds),
        ("money", price, rules.money),
    ):
        if budget is not None:
            yield State(name, spent >= budget, spent, budget, f"{name}: {spent:,.6g} spent of {budget:,.6g}")


def _others(rules: Stopping, signals: Signals) -> Iterator[State]:
    if rules.plateau is not None:
        yield plateau("plateau", rules.plateau, _blocks(signals.losses, rules.plateau.window_tokens), BLOCKS)
        for name in rules.plateau.slices:
            yield plateau(f"plateau of {name}", rules.plateau, signals.slices.get(name, ()), MIN_EVALUATIONS)
    if rules.regression is not None:
        yield regression(rules.regression, signals.probes)
    if rules.max_epochs is not None:
        bucket, seen = max(signals.epochs.items(), key=lambda item: item[1], default=("", 0.0))
        reason = f"reuse: {bucket} seen {seen:.3g} times, at most {rules.max_epochs:g}"
        yield State("reuse", seen >= rules.max_epochs, seen if bucket else None, rules.max_epochs, reason)


def plateau(name: str, rule: Plateau, points: Sequence[Point], least: int) -> State:
    """Flat when even the upper confidence bound of the improvement over another window is too small.

    Ordinary least squares over the last window of tokens, Student's t for the bound of the slope.
    """
    end = points[-1].tokens if points else 0
    window = [point for point in points if point.tokens > end - rule.window_tokens]
    # a window that has just begun to fill says nothing of a whole one
    short = len(window) < least or window[-1].tokens - window[0].tokens < rule.window_tokens * (1 - 2 / least)
    if short:
        return State(name, False, None, rule.min_improvement, f"{name}: too little seen to judge")
    slope, error = fitted(window)
    hopeful = -(slope - _quantile(rule.confidence, len(window) - 2) * error) * rule.window_tokens
    reason = f"{name}: at most {hopeful:.3g} nats more in {rule.window_tokens:,} tokens, asked {rule.min_improvement:g}"
    return State(name, hopeful < rule.min_improvement, hopeful, rule.min_improvement, reason)


def regression(rule: Regression, probes: Mapping[str, Sequence[Point]]) -> State:
    """Probes whose last evaluations all lie below their best by more than the tolerance."""
    worse = []
    for name, points in sorted(probes.items()):
        recent, before = points[-rule.evaluations :], points[: -rule.evaluations]
        if not before:
            continue
        best = max(before, key=lambda point: point.value)
        if all(p.value < best.value - rule.tolerance * math.hypot(p.error, best.error) for p in recent):
            worse.append(name)
    reason = f"regression: {', '.join(worse) or 'no probe'} worse in the last {rule.evaluations} evaluations"
    return State("regression", len(worse) >= rule.probes, float(len(worse)), rule.probes, reason)


def fitted(points: Sequence[Point]) -> tuple[float, float]:
    """Slope per token of a straight line through at least three points, and its standard error."""
    n = len(points)
    mean_x, mean_y = sum(p.tokens for p in points) / n, sum(p.value for p in points) / n
    spread = sum((p.tokens - mean_x) ** 2 for p in points)
    slope = sum((p.tokens - mean_x) * (p.value - mean_y) for p in points) / spread
    residual = sum((p.value - mean_y - slope * (p.tokens - mean_x)) ** 2 for p in points)
    return slope, math.sqrt(residual / (n - 2) / spread)


def _quantile(confidence: float, freedom: int) -> float:
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, confidence))


def _blocks(losses: Sequence[Point], window: int) -> list[Point]:
    """Means of the losses by whole blocks of window / BLOCKS tokens; the block that is filling is left out."""
    size, sums = max(1, window // BLOCKS), dict[int, list[float]]()
    for point in losses:
        sums.setdefault((point.tokens - 1) // size, []).append(point.value)
    newest = max(sums, default=-1)
    return [
        Point(round((block + 0.5) * size), math.fsum(values) / len(values))
        for block, values in sorted(sums.items())
        if block < newest
    ]


class Gatherer:
    """Signals from events, in the order they were written."""

    def __init__(self, window_tokens: int = 0) -> None:
        self.signals = Signals()
        self._window, self._ranks = window_tokens, 1
        self._ends: list[int] = []  # tokens through each step told of

    def add(self, event: Event) -> None:
        """Take in one event; those that say nothing to the rules are passed over."""
        kind = event["event"]
        if kind == "run_started":
            self._ranks = int(event["ranks"])
        elif kind == "checkpoint":
            self._spend(float(event.get("seconds", 0.0)))
        elif kind == "step":
            self._step(event)
        elif kind == "evaluated":
            self._evaluated(event)

    def _step(self, event: Event) -> None:
        signals, tokens = self.signals, int(event["tokens"])
        self._spend(float(event["step_s"]))
        if self._ends and tokens <= self._ends[-1]:  # steps done again: what they said before does not count
            del self._ends[bisect_left(self._ends, tokens) :]
            for points in (signals.losses, *signals.slices.values(), *signals.probes.values()):
                points[:] = [point for point in points if point.tokens < tokens]
        signals.spent_tokens += tokens - (self._ends[-1] if self._ends else 0)
        signals.tokens = tokens
        self._ends.append(tokens)
        loss = event["loss"]
        if isinstance(loss, int | float):  # text where it was not finite
            signals.losses.append(Point(tokens, float(loss)))
        if (
            signals.losses and tokens - signals.losses[0].tokens > 2 * self._window + 1
        ):  # forget in one go what no window reaches any more
            signals.losses = [point for point in signals.losses if point.tokens > tokens - self._window - 1]

    def _evaluated(self, event: Event) -> None:
        tokens = int(event["tokens"])
        for kind, table in (("slices", self.signals.slices), ("probes", self.signals.probes)):
            for name, value in event.get(kind, {}).items():
                score, error = value if isinstance(value, list) else (value, 0.0)
                table.setdefault(name, []).append(Point(tokens, float(score), float(error)))

    def _spend(self, seconds: float) -> None:
        self.signals.seconds += seconds
        self.signals.rank_seconds += seconds * self._ranks


#: Times that each bucket's documents were seen once the run is so many tokens on.
Epochs = Callable[[int], Mapping[str, float]]


class Watch:
    """The rules of one run over its growing timeline; only the leading rank looks."""

    def __init__(self, rules: Stopping, path: Path, epochs: Epochs | None = None) -> None:
        self.rules, self._epochs = rules, epochs
        self._gatherer = Gatherer(rules.plateau.window_tokens if rules.plateau else 0)
        self._reader = Reader(path)

    def look(self, step: int) -> Verdict | None:
        """The verdict where a rule says stop; None elsewhere, and at steps where nobody looks."""
        if not self.rules.asked or step % self.rules.every_steps:
            return None
        for event in self._reader.poll():
            self._gatherer.add(event)
        signals = self._gatherer.signals
        if self._epochs is not None and self.rules.max_epochs is not None:
            signals.epochs = self._epochs(signals.tokens)
        verdict = judge(self.rules, signals)
        return verdict if verdict.stop else None


def event_of(rules: Stopping, step: int, verdict: Verdict) -> dict[str, Any]:
    """Fields of the event `stopped_by_rule`: every signal's state, and which rules these were."""
    states = [asdict(state) for state in verdict.states]
    return {"step": step, "rules": digest(rules), "reasons": verdict.reasons, "signals": states}


def digest(rules: Stopping) -> str:
    """Identity of the rules: a run that one set of rules has stopped goes on under another."""
    return fingerprint.digest(rules)[:16]


def last_step(rules: Stopping, total_steps: int, story: Story) -> int:
    """The step at which a run ends: its last, or the one where these rules stopped it."""
    stopped = [event for event in story.of("stopped_by_rule") if event["rules"] == digest(rules)]
    return int(stopped[-1]["step"]) if stopped else total_steps
