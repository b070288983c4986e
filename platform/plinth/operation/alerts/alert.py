"""The record of an alert, and the checks of a table of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from plinth.errors import CheckFailedError
from plinth.operation.alerts.conditions import Age, BurnRate, Condition
from plinth.records import Frozen

#: Seconds between two readings of an exporter, and between two evaluations of all rules.
SCRAPE_S: Final = 15.0
EVALUATION_S: Final = 15.0

Severity = Literal["page", "ticket", "escalation"]


class Alert(Frozen):
    """One alert.

    Attributes:
        severity: `page` wakes somebody, `ticket` waits for working hours, `escalation` goes to whoever is next.
        owner: the team that it goes to.
        for_s: seconds for which the condition has to hold.
        promised_s: seconds from what it is about until it fires, at most.
        summary: one sentence; `{{ $labels.run }}` is filled in.
        labels: further ones, beside those of the condition.
        runbook: stem of its page in docs/runbooks/.
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
    """What is wrong with a table of alerts, by the names of those concerned.

    Args:
        runbooks: stems of the pages that exist.
    """
    return [problem for one in alerts for problem in (*_dead(one), *_unlinked(one, runbooks), *_late(one))]


def require_sound(alerts: Sequence[Alert], runbooks: Collection[str]) -> None:
    """Pass only a table whose every alert can fire, in time, and has its page.

    Raises:
        CheckFailedError: with every problem.
    """
    if found := problems(alerts, runbooks):
        raise CheckFailedError(
            "the table of alerts does not hold",
            found="; ".join(found),
            expected="alerts that can fire, each with its runbook",
            remedy="change the objective, its window_days (objectives.yaml) or the alert; see docs/alerts.md",
        )


def pages(folder: Path) -> set[str]:
    """Stems of the runbooks in a folder."""
    return {path.stem for path in folder.glob("*.md")}


def _dead(one: Alert) -> Iterable[str]:
    if isinstance(one.condition, BurnRate):
        for pair in one.condition.windows:
            if one.condition.threshold(pair) >= 1:
                factor, bad = pair.factor(one.condition.period_s), 1 - one.condition.objective
                yield (
                    f"{one.name} can never fire: {factor:.4g} times {bad:.4g} of bad seconds is "
                    f"{one.condition.threshold(pair):.4g}, and no more than all can be bad"
                )


def _unlinked(one: Alert, runbooks: Collection[str]) -> Iterable[str]:
    if one.runbook not in runbooks:
        yield f"{one.name} has no runbook docs/runbooks/{one.runbook}.md"


def _late(one: Alert) -> Iterable[str]:
    waits = one.for_s + SCRAPE_S + 2 * EVALUATION_S
    if isinstance(one.condition, Age) and one.condition.comparison in (">", ">="):
        waits += max(0.0, one.condition.limit)
    if one.promised_s < waits:
        yield f"{one.name} is promised within {one.promised_s:g} s and cannot fire before {waits:g} s"
