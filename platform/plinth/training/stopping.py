"""Stopping rules. A pure function maps the signals of a timeline to a verdict with the state of every rule."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from plinth import fingerprint
from plinth.evaluation.statistics import slope
from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth.tokens.order.order import Order
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import Plateau, Regression, Stopping
from plinth.training.telemetry.timeline import Event, History, TimelineReader, saved_s, timeline
from plinth.training.validation.probe_curves import ProbeCurves, ProbeLook, value


@dataclass(frozen=True)
class RuleState:
    """State of one stopping rule: its current value and its bound. If there is too little data, `value` is None."""

    rule: str
    holds: bool
    value: float | None
    bound: float
    reason: str


# Signals of the stopping rules, gathered from the timeline.
#
# All signals come from `events.jsonl`, so a resumed run is judged on its whole history; repeated steps add cost but are
# fitted once. Seconds are those of steps, of evaluations and of waits for a save, over all attempts, without start-up.
# Slices (bits per byte, from `validation`) and probes are in `evaluated` events:
# `{"event": "evaluated", "tokens": 1000, "slices": {"web": 3.1}, "probes": {…}}`.


class Point(NamedTuple):
    """A value of a curve, and the position in the run in tokens."""

    tokens: int
    value: float


@dataclass
class Signals:
    """Numbers of a run that its stopping rules judge.

    `tokens` is the position in the run; `spent_tokens` also counts repeated steps. `epochs` is the number of times that
    each bucket was read so far; the timeline does not contain it.
    """

    tokens: int = 0
    spent_tokens: int = 0
    seconds: float = 0.0
    rank_seconds: float = 0.0
    losses: list[Point] = field(default_factory=list)
    slices: dict[str, list[Point]] = field(default_factory=dict)
    probes: dict[str, list[ProbeLook]] = field(default_factory=dict)
    epochs: dict[str, float] = field(default_factory=dict)


class Gatherer:
    """Collector of the signals in a timeline. It receives the timeline's events in order."""

    def __init__(self, window_tokens: int = 0) -> None:
        self.signals = Signals()
        self._window, self._ranks = window_tokens, 1
        self._ends: list[int] = []  # tokens through each step on the timeline
        self._probes = ProbeCurves()

    def add(self, event: Event) -> None:
        """Add one event. Events without a signal are ignored."""
        kind = event["event"]
        if kind == "run_started":
            self._ranks = int(event["ranks"])
        elif kind == "checkpoint":
            waited = float(event["stall_s"]) + float(event["wait_s"]) if "stall_s" in event else float(event["seconds"])
            self._spend(waited)  # an asynchronous save costs no waiting
        elif kind == "step":
            self._step(event)
        elif kind == "evaluated":
            self._evaluated(event)

    def _step(self, event: Event) -> None:
        signals, tokens = self.signals, int(event["tokens"])
        self._spend(float(event["step_s"]) - saved_s(event))
        if self._ends and tokens <= self._ends[-1]:  # repeated steps: earlier values are dropped
            del self._ends[bisect_left(self._ends, tokens) :]
            for points in (signals.losses, *signals.slices.values()):
                points[:] = [point for point in points if point.tokens < tokens]
            for looks in signals.probes.values():
                looks[:] = [look for look in looks if look.tokens < tokens]
        signals.spent_tokens += tokens - (self._ends[-1] if self._ends else 0)
        signals.tokens = tokens
        self._ends.append(tokens)
        loss = event["loss"]
        if isinstance(loss, int | float):  # a string if not finite
            signals.losses.append(Point(tokens, float(loss)))
        if (
            signals.losses and tokens - signals.losses[0].tokens > 2 * self._window + 1
        ):  # drop values that no window needs any more
            signals.losses = [point for point in signals.losses if point.tokens > tokens - self._window - 1]

    def _evaluated(self, event: Event) -> None:
        tokens = int(event["tokens"])
        self._spend(float(event.get("seconds", 0.0)))
        for name, measured in event.get("slices", {}).items():
            self.signals.slices.setdefault(name, []).append(Point(tokens, float(measured)))
        self._probes.add(event)
        self.signals.probes = self._probes.looks

    def _spend(self, seconds: float) -> None:
        self.signals.seconds += seconds
        self.signals.rank_seconds += seconds * self._ranks


# Probe rules. A probe with a signal within its noise is not judged.
#
#     regression       the run has unlearned something: stop
#     no_improvement   part of the plateau: no probe is known to be getting better still

#: Number of evaluations that are averaged: the last ones, and the best consecutive evaluations before them.
AVERAGED = 3

#: Minimum evaluations of a probe before it is judged.
FEWEST = 8

#: Minimum evaluations for the noise, before the averaged ones.
WINDOW = 32

#: Standard errors by which a regression must exceed its bound. The factor is large because the best of all earlier
#: means is below the curve, and a run is judged at every evaluation: about 1 in 20 flat curves of 100 evaluations is
#: stopped at a bound of 0, and fewer than 1 in 100 at one of a standard deviation (simulated in the tests).
ERRORS = 6.0


