"""Recorded series of every alert: nothing, then what it is about, then nothing again; and promtool over them."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from plinth_ops.alerts.conditions import duration
from plinth_ops.alerts.prometheus import rules
from plinth_ops.alerts.table import Alert

Curve = Callable[[float], float | None]


class Recording(NamedTuple):
    """Series by (metric, labels), sampled at 0, `interval_s`, … `end_s`; fires from `fires` until `clears`."""

    alert: str
    series: Sequence[tuple[str, Mapping[str, str], Curve]]
    fires: float
    clears: float
    end_s: float
    labels: Mapping[str, str]  # of the alert that fires, without its own
    interval_s: float = 15.0

    @property
    def times(self) -> list[float]:
        return [number * self.interval_s for number in range(int(self.end_s / self.interval_s) + 1)]

    def firing(self, time: float) -> bool:
        return self.fires <= time < self.clears


def constant(value: float) -> Curve:
    return lambda time: value


def between(first: float, last: float, inside: float | None, outside: float | None) -> Curve:
    """A value inside a stretch of time, first and last included, and another outside."""
    return lambda time: inside if first <= time <= last else outside


def _since(begin: float, value: float) -> Curve:
    """No series before."""
    return lambda time: value if time >= begin else None


def _growing(stretches: Sequence[tuple[float, float]], start: float = 0.0) -> Curve:
    """Grows at a rate from a time on: (time, rate) in order."""

    def value(time: float) -> float:
        total = start
        for (begin, rate), (end, _) in zip(stretches, [*stretches[1:], (float("inf"), 0.0)], strict=True):
            total += rate * max(0.0, min(time, end) - begin)
        return total

    return value


RUN = {"run": "r1"}
_ACTIVE = ("plinth_run_active", RUN, constant(1))


def _event(alert: str, kind: str) -> Recording:
    """Something happened at 60 s."""
    series = [("plinth_event_timestamp_seconds", {**RUN, "kind": kind}, _since(60, 60))]
    return Recording(alert, series, 60, 960, 1200, {**RUN, "kind": kind})


def _level(
    alert: str,
    metric: str,
    labels: Mapping[str, str],
    bad: float,
    good: float,
    for_s: float = 0.0,
    active: bool = False,
) -> Recording:
    """Bad from 60 s until `for_s` and five minutes later."""
    last = 60 + for_s + 300
    series = [(metric, labels, between(60, last, bad, good)), *([_ACTIVE] if active else [])]
    return Recording(alert, series, 60 + for_s, last + 15, last + 120, labels)


def _old(alert: str, metric: str, labels: Mapping[str, str], limit: float, for_s: float = 0.0) -> Recording:
    """The last statement is `limit` seconds old at 60 s and is repeated at 600 s."""
    series = [(metric, labels, lambda time: 60 - limit if time < 600 else time)]
    return Recording(alert, series, 75 + for_s, 600, 900, labels)


def _burn(alert: str, bad: float, hours: float, interval_s: float, fires: float, clears: float) -> Recording:
    """All well, a stretch from 3,600 s in which a share of the seconds is bad, and all well again; eight ranks."""
    quiet, end = 3600.0, 3600.0 * (2 * hours + 2)
    rates = [(0.0, 8.0), (quiet, 8.0 * (1 - bad)), (quiet + 3600 * hours, 8.0)]
    series = [
        ("plinth_held_rank_seconds", RUN, _growing([(0.0, 8.0)])),
        ("plinth_goodput_rank_seconds", {**RUN, "cause": "goodput"}, _growing(rates)),
        ("plinth_goodput_rank_seconds", {**RUN, "cause": "input"}, constant(5.0)),
    ]
    return Recording(alert, series, fires, clears, end, {}, interval_s)


RECORDINGS: Sequence[Recording] = (
    _level("JobFailed", "plinth_run_failed", RUN, 1, 0),
    Recording(
        "RunSilent",
        [_ACTIVE, ("plinth_last_event_timestamp_seconds", RUN, lambda t: 60 - 1800 if t < 600 else t)],
        75, 600, 900, RUN,
    ),
    Recording(
        "CheckpointStale",
        [_ACTIVE, ("plinth_checkpoint_timestamp_seconds", RUN, lambda t: 60 - 3600 if t < 600 else 600.0)],
        135, 600, 900, RUN,
    ),
    Recording(
        "RestartsRepeat",
        [("plinth_events_total", {**RUN, "kind": "restart"}, lambda t: sum(t >= at for at in (300, 600, 900)))],
        900, 3900, 4500, {**RUN, "kind": "restart"},
    ),
    _event("RunRestarted", "restart"),
    _event("RankFailed", "rank_failed"),
    _event("RunHung", "hang"),
    _event("GuardActed", "intervention"),
    _event("CheckpointRefused", "refused"),
    _event("SaveFailed", "save_failed"),
    _event("UploadFailed", "upload_failed"),
    _event("DeviceError", "device_error"),
    _event("NodeLost", "node_replaced"),
    _event("JobKilled", "vanished"),
    _event("AllowanceSpent", "allowance_spent"),
    _event("UpgradeRefused", "upgrade_refused"),
    _event("ForecastMissed", "forecast_missed"),
    _level("InputSlow", "plinth_data_wait_ratio", RUN, 0.25, 0.2, 900, active=True),
    _level("RankSlow", "plinth_slowest_rank_score", RUN, 0.7, 0.75, 900, active=True),
    Recording(
        "HeldOutRises",
        [("plinth_heldout_bits_per_byte", {**RUN, "slice": "web"}, lambda t: 1.0 if t < 1800 else 1.1)],
        1800, 1800 + 6 * 3600, 8 * 3600, {**RUN, "slice": "web"}, 60,
    ),
    Recording(
        "ClockAhead",
        [("plinth_last_event_timestamp_seconds", RUN, lambda t: t + 600 if t >= 60 else t)],
        60, math.inf, 600, RUN,
    ),
    # 67.2% of an hour are bad after 58 of its minutes; five minutes are clean soon after
    _burn("GoodputBurnsFast", 0.70, 2, 60, 7080, 10860),
    _burn("GoodputBurnsSlowly", 0.30, 30, 300, 5400, 126600),
    _level("ErrorBudgetSpent", "plinth_error_budget_spent_ratio", {"indicator": "goodput"}, 1.0, 0.99),
    Recording(
        "BudgetNearlySpent",
        [
            ("plinth_budget_limit", {"scope": "team", "name": "t", "period": "month"}, constant(100)),
            ("plinth_budget_used", {"scope": "team", "name": "t", "period": "month"}, between(60, 300, 95, 90)),
        ],
        60, 315, 600, {"scope": "team", "name": "t", "period": "month"},
    ),
    Recording(
        "PipelineFailed",
        [("plinth_alarm_timestamp_seconds", {"source": "pipeline"}, _since(60, 60))],
        60, 3660, 4200, {"source": "pipeline"}, 60,
    ),
    _level("TrustBroken", "plinth_trust_broken", {}, 1, 0),
    Recording(
        "ReleaseAlarm",
        [("plinth_alarm_timestamp_seconds", {"source": "release"}, _since(60, 60))],
        60, 3660, 4200, {"source": "release"}, 60,
    ),
    _level("ChampionTainted", "plinth_champion_tainted", {"model": "m"}, 1, 0),
    _old("CanaryUndecided", "plinth_canary_timestamp_seconds", {"model": "m"}, 14 * 86400),
    _old("ExporterStale", "plinth_exporter_timestamp_seconds", {}, 120),
    _level("CollectorFails", "plinth_collector_up", {"part": "budget"}, 0, 1, 300),
    _old("OrchestratorSilent", "plinth_orchestrator_timestamp_seconds", {}, 300),
    _level("DiskNearlyFull", "plinth_workspace_free_ratio", {}, 0.04, 0.05, 60),
    Recording(
        "MetricAbsent",
        [("plinth_trust_broken", {}, between(600, 1500, None, 0.0))],
        585 + 300 + 15 + 600, 1515, 1800, {},
    ),
    Recording(
        "MetricAbsent",
        [_ACTIVE, ("plinth_last_event_timestamp_seconds", RUN, between(600, 5400, None, 0.0))],
        585 + 300 + 15 + 3600, 5415, 6000, RUN,
    ),
    Recording(
        "PageUnanswered",
        [("plinth_run_failed", RUN, between(60, 2400, 1, 0))],
        1860, 2415, 2700, {**RUN, "owner": "training"},
    ),
)  # fmt: skip


def concerned(recording: Recording, alerts: Sequence[Alert]) -> list[Alert]:
    """The alerts that a recording is about; of those of absent metrics the one whose metric it has."""
    if recording.alert == "MetricAbsent":
        names = {metric for metric, _, _ in recording.series}
        return [one for one in alerts if one.labels.get("metric") in names]
    wanted = {recording.alert, *({"JobFailed"} if recording.alert == "PageUnanswered" else set())}
    return [one for one in alerts if one.name in wanted]


#: By time and name of an alert, the labels of the condition for each time that it fires.
Firing = Mapping[float, Mapping[str, Sequence[Mapping[str, str]]]]
#: A recording, the alerts that read it, and which of them fire.
Expected = tuple[Recording, Sequence[Alert], Firing]


def whole(recording: Recording, alerts: Sequence[Alert]) -> Expected:
    """Return a recording with the expected state of its alert at every evaluation."""
    fires = {time: [recording.labels] if recording.firing(time) else [] for time in recording.times}
    return recording, concerned(recording, alerts), {time: {recording.alert: now} for time, now in fires.items()}


def promtool(folder: Path, tests: Iterable[Expected]) -> str:
    """Run `promtool test rules`: exactly these must fire of these alerts at these times. Returns what it prints."""
    files = []
    for number, (recording, alerts, expected) in enumerate(tests):
        made = rules(alerts)
        (group,) = made["groups"]
        group["interval"] = duration(recording.interval_s)
        for rule in group["rules"]:
            del rule["annotations"]
        (folder / f"rules-{number}.yaml").write_text(yaml.safe_dump(made))
        files.append(folder / f"test-{number}.yaml")
        files[-1].write_text(yaml.safe_dump(_test(f"rules-{number}.yaml", recording, group["rules"], expected)))
    done = subprocess.run(["promtool", "test", "rules", *map(str, files)], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _test(rule_file: str, recording: Recording, ruled: Sequence[Mapping[str, Any]], expected: Firing) -> dict[str, Any]:
    interval = duration(recording.interval_s)
    own = {rule["alert"]: rule["labels"] for rule in ruled}
    series = [
        {
            "series": metric + "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}",
            "values": " ".join("_" if value is None else repr(float(value)) for value in map(curve, recording.times)),
        }
        for metric, labels, curve in recording.series
    ]
    asked = [
        {
            "eval_time": f"{int(time)}s",
            "alertname": name,
            "exp_alerts": [{"exp_labels": {**labels, **own[name]}} for labels in firing],
        }
        for time, names in expected.items()
        for name, firing in names.items()
    ]
    return {
        "rule_files": [rule_file],
        "evaluation_interval": interval,
        "tests": [{"interval": interval, "input_series": series, "alert_rule_test": asked}],
    }
