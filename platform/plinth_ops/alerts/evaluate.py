"""Alerts over sampled series, in the states that Prometheus would give them.

    evaluate(alerts, series, now)                  what is pending or fires at a time
    first_fired(alerts, series, begin, end)       when each alert fired first
    replay(alerts, series, begin, end)             the states at every evaluation

An alert whose condition holds is pending until it has held for `for_s` at every evaluation, then it fires. Series are
only read: what is not in them before `begin` counts as no history.

Does not belong here: what is sampled (metrics/), whom an alert reaches (alertmanager).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from plinth.records import Frozen
from plinth_ops.alerts.conditions import ALERTS, Labels, SampledSeries, Unanswered
from plinth_ops.alerts.table import EVALUATION_S, Alert

_Key: TypeAlias = tuple[str, Labels]


class AlertState(Frozen):
    """An alert whose condition holds for some labels.

    Attributes:
        since: Unix seconds of the first evaluation from which on it has held.
        value: of the expression now.
    """

    alert: str
    severity: str
    owner: str
    labels: Mapping[str, str]
    state: Literal["pending", "firing"]
    since: float
    value: float


def evaluate(
    alerts: Sequence[Alert], series: SampledSeries, now: float, interval_s: float = EVALUATION_S
) -> list[AlertState]:
    """Alerts that are pending or fire at a time; all others are inactive.

    Args:
        now: Unix seconds.
        interval_s: between evaluations; `now` is one of them.
    """
    reach = max((one.for_s for one in alerts), default=0.0)
    reach += max((one.for_s for one in alerts if not isinstance(one.condition, Unanswered)), default=0.0)
    begin = now - (int(reach // interval_s) + 1) * interval_s
    return list(replay(alerts, series, begin, now, interval_s))[-1][1]


def first_fired(
    alerts: Sequence[Alert], series: SampledSeries, begin: float, end: float, interval_s: float = EVALUATION_S
) -> dict[str, float]:
    """The first evaluation from `begin` to `end` (Unix seconds) at which each alert fired, for any labels."""
    found: dict[str, float] = {}
    for time, states in replay(alerts, series, begin, end, interval_s):
        for one in states:
            if one.state == "firing":
                found.setdefault(one.alert, time)
    return found


def replay(
    alerts: Sequence[Alert], series: SampledSeries, begin: float, end: float, interval_s: float = EVALUATION_S
) -> Iterator[tuple[float, list[AlertState]]]:
    """The states at every evaluation from `begin` to `end`, `end` among them where it is a multiple away."""
    ordered = sorted(alerts, key=lambda one: isinstance(one.condition, Unanswered))
    active: dict[_Key, float] = {}
    for number in range(int((end - begin) / interval_s + 1e-6) + 1):
        time = begin + number * interval_s
        states, active = _evaluated(ordered, series, time, active)
        yield time, states


def _evaluated(
    alerts: Sequence[Alert], series: SampledSeries, time: float, before: Mapping[_Key, float]
) -> tuple[list[AlertState], dict[_Key, float]]:
    """The states now, and since when each alert has held."""
    since: dict[_Key, float] = {}
    states: list[AlertState] = []
    for one in alerts:
        over = _fired(states, time) if isinstance(one.condition, Unanswered) else series
        for labels, value in one.condition.vector(over, time).items():
            own = {**dict(labels), **one.labels}
            key = one.name, tuple(sorted(own.items()))
            since[key] = before.get(key, time)
            states.append(
                AlertState(
                    alert=one.name,
                    severity=one.severity,
                    owner=own.get("owner", one.owner),
                    labels=own,
                    state="firing" if time - since[key] >= one.for_s else "pending",
                    since=since[key],
                    value=value,
                )
            )
    return states, since


def _fired(states: Sequence[AlertState], time: float) -> SampledSeries:
    """The series `ALERTS` of what fires at this evaluation."""
    found = SampledSeries()
    for one in states:
        if one.state == "firing":
            own = {"alertname": one.alert, "alertstate": "firing", "severity": one.severity, "owner": one.owner}
            found.add(ALERTS, {**one.labels, **own}, time, 1.0)
    return found
