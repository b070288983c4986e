"""The alert table. Rules and routes are generated from the table, and each alert has a runbook.

    alerts(objectives)   all alerts, including those for absent metrics
    require_sound        reject a table with an alert that cannot fire in time or has no runbook

A page is for a problem that gets worse until a person acts; a ticket can wait for working hours. A problem that the
platform repairs itself (a restart, a rollback) is a ticket. Response targets include the time of the metrics scrape and
of the rule evaluation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from plinth.errors import CheckFailedError
from plinth.records import Frozen
from plinth.training.predicted_curve import MISSED
from plinth.training.upgrade.record import REFUSED
from plinth_ops.alerts.conditions import (
    Age,
    BurnRate,
    BurnWindow,
    Compared,
    Comparison,
    Condition,
    Missing,
    Ratio,
    Rise,
    SeriesSelector,
    Threshold,
    Unanswered,
    metrics_of,
)
from plinth_ops.metrics.table import METRICS
from plinth_ops.service_levels.tallies import Objectives

#: Scrape interval of the exporter and evaluation interval of the rules, in seconds.
SCRAPE_S: Final = 15.0
EVALUATION_S: Final = 15.0

Severity = Literal["page", "ticket", "escalation"]


class Alert(Frozen):
    """Definition of one alert.

    Attributes:
        severity: `page` wakes a person, `ticket` waits for working hours, `escalation` goes to the next receiver.
        owner: team that receives the alert.
        for_s: seconds for which the condition must be true.
        promised_s: response target, the maximum seconds from the event until the alert fires.
        summary: one sentence; Prometheus fills in `{{ $labels.run }}`.
        labels: labels that are added to the labels of the condition.
        runbook: file stem of the page in docs/runbooks/.
    """

    name: str = Field(pattern=r"^[A-Z][A-Za-z]+$")
    condition: Condition
    severity: Severity
    owner: str
    for_s: float = Field(0.0, ge=0)
    promised_s: float = Field(gt=0)
    summary: str
    runbook: str
    labels: Mapping[str, str] = {}


def problems(alerts: Sequence[Alert], runbooks: Collection[str]) -> list[str]:
    """Return the problems of an alert table as sentences. Each sentence names its alert.

    Args:
        runbooks: file stems of the existing runbooks.
    """
    return [problem for one in alerts for problem in (*_dead(one), *_unlinked(one, runbooks), *_late(one))]


def require_sound(alerts: Sequence[Alert], runbooks: Collection[str]) -> None:
    """Reject a table with an alert that cannot fire, fires too late or has no runbook.

    Raises:
        CheckFailedError: the table has problems; the error lists all of them.
    """
    if found := problems(alerts, runbooks):
        raise CheckFailedError(
            "the alert table has errors",
            found="; ".join(found),
            expected="alerts that can fire in time, each with a runbook",
            remedy="change the objective or its window_days in objectives.yaml, or the alert; see docs/alerts.md",
        )


def pages(folder: Path) -> set[str]:
    """Return the file stems of the runbooks in a folder."""
    return {path.stem for path in folder.glob("*.md")}


def _dead(one: Alert) -> Iterable[str]:
    if isinstance(one.condition, BurnRate):
        for pair in one.condition.windows:
            if one.condition.threshold(pair) >= 1:
                factor, bad = pair.factor(one.condition.period_s), 1 - one.condition.objective
                yield (
                    f"{one.name} can never fire: burn rate {factor:.3g} × error budget {bad:.3g} gives a bad share of "
                    f"{one.condition.threshold(pair):.3g}, and a share cannot exceed 1"
                )


def _unlinked(one: Alert, runbooks: Collection[str]) -> Iterable[str]:
    if one.runbook not in runbooks:
        yield f"{one.name}: the runbook docs/runbooks/{one.runbook}.md does not exist"


def _late(one: Alert) -> Iterable[str]:
    waits = one.for_s + SCRAPE_S + 2 * EVALUATION_S
    if isinstance(one.condition, Age) and one.condition.comparison in (">", ">="):
        waits += max(0.0, one.condition.limit)
    if one.promised_s < waits:
        yield f"{one.name}: the response target is {one.promised_s:g} s, but the alert cannot fire before {waits:g} s"


_HOUR, _DAY = 3600.0, 86400.0

#: Windows of the two burn-rate alerts, with the share of the error budget that may be spent in the long one.
#: The usual 2% in an hour is a burn rate of 13.4 over 28 days, which an objective of 90% can never reach: its highest
#: burn rate is 10. 1% in an hour is 6.7.
PAGE_WINDOWS: Final = (
    BurnWindow(long_s=_HOUR, short_s=300.0, share=0.01),
    BurnWindow(long_s=6 * _HOUR, short_s=1800.0, share=0.05),
)
TICKET_WINDOWS: Final = (
    BurnWindow(long_s=_DAY, short_s=2 * _HOUR, share=0.10),
    BurnWindow(long_s=3 * _DAY, short_s=6 * _HOUR, share=0.10),
)

#: Seconds for which an event keeps its alert firing.
RECENT_S: Final = 900.0

#: Maximum delay from an event to its alert: exporter refresh, scrape, evaluation.
_SEEN_S: Final = 15.0 + SCRAPE_S + 2 * EVALUATION_S


def alerts(objectives: Objectives | None = None) -> tuple[Alert, ...]:
    """Return all alerts for a workspace's objectives."""
    wanted = objectives or Objectives()
    own = (*_runs(wanted), *_service(wanted), *_corpus(), *_release(), *_platform())
    return (*own, *_absent(own), _escalation())


