"""Game days by name, their records (hypothesis, findings, verdict), and the evaluation of alerts.

A game day injects one fault into a small run and compares the end state with a hypothesis. It does this several times,
at different instants. The seed and the number of an instant determine the instant and its random choices. The alert
table is evaluated on the samples that the exporter takes from the run's timeline. The expected alert must fire in time.
If no alert is expected, no alert of severity `page` may fire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Final

from pydantic import Field

from plinth.errors import MissingError
from plinth.records import Frozen
from plinth.training.config import RunConfig
from plinth.training.sinks.run_metrics import RUN, MetricState
from plinth.training.telemetry.timeline import read_events
from plinth_ops.alerts.conditions import ACTIVE, Compared
from plinth_ops.alerts.table import EVALUATION_S, Alert, alerts


class Outcome(Frozen):
    """Result of one check of the hypothesis after one fault injection of a game day."""

    what: str
    passed: bool
    seen: str = ""


class Instant(Frozen):
    """Result of one fault injection of a game day.

    Attributes:
        number: index from 0; together with the seed, the index determines all random choices.
        struck: where and how the fault was injected, as text.
        findings: results of all checks; empty if aborted.
        aborted: reason of an abort; an aborted instant fails.
        alert_s: seconds from the fault's first event until the alert fired; None if no alert is expected or none fired.
        seconds: duration of the instant.
        phases: seconds of each phase, in order, if the game day has phases.
    """

    number: int
    struck: str
    findings: tuple[Outcome, ...] = ()
    aborted: str = ""
    alert_s: float | None = None
    seconds: float = 0.0
    phases: Mapping[str, float] = Field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if there are findings and all of them passed."""
        return not self.aborted and bool(self.findings) and all(one.passed for one in self.findings)

    @property
    def failures(self) -> tuple[str, ...]:
        """Failed checks, as text."""
        failed = tuple(f"{one.what}: {one.seen}" for one in self.findings if not one.passed)
        return (f"aborted: {self.aborted}", *failed) if self.aborted else failed


class GameDayRecord(Frozen):
    """Content of a game day's signed record. `phases` has the maximum seconds of each phase over all instants."""

    name: str
    hypothesis: str
    fault: str
    blast_radius: str
    abort: str
    protection: str
    alerts: tuple[str, ...]
    seed: int
    mechanism: str = ""
    version: str
    machine: str
    instants: tuple[Instant, ...]
    phases: Mapping[str, float] = Field(default_factory=dict)
    seconds: float

    @property
    def passed(self) -> bool:
        """True if there are instants and all of them passed."""
        return bool(self.instants) and all(one.passed for one in self.instants)


@dataclass(frozen=True)
class Struck:
    """Outcome of one fault injection: injection point, findings, seconds until the alert, seconds by phase."""

    where: str
    findings: tuple[Outcome, ...]
    alert_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


class Chooser(Random):
    """Random numbers of one instant, and its number, counted from 1."""

    number: int = 1


#: Function that prepares the undisturbed reference of all instants once, in a folder of the scratch folder.
Prepare = Callable[[Path], Any]
#: Function that runs one instant in its own folder.
Play = Callable[[Any, Path, Chooser], Struck]


#: Blast radius of a game day that only affects its rehearsal.
OWN: Final = "It affects one rehearsal in the scratch folder, and no other run, bucket or workspace."


@dataclass(frozen=True)
class GameDay:
    """Definition of a game day.

    Args:
        name: name on the command line.
        protection: part of Plinth under test; without this part, the game day must fail.
        abort_s: timeout of one fault injection, in seconds.
        missing: function that returns the reason why this machine cannot run the game day, or None if it can.
        alerts: expected alerts, one of which must fire in time; if empty, no alert of severity `page` may fire.
        mechanism: function that describes how the fault is injected, if that depends on the machine.
        end: function that stops servers that `prepare` started.
    """

    name: str
    hypothesis: str
    fault: str
    protection: str
    prepare: Prepare
    play: Play
    blast_radius: str = OWN
    abort_s: float = 900.0
    alerts: tuple[str, ...] = ()
    missing: Callable[[], str | None] = lambda: None
    mechanism: Callable[[Any], str] = lambda prepared: ""
    end: Callable[[Any], object] = lambda prepared: None

    @property
    def abort(self) -> str:
        """Conditions that abort a fault injection, as text."""
        return f"more than {self.abort_s:g} s, a change outside the scratch folder, or a leftover process"


def finding(what: str, seen: object, expected: object) -> Outcome:
    """Return the result of a check, which passes if `seen` equals `expected`."""
    return Outcome(what=what, passed=seen == expected, seen=f"{seen}" if seen == expected else f"{seen} ≠ {expected}")


