"""Whether the right alert fires in time: the timeline as the exporter samples it, judged by the table of alerts.

    fired(config, names, trace)    -> the first of the alerts that fires, and after how many seconds
    no_page(config)                -> nobody is woken

What is sampled is the timeline as it stands when this is called: call it before anybody mends what has failed. The
alerts of game days compare one sample with a limit, which needs no Prometheus; changes over time are not judged here.

Does not belong here: the alerts and their promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plinth.training.config import RunConfig
from plinth.training.sinks.run_metrics import RUN, MetricState
from plinth.training.telemetry.timeline import read_events
from plinth_ops.alerts.conditions import ACTIVE, Compared
from plinth_ops.alerts.table import EVALUATION_S, Alert, alerts
from plinth_ops.gamedays.gameday import Outcome

#: Metric, labels, value.
Sample = tuple[str, dict[str, str], float]

#: Findings about an alert, and after how many seconds it fired.
Alerted = tuple[list[Outcome], float | None]

#: Seconds by which an event lies ahead before `ClockAhead` fires.
AHEAD_S = 120.0

#: Seconds for which nobody may be woken by what the platform mends itself.
QUIET_S = 1800.0


def fired(config: RunConfig, names: Sequence[str], trace: str, more: Iterable[Sample] = ()) -> Alerted:
    """Whether one of some alerts fires within its promise after the newest event of a kind; and after how long.

    Args:
        trace: the kind of event; where there is none, the last event.
        more: measured samples that do not come from the timeline.
    """
    times = {str(event["event"]): float(event["time"]) for event in read_events(config.directory.events)}
    return fires(names, times.get(trace, max(times.values(), default=0.0)), [*samples(config), *more])


def fires(names: Sequence[str], begun: float, sampled: Sequence[Sample]) -> Alerted:
    """Whether one of some alerts fires within its promise after a time (Unix seconds), over samples that stay."""
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
    """Whether nothing that the timeline says wakes anybody."""
    pages = [one for one in alerts() if one.severity == "page"]
    begun = max((float(event["time"]) for event in read_events(config.directory.events)), default=0.0)
    first = _first_fired(pages, samples(config), begun, QUIET_S)
    return [Outcome(what="nobody is woken", passed=not first, seen=", ".join(sorted(first)) or "no page")]


def samples(config: RunConfig) -> list[Sample]:
    """What the exporter shows of a run's timeline as it stands."""
    state = MetricState(config.run_id, config.ranks, config.total_steps)
    for event in read_events(config.directory.events):
        state.add(event)
    return [(one.name, dict(zip(RUN[one.name].labels, one.labels, strict=True)), one.value) for one in state.samples()]


def _first_fired(wanted: Sequence[Alert], sampled: Sequence[Sample], begun: float, span_s: float) -> dict[str, float]:
    """Time at which each alert fires first. The samples are read as late as a scrape may be, then stay as they are."""
    active = {labels["run"] for name, labels, value in sampled if (name, value) == (ACTIVE, 1)}
    found: dict[str, float] = {}
    for one in wanted:
        if not isinstance(one.condition, Compared):  # nothing burns where nothing changes
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