def regression(rule: Regression, name: str, looks: Sequence[ProbeLook]) -> RuleState:
    """Judge if a probe's last scores are worse than its best scores by more than the bound and the noise."""
    rule_name, before = f"regression of {name}", looks[:-AVERAGED]
    if len(looks) < FEWEST:
        return RuleState(rule_name, False, None, rule.bits_per_byte, f"{rule_name}: too few values to judge")
    if not value(before).decides:  # an unlearned probe has no signal left
        return RuleState(
            rule_name, False, None, rule.bits_per_byte, f"{rule_name}: the probe's signal is within its noise"
        )
    scores = [look.score for look in looks]
    means = [math.fsum(scores[n : n + AVERAGED]) / AVERAGED for n in range(len(scores) - AVERAGED + 1)]
    error = _deviation(scores[:-AVERAGED][-WINDOW:]) * math.sqrt(2 / AVERAGED)
    worse = means[-1] - min(means[:-AVERAGED]) - ERRORS * error
    reason = (
        f"{rule_name}: the score is at least {worse:.3g} bits per byte worse than the best score; "
        f"{rule.bits_per_byte:g} is allowed"
    )
    return RuleState(rule_name, worse > rule.bits_per_byte, worse, rule.bits_per_byte, reason)


def no_improvement(rule: Plateau, name: str, looks: Sequence[ProbeLook]) -> RuleState | None:
    """Judge if a probe has stopped improving, or return None if this cannot be judged.

    The probe is flat unless its improvement over another window is known to exceed the bound for the loss. Losses must
    be shown to be flat. Probes have few scores, so they must be shown not to be flat. A probe can therefore keep a run
    alive, but never end it.
    """
    rule_name, end = f"plateau of probe {name}", looks[-1].tokens if looks else 0
    window = [look for look in looks if look.tokens > end - rule.window_tokens]
    bound = rule.min_improvement
    if len(window) < 4 or not value(looks).decides:
        return None
    fit = slope([one.tokens for one in window], [one.score for one in window], level=2 * rule.confidence - 1)
    known = -fit.high * rule.window_tokens
    gain = f"improves by at least {known:.3g} bits per byte in {rule.window_tokens:,} tokens"
    reason = f"{rule_name}: {gain}, required {bound:g}"
    return RuleState(rule_name, known < bound, known, bound, reason)


def _deviation(scores: Sequence[float]) -> float:
    """Return the standard deviation of scores around a slowly varying curve. It is computed from second differences,
    whose variance is six times as large."""
    bends = [a - 2 * b + c for a, b, c in zip(scores, scores[1:], scores[2:], strict=False)]
    return math.sqrt(math.fsum(bend**2 for bend in bends) / (6 * len(bends)))


# Stopping rules: a pure function from the signals of a timeline to a verdict with every rule's state.
#
#     budgets      tokens trained, seconds, money
#     epochs       a bucket has reached its maximum passes
#     plateau      training loss and slices no longer fall, and no probe is known to
#     regression   a probe has become worse
#
# The first rule that applies stops the run. There is no state to resume: the leading rank gathers signals from the
# timeline. A stopped run is finished: its last step is the step at which the rules ended it. With other rules it
# continues.

#: Number of means to which a window of training losses is reduced before the fit, so that neighboring steps, whose
# errors are
#: correlated, do not count as independent.
BLOCKS = 16

#: Minimum evaluations of a slice within the window.
MIN_EVALUATIONS = 4


@dataclass(frozen=True)
class Verdict:
    """Decision to stop or continue, with the state of every rule."""

    stop: bool
    states: tuple[RuleState, ...]

    @property
    def reasons(self) -> list[str]:
        """Reasons of the rules that require a stop, one sentence each."""
        return [state.reason for state in self.states if state.holds]


def judge(rules: Stopping, signals: Signals) -> Verdict:
    """Return the verdict of all stopping rules. It depends only on the arguments."""
    alone, flat = tuple(_budgets(rules, signals)), tuple(_plateaus(rules.plateau, signals) if rules.plateau else ())
    if rules.epochs is not None:
        alone += (_reuse(rules.epochs, signals),)
    if rules.regression is not None:
        alone += tuple(regression(rules.regression, name, looks) for name, looks in signals.probes.items())
    stop = any(state.holds for state in alone) or (bool(flat) and all(state.holds for state in flat))
    return Verdict(stop, alone + flat)


def _budgets(rules: Stopping, signals: Signals) -> Iterator[RuleState]:
    price = signals.rank_seconds / 3600 * rules.price_per_rank_hour
    for name, spent, budget in (
        ("tokens", float(signals.spent_tokens), rules.tokens),
        ("seconds", signals.seconds, rules.seconds),
        ("money", price, rules.money),
    ):
        if budget is not None:
            yield RuleState(name, spent >= budget, spent, budget, f"{name}: {spent:,.6g} spent of {budget:,.6g}")