#: Module and attribute by name.
TABLE: Final[Mapping[str, str]] = {
    "corrupted-checkpoint": "plinth_ops.gamedays.checkpoint_days:CORRUPTED",
    "partial-write": "plinth_ops.gamedays.checkpoint_days:PARTIAL",
    "full-disk": "plinth_ops.gamedays.checkpoint_days:FULL_DISK",
    "preemption": "plinth_ops.gamedays.run_days:PREEMPTION",
    "flipped-bit": "plinth_ops.gamedays.device_days:FLIPPED_BIT",
    "lost-ranks": "plinth_ops.gamedays.recovery_day:LOST_RANKS",
    "upgrade": "plinth_ops.gamedays.upgrade_day:UPGRADE",
    "missed-forecast": "plinth_ops.gamedays.contract_day:MISSED_FORECAST",
    "clock-jump": "plinth_ops.gamedays.run_days:CLOCK_JUMP",
    "storage-stall": "plinth_ops.gamedays.data_days:STORAGE_STALL",
    "bad-shard": "plinth_ops.gamedays.data_days:BAD_SHARD",
    "poisoned-batch": "plinth_ops.gamedays.data_days:POISONED",
    "revoked-key": "plinth_ops.gamedays.run_days:REVOKED_KEY",
    "orchestrator-death": "plinth_ops.gamedays.orchestrator_day:DEATH",
    "bad-release": "plinth_ops.gamedays.release_day:RELEASE",
    "mlflow-away": "plinth_ops.gamedays.run_days:MLFLOW",
}


def find(name: str) -> GameDay:
    """Return a game day by name.

    Raises:
        MissingError: there is no such game day.
    """
    if name not in TABLE:
        remedy = "`plinth ops gameday list` lists all game days"
        raise MissingError(f"no game day {name!r}", expected=", ".join(sorted(TABLE)), remedy=remedy)
    module, _, attribute = TABLE[name].partition(":")
    found: GameDay = getattr(import_module(module), attribute)
    return found


# Evaluation of alerts on the timeline as the exporter samples it.
#
#     fired(config, names, trace)    -> the first of these alerts that fires, and the seconds until then
#     no_page(config)                -> no page fires
#
# The current timeline is sampled, so call this before the failure is repaired. The alerts of game days compare one
# sample with a limit, which works without Prometheus; conditions on changes over time are not evaluated.

#: Sample: metric, labels, value.
Sample = tuple[str, dict[str, str], float]

#: Findings about an alert, and the seconds until it fired.
Alerted = tuple[list[Outcome], float | None]

#: Seconds that an event must be in the future for `ClockAhead` to fire.
AHEAD_S = 120.0

#: Seconds for which no page may fire on a problem that the platform repairs itself.
QUIET_S = 1800.0


def fired(config: RunConfig, names: Sequence[str], trace: str, more: Iterable[Sample] = ()) -> Alerted:
    """Check that one of the alerts `names` fires within its response target after the newest event of the kind `trace`.

    Args:
        trace: kind of the event; if there is no event of this kind, the newest event of any kind is used.
        more: samples from sources other than the timeline.
    """
    times = {str(event["event"]): float(event["time"]) for event in read_events(config.directory.events)}
    return fires(names, times.get(trace, max(times.values(), default=0.0)), [*samples(config), *more])


def fires(names: Sequence[str], begun: float, sampled: Sequence[Sample]) -> Alerted:
    """Check that one of the alerts `names` fires within its response target after `begun` (Unix time).

    The samples are assumed to stay constant.
    """
    wanted = [one for one in alerts() if one.name in names]
    promised = {one.name: one.promised_s for one in wanted}
    longest = max(promised.values())
    first = _first_fired(wanted, sampled, begun, longest)
    after = {name: time - begun for name, time in first.items()}
    in_time = sorted((seconds, name) for name, seconds in after.items() if seconds <= promised[name])
    what = f"the alert {' or '.join(names)} fires within {longest:g} s"
    if not in_time:
        return [Outcome(what=what, passed=False, seen=f"{after or 'none fired'}")], None
    seconds, name = in_time[0]
    return [Outcome(what=what, passed=True, seen=f"{name} after {seconds:g} s")], seconds


def no_page(config: RunConfig) -> list[Outcome]:
    """Check that no alert of severity `page` fires for the run's timeline."""
    pages = [one for one in alerts() if one.severity == "page"]
    begun = max((float(event["time"]) for event in read_events(config.directory.events)), default=0.0)
    first = _first_fired(pages, samples(config), begun, QUIET_S)
    return [Outcome(what="no page fires", passed=not first, seen=", ".join(sorted(first)) or "no page")]


def samples(config: RunConfig) -> list[Sample]:
    """Return the metric samples that the exporter takes from a run's current timeline."""
    state = MetricState(config.run_id, config.ranks, config.total_steps)
    for event in read_events(config.directory.events):
        state.add(event)
    return [(one.name, dict(zip(RUN[one.name].labels, one.labels, strict=True)), one.value) for one in state.samples()]


def _first_fired(wanted: Sequence[Alert], sampled: Sequence[Sample], begun: float, span_s: float) -> dict[str, float]:
    """Return the time at which each alert first fires, within `span_s` seconds after `begun`.

    The samples are assumed to stay constant.
    """
    active = {labels["run"] for name, labels, value in sampled if (name, value) == (ACTIVE, 1)}
    found: dict[str, float] = {}
    for one in wanted:
        if not isinstance(one.condition, Compared):  # burn rates need changes over time
            continue
        for name, labels, value in sampled:
            counts = one.condition.of.selects(name, labels) and (not one.condition.active or labels["run"] in active)
            fired = _fires(one.condition, one.for_s, value, begun, span_s) if counts else None
            if fired is not None:
                found[one.name] = min(fired, found.get(one.name, fired))
    return found


def _fires(condition: Compared, for_s: float, value: float, begun: float, span_s: float) -> float | None:
    since = None
    for number in range(1, int(span_s / EVALUATION_S) + 1):
        time = begun + number * EVALUATION_S
        since = (since or time) if condition.reached(value, time) else None
        if since is not None and time - since >= for_s:
            return time
    return None