def _alert(
    name: str,
    severity: Severity,
    owner: str,
    condition: Condition,
    summary: str,
    for_s: float = 0.0,
    promised_s: float = 0.0,
    **labels: str,
) -> Alert:
    waited = condition.limit if isinstance(condition, Age) and condition.comparison in (">", ">=") else 0.0
    return Alert(
        name=name,
        condition=condition,
        severity=severity,
        owner=owner,
        for_s=for_s,
        promised_s=promised_s or _SEEN_S + for_s + waited,
        summary=summary,
        runbook=_stem(name),
        labels=labels,
    )


def _stem(name: str) -> str:
    """Convert an alert name such as `JobFailed` to a runbook's file stem, `job-failed`."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("-")


def _level(metric: str, comparison: Comparison, limit: float, active: bool = False, **where: str) -> Compared:
    return Threshold(of=SeriesSelector(metric=metric, where=where), comparison=comparison, limit=limit, active=active)


def _age(metric: str, comparison: Comparison, limit: float, active: bool = False, **where: str) -> Compared:
    return Age(of=SeriesSelector(metric=metric, where=where), comparison=comparison, limit=limit, active=active)


def _recent(kind: str) -> Compared:
    """Return the condition that an event of this kind happened in the last `RECENT_S` seconds."""
    return _age("plinth_event_timestamp_seconds", "<", RECENT_S, kind=kind)


def _runs(wanted: Objectives) -> Iterator[Alert]:
    run = "Run {{ $labels.run }}"
    yield _alert(
        "JobFailed", "page", "training", _level("plinth_run_failed", "==", 1),
        f"{run}: the job failed or was killed and does not restart.",
    )  # fmt: skip
    yield _alert(
        "RunSilent", "page", "training", _age("plinth_last_event_timestamp_seconds", ">", 1800, active=True),
        f"{run} is active but has written no event for 30 minutes.",
    )  # fmt: skip
    yield _alert(
        "CheckpointStale", "page", "training",
        _age("plinth_checkpoint_timestamp_seconds", ">", wanted.checkpoint_age_s, active=True),
        f"{run}: the newest checkpoint is older than the objective allows.", for_s=60,
    )  # fmt: skip
    restarted = SeriesSelector(metric="plinth_events_total", where={"kind": "restart"})
    restarts = Rise(of=restarted, comparison=">", limit=2.5, window_s=_HOUR)
    yield _alert(
        "RestartsRepeat", "page", "training", restarts, f"{run} restarted at least three times within an hour."
    )
    happened = {
        "RunRestarted": ("restart", "was restarted by its supervisor"),
        "RankFailed": ("rank_failed", "lost a rank to a classified failure"),
        "RunHung": ("hang", "hung, so its ranks were stopped"),
        "GuardActed": ("intervention", "had a step in which the guard intervened"),
        "CheckpointRefused": ("refused", "rejected a checkpoint that differs from its record"),
        "SaveFailed": ("save_failed", "could not write a checkpoint"),
        "UploadFailed": ("upload_failed", "could not copy a checkpoint to its bucket"),
        "DeviceError": ("device_error", "had a GPU error"),
        "NodeLost": ("node_replaced", "lost a node, and a spare took its place"),
        "JobKilled": ("vanished", "lost its supervisor, which was killed"),
        "AllowanceSpent": ("allowance_spent", "was stopped, because its granted budget is spent"),
        "UpgradeRefused": (REFUSED, "keeps its code, because the new code does not repeat its steps"),
        "ForecastMissed": (MISSED, "has a loss outside the band of its launch contract"),
    }
    for name, (kind, what) in happened.items():
        yield _alert(name, "ticket", "training", _recent(kind), f"{run} {what}.")
    yield _alert(
        "InputSlow", "ticket", "training", _level("plinth_data_wait_ratio", ">", 0.2, active=True),
        f"{run} spends more than 20% of its step time on waiting for data.", for_s=900,
    )  # fmt: skip
    yield _alert(
        "RankSlow", "ticket", "training", _level("plinth_slowest_rank_score", "<", 0.75, active=True),
        f"{run}: the slowest rank has less than 75% of the speed of the others.", for_s=900,
    )  # fmt: skip
    heldout = SeriesSelector(metric="plinth_heldout_bits_per_byte")
    rising = Rise(of=heldout, comparison=">", limit=0.05, window_s=6 * _HOUR)
    yield _alert(
        "HeldOutRises", "ticket", "training", rising,
        f"{run}: held-out bits per byte on {{{{ $labels.slice }}}} rose by more than 0.05 in six hours.",
    )  # fmt: skip
    yield _alert(
        "ClockAhead", "ticket", "platform", _age("plinth_last_event_timestamp_seconds", "<", -60),
        f"{run} writes events with timestamps in the future: a clock has jumped.",
    )  # fmt: skip


def _service(wanted: Objectives) -> Iterator[Alert]:
    period = wanted.window_days * _DAY
    good = SeriesSelector(metric="plinth_goodput_rank_seconds", where={"cause": "goodput"})
    total = SeriesSelector(metric="plinth_held_rank_seconds")
    burning: tuple[tuple[str, Severity, tuple[BurnWindow, ...]], ...] = (
        ("GoodputBurnsFast", "page", PAGE_WINDOWS),
        ("GoodputBurnsSlowly", "ticket", TICKET_WINDOWS),
    )
    for name, severity, windows in burning:
        burn = BurnRate(
            good=good, total=total, objective=wanted.goodput, period_s=period, windows=windows,
            least=wanted.minimum_s("goodput"),
        )  # fmt: skip
        slowest = max(pair.long_s for pair in windows)
        yield _alert(
            name, severity, "training", burn,
            "Allocated ranks do not train: the goodput error budget burns too fast.",
            promised_s=slowest + _SEEN_S,
        )  # fmt: skip
    yield _alert(
        "ErrorBudgetSpent", "ticket", "training", _level("plinth_error_budget_spent_ratio", ">=", 1),
        "The error budget of {{ $labels.indicator }} is exhausted.", promised_s=900,
    )  # fmt: skip
    used = Ratio(of=SeriesSelector(metric="plinth_budget_used"), whole=SeriesSelector(metric="plinth_budget_limit"),
                 on=("scope", "name", "period"), comparison=">", limit=0.9)  # fmt: skip
    yield _alert(
        "BudgetNearlySpent", "ticket", "finance", used,
        "More than 90% of the budget of {{ $labels.scope }} {{ $labels.name }} is spent or reserved.",
        promised_s=180,
    )  # fmt: skip


def _corpus() -> Iterator[Alert]:
    yield _alert(
        "PipelineFailed", "ticket", "corpus",
        _age("plinth_alarm_timestamp_seconds", "<", _HOUR, source="pipeline"),
        "A Dagster job failed; alerts.jsonl in the workspace has its name and error.",
    )  # fmt: skip


def _release() -> Iterator[Alert]:
    yield _alert(
        "TrustBroken", "page", "release", _level("plinth_trust_broken", "==", 1),
        "The signed release history failed verification: promotions are blocked.", promised_s=180,
    )  # fmt: skip
    yield _alert(
        "ReleaseAlarm", "page", "release", _age("plinth_alarm_timestamp_seconds", "<", _HOUR, source="release"),
        "A release was tainted or withdrawn, or differs from its signed history; alerts.jsonl has the reason.",
    )  # fmt: skip
    yield _alert(
        "ChampionTainted", "page", "release", _level("plinth_champion_tainted", "==", 1),
        "The champion of {{ $labels.model }} is derived from a tainted artifact.", promised_s=180,
    )  # fmt: skip
    yield _alert(
        "CanaryUndecided", "ticket", "release", _age("plinth_canary_timestamp_seconds", ">", 14 * _DAY),
        "The canary of {{ $labels.model }} has been undecided for more than two weeks.", promised_s=14 * _DAY + 180,
    )  # fmt: skip


def _platform() -> Iterator[Alert]:
    yield _alert(
        "ExporterStale", "page", "platform", _age("plinth_exporter_timestamp_seconds", ">", 120),
        "The exporter serves stale metrics: other alerts may be wrong.",
    )  # fmt: skip
    yield _alert(
        "CollectorFails", "ticket", "platform", _level("plinth_collector_up", "==", 0),
        "The exporter cannot collect the metrics of {{ $labels.part }}.", for_s=300, promised_s=900,
    )  # fmt: skip
    yield _alert(
        "OrchestratorSilent", "ticket", "platform", _age("plinth_orchestrator_timestamp_seconds", ">", 300),
        "No Dagster sensor has run for five minutes: schedules, approvals and notifications are stopped.",
    )  # fmt: skip
    yield _alert(
        "DiskNearlyFull", "page", "platform", _level("plinth_workspace_free_ratio", "<", 0.05),
        "The workspace disk has less than 5% free space.", for_s=60,
    )  # fmt: skip


def _absent(own: Sequence[Alert]) -> Iterator[Alert]:
    """Yield an alert on the absence of each metric that another alert reads.

    Some metrics do not always have a time series. For these, an alert watches the exporter part that collects the
    metric.
    """
    read = [METRICS[name] for name in metrics_of([one.condition for one in own])]
    for metric in read:
        if metric.presence != "sometimes":
            active = metric.presence == "active"
            yield _alert(
                "MetricAbsent", "ticket", "platform", Missing(of=SeriesSelector(metric=metric.name), active=active),
                f"The metric {metric.name} is absent: alerts on it cannot fire.", for_s=3600.0 if active else 600.0,
                metric=metric.name,
            )  # fmt: skip
    for part in sorted({metric.part for metric in read}):
        guarded = SeriesSelector(metric="plinth_collector_up", where={"part": part})
        yield _alert(
            "MetricAbsent", "ticket", "platform", Missing(of=guarded),
            f"The exporter does not collect {part}: alerts on its metrics cannot fire.", for_s=600.0, part=part,
        )  # fmt: skip


def _escalation() -> Alert:
    return _alert(
        "PageUnanswered", "escalation", "platform", Unanswered(severity="page"),
        "A page for {{ $labels.owner }} has fired for 30 minutes and is neither resolved nor silenced.", for_s=1800,
    )  # fmt: skip