def _reuse(bound: float, signals: Signals) -> RuleState:
    """Compare the number of epochs of the most repeated bucket with its limit."""
    name, epochs = max(signals.epochs.items(), key=lambda one: one[1], default=("no bucket", 0.0))
    return RuleState("epochs", epochs >= bound, epochs, bound, f"epochs: {name} read {epochs:.4g} times of {bound:g}")


def _plateaus(rule: Plateau, signals: Signals) -> Iterator[RuleState]:
    """Yield the plateau states of the loss, of every slice, and of every probe. The run stops only if all are flat.

    Probes, and slices that the recipe does not name, are left out if they cannot be judged.
    """
    yield plateau("plateau", rule, _blocks(signals.losses, rule.window_tokens), BLOCKS)
    for name in rule.slices or sorted(signals.slices):
        points = signals.slices.get(name, ())
        state = plateau(f"plateau of {name}", rule, points, MIN_EVALUATIONS, "bits per byte")
        if rule.slices or state.value is not None:
            yield state
    found = (no_improvement(rule, name, looks) for name, looks in signals.probes.items())
    yield from (state for state in found if state is not None)


def plateau(name: str, rule: Plateau, points: Sequence[Point], least: int, unit: str = "nats") -> RuleState:
    """Judge if a curve is flat. It is flat if the upper confidence bound of its improvement over another window is too
    small.

    The slope is fitted by ordinary least squares over the last window of tokens. Its confidence bound is from Student's
    t distribution.
    """
    end = points[-1].tokens if points else 0
    window = [point for point in points if point.tokens > end - rule.window_tokens]
    # an incomplete window is not judged
    short = len(window) < least or window[-1].tokens - window[0].tokens < rule.window_tokens * (1 - 2 / least)
    if short:
        return RuleState(name, False, None, rule.min_improvement, f"{name}: too few values to judge")
    fit = slope([p.tokens for p in window], [p.value for p in window], level=2 * rule.confidence - 1)
    hopeful = -fit.low * rule.window_tokens
    bound = rule.min_improvement
    reason = f"{name}: improves by at most {hopeful:.3g} {unit} in {rule.window_tokens:,} tokens, required {bound:g}"
    return RuleState(name, hopeful < bound, hopeful, bound, reason)


def _blocks(losses: Sequence[Point], window: int) -> list[Point]:
    """Return the means of the losses over whole blocks of window / BLOCKS tokens. An incomplete block is left out."""
    size, sums = max(1, window // BLOCKS), dict[int, list[float]]()
    for point in losses:
        sums.setdefault((point.tokens - 1) // size, []).append(point.value)
    newest = max(sums, default=-1)
    return [
        Point(round((block + 0.5) * size), math.fsum(values) / len(values))
        for block, values in sorted(sums.items())
        if block < newest
    ]


class Watch:
    """Monitor on the leading rank that applies a run's stopping rules to its growing timeline."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.rules = config, config.stopping
        self._gatherer = Gatherer(self.rules.plateau.window_tokens if self.rules.plateau else 0)
        self._reader = TimelineReader(config.directory.events)

    def verdict_at(self, step: int) -> Verdict | None:
        """Return the verdict if a rule requires a stop after this step, otherwise None. At steps where no rule is
        evaluated, return None."""
        if not self.rules.asked or step % self.rules.every_steps:
            return None
        for event in self._reader.poll():
            self._gatherer.add(event)
        if self.rules.epochs is not None:
            self._gatherer.signals.epochs = self._order.epochs(self._sequences(step))
        verdict = judge(self.rules, self._gatherer.signals)
        return verdict if verdict.stop else None

    @cached_property
    def _order(self) -> Order:
        return Order(Refs(Workspace(self.config.workspace)).load(self.config.mixture))

    def _sequences(self, step: int) -> int:
        """Return the number of sequences of the mixture that the run has used after a step. For a private run it is an
        estimate."""
        return self.config.tokens_through(step) // self.config.sequence_tokens


def stopped_event(rules: Stopping, step: int, verdict: Verdict) -> dict[str, Any]:
    """Return the fields of the event `stopped_by_rule`: the state of every rule, and the identity of the rules."""
    states = [asdict(state) for state in verdict.states]
    return {"step": step, "rules": digest(rules), "reasons": verdict.reasons, "signals": states}


def digest(rules: Stopping) -> str:
    """Return the identity of a set of rules. A run that one set has stopped can continue under another set."""
    return fingerprint.digest(rules)[:16]


def last_step(config: RunConfig, history: History | None = None) -> int:
    """Return the last step of a run: the planned last step, or the step at which its current rules stopped it."""
    if not config.stopping.asked:
        return config.total_steps
    events = (history or timeline(config.directory.events)).of("stopped_by_rule")
    stopped = [event for event in events if event["rules"] == digest(config.stopping)]
    return int(stopped[-1]["step"]) if stopped else config.total_steps
