"""The rules of Prometheus, made from the table of alerts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import yaml

from plinth.operation.alerts.alert import EVALUATION_S, Alert
from plinth.operation.alerts.conditions import BurnRate, Unanswered, duration

#: Of the group of rules.
GROUP: Final = "plinth"


def rules(alerts: Sequence[Alert], runbooks: str = "docs/runbooks") -> dict[str, Any]:
    """A rule file of Prometheus as data. Escalations come last: they read what the rules before have made.

    Args:
        runbooks: address of the folder of the pages, without a slash at its end.
    """
    ordered = sorted(alerts, key=lambda one: isinstance(one.condition, Unanswered))
    return {
        "groups": [
            {
                "name": GROUP,
                "interval": duration(EVALUATION_S),
                "rules": [_rule(one, runbooks) for one in ordered],
            }
        ]
    }


def written(data: Any) -> str:
    """Data as YAML, as it is written into a file."""
    head = "# Written by `plinth ops alerts`; change the table of alerts instead.\n"
    return head + str(yaml.safe_dump(data, sort_keys=False, width=120, allow_unicode=True))


def _rule(one: Alert, runbooks: str) -> dict[str, Any]:
    whose = {} if isinstance(one.condition, Unanswered) else {"owner": one.owner}
    waits = {"for": duration(one.for_s)} if one.for_s else {}
    return {
        "alert": one.name,
        "expr": one.condition.expression,
        **waits,
        "labels": {"severity": one.severity, **whose, **one.labels},
        "annotations": {
            "summary": one.summary,
            "value": _shown(one),
            "runbook_url": f"{runbooks}/{one.runbook}.md",
            "promised": duration(one.promised_s),
        },
    }


def _shown(one: Alert) -> str:
    return "{{ $value | humanizePercentage }}" if isinstance(one.condition, BurnRate) else "{{ $value | humanize }}"


def names(alerts: Iterable[Alert]) -> list[str]:
    """Names of alerts, each once, in their order."""
    return list(dict.fromkeys(one.name for one in alerts))
