"""The stopping rules: a pure function from the signals of a timeline to a verdict with every rule's state.

    budgets      tokens trained, seconds, money
    epochs       a bucket has been read as often as it may be
    plateau      training loss and slices no longer fall, and no probe is known to
    regression   a probe has become worse

Whichever holds first stops the run. State survives a resume because there is none: the leading rank gathers signals
from the timeline (signals). A run that was stopped is finished: its last step is the one at which the rules ended it,
and other rules let it go on.

Does not belong here: ending the run (loop), spikes and explosions (guard/).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from plinth import fingerprint
from plinth.evaluation.statistics import slope
from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth.tokens.order.order import Order
from plinth.training.config import RunConfig
from plinth.training.parameters.stopping import Plateau, Stopping
from plinth.training.stopping import probes
from plinth.training.stopping.rule_state import RuleState
from plinth.training.stopping.signals import Gatherer, Point, Signals
from plinth.training.telemetry.timeline import History, TimelineReader, timeline

#: Means that a window of training losses is reduced to before the fit, so that neighbouring steps, whose errors
#: resemble each other, do not count as independent.
BLOCKS = 16

#: Evaluations of a slice within the window, at least.
MIN_EVALUATIONS = 4


@dataclass(frozen=True)
class Verdict:
    """Whether to stop, and how every rule that is set stands."""

    stop: bool
    states: tuple[RuleState, ...]

    @property
    def reasons(self) -> list[str]:
        """The rules that hold, in words."""
        return [state.reason for state in self.states if state.holds]


def judge(rules: Stopping, signals: Signals) -> Verdict:
    """The verdict. Deterministic, of its arguments alone."""
    alone, flat = tuple(_budgets(rules, signals)), tuple(_plateaus(rules.plateau, signals) if rules.plateau else ())
    if rules.epochs is not None:
        alone += (_reuse(rules.epochs, signals),)
    if rules.regression is not None:
        alone += tuple(probes.regression(rules.regression, name, looks) for name, looks in signals.probes.items())
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
    """Of the bucket that was repeated most."""
    name, epochs = max(signals.epochs.items(), key=lambda one: one[1], default=("no bucket", 0.0))
    return RuleState("epochs", epochs >= bound, epochs, bound, f"epochs: {name} read {epochs:.4g} times of {bound:g}")


def _plateaus(rule: Plateau, signals: Signals) -> Iterator[RuleState]:
    """Of the loss, of every slice, and of every probe; all must hold. A probe, and a slice that nobody named, keeps a
    run going only where it can be judged."""
    yield plateau("plateau", rule, _blocks(signals.losses, rule.window_tokens), BLOCKS)
    for name in rule.slices or sorted(signals.slices):
        points = signals.slices.get(name, ())
        state = plateau(f"plateau of {name}", rule, points, MIN_EVALUATIONS, "bits per byte")
        if rule.slices or state.value is not None:
            yield state
    found = (probes.no_improvement(rule, name, looks) for name, looks in signals.probes.items())
    yield from (state for state in found if state is not None)


def plateau(name: str, rule: Plateau, points: Sequence[Point], least: int, unit: str = "nats") -> RuleState:
    """Flat when even the upper confidence bound of the improvement over another window is too small.

    Ordinary least squares over the last window of tokens, Student's t for the bound of the slope.
    """
    end = points[-1].tokens if points else 0
    window = [point for point in points if point.tokens > end - rule.window_tokens]
    # a window that has just begun to fill cannot be judged as a whole one
    short = len(window) < least or window[-1].tokens - window[0].tokens < rule.window_tokens * (1 - 2 / least)
    if short:
        return RuleState(name, False, None, rule.min_improvement, f"{name}: too little seen to judge")
    fit = slope([p.tokens for p in window], [p.value for p in window], level=2 * rule.confidence - 1)
    hopeful = -fit.low * rule.window_tokens
    bound = rule.min_improvement
    reason = f"{name}: at most {hopeful:.3g} {unit} more in {rule.window_tokens:,} tokens, asked {bound:g}"
    return RuleState(name, hopeful < bound, hopeful, bound, reason)


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


class Watch:
    """The rules of one run over its growing timeline, on the leading rank."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.rules = config, config.stopping
        self._gatherer = Gatherer(self.rules.plateau.window_tokens if self.rules.plateau else 0)
        self._reader = TimelineReader(config.directory.events)

    def verdict_at(self, step: int) -> Verdict | None:
        """The verdict where a rule demands a stop; None elsewhere, and at steps without a judgement."""
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
        """Sequences of the mixture that a run has taken after a step; of a private run, about so many."""
        return self.config.tokens_through(step) // self.config.sequence_tokens


def stopped_event(rules: Stopping, step: int, verdict: Verdict) -> dict[str, Any]:
    """Fields of the event `stopped_by_rule`: every signal's state, and which rules these were."""
    states = [asdict(state) for state in verdict.states]
    return {"step": step, "rules": digest(rules), "reasons": verdict.reasons, "signals": states}


def digest(rules: Stopping) -> str:
    """Identity of the rules: a run that one set of rules has stopped goes on under another."""
    return fingerprint.digest(rules)[:16]


def last_step(config: RunConfig, history: History | None = None) -> int:
    """The step at which a run ends: its last, or the one where its rules, as they are now, have stopped it."""
    if not config.stopping.asked:
        return config.total_steps
    events = (history or timeline(config.directory.events)).of("stopped_by_rule")
    stopped = [event for event in events if event["rules"] == digest(config.stopping)]
    return int(stopped[-1]["step"]) if stopped else config.total_steps
