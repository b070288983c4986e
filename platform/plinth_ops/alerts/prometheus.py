"""Prometheus rules and Alertmanager configuration from the alert table, and silences through Alertmanager's API.

    rules(alerts)                 Prometheus rule file
    routing(workspace)            `alerting.yaml` of a workspace: webhook addresses by owner and severity
    configuration(alerts, routes) Alertmanager configuration
    silence(url, ...)             silence of a run, such as during a planned stop

Alerts are grouped by run and owner, so that one notification is about one run. A page about a run suppresses the
tickets about the same run. An alert about the exporter suppresses the alerts that it causes. An unacknowledged page
becomes an escalation (a separate alert, `PageUnanswered`), which goes to the next receiver.

Does not belong here: the alert definitions (table).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import yaml
from pydantic import Field

from plinth.errors import MissingError, RequestError
from plinth.operation.workspace_files import read_settings
from plinth.records import Frozen
from plinth.storage.workspace import Workspace
from plinth_ops.alerts.conditions import BurnRate, Unanswered, duration
from plinth_ops.alerts.table import EVALUATION_S, Alert, Severity

#: Name of the rule group.
GROUP: Final = "plinth"


def rules(alerts: Sequence[Alert], runbooks: str = "docs/runbooks") -> dict[str, Any]:
    """Return the Prometheus rule file as data. Escalations come last, because they read the alerts of earlier rules.

    Args:
        runbooks: URL or path of the runbook folder, without a trailing slash.
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
    """Return the data of a generated file as YAML, with a header comment."""
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


FILE: Final = "alerting.yaml"

#: Timeout for requests to Alertmanager, in seconds.
TIMEOUT_S: Final = 10.0

#: Alerts that follow from a failed job; `JobFailed` suppresses them.
_FOLLOWS: Final = "RunSilent|CheckpointStale|MetricAbsent|RestartsRepeat"


class Routing(Frozen):
    """Webhook addresses of notifications, and the intervals at which notifications are repeated."""

    default: str = Field(
        "", description="Webhook address for alerts whose owner and severity have no address in `owners`."
    )
    owners: Mapping[str, Mapping[Severity, str]] = Field(
        default_factory=dict, description="Webhook addresses by owner, then by severity (`page`, `ticket`)."
    )
    escalation: str = Field("", description="Webhook address for pages that stay unanswered for half an hour.")
    page_repeat: str = Field("1h", description="Interval at which a page that is still firing is sent again.")
    ticket_repeat: str = Field("1d", description="Interval at which a ticket that is still firing is sent again.")


def routing(workspace: Workspace) -> Routing:
    """Read the notification routes of a workspace.

    Raises:
        MissingError: there is no `alerting.yaml`.
        RequestError: `alerting.yaml` is invalid.
    """
    path = workspace.root / FILE
    if not path.exists():
        raise MissingError(f"{path} does not exist", remedy="write `default: ADDRESS` to the file, or set --webhook")
    return read_settings(path, Routing, "has no valid routes", "docs/alerts.md")


def configuration(alerts: Sequence[Alert], routes: Routing) -> dict[str, Any]:
    """Return the Alertmanager configuration as data.

    Raises:
        RequestError: an alert has no webhook address.
    """
    pairs: list[tuple[str, Severity]] = sorted(
        {(one.owner, one.severity) for one in alerts if one.severity != "escalation"}
    )
    pairs.append(("next", "escalation"))
    return {
        "route": {
            "receiver": _name(*pairs[0]),
            "group_by": ["run", "owner"],
            "group_wait": "15s",
            "group_interval": "1m",
            "routes": [
                {
                    "matchers": _matchers(owner, severity),
                    "receiver": _name(owner, severity),
                    "repeat_interval": routes.ticket_repeat if severity == "ticket" else routes.page_repeat,
                }
                for owner, severity in pairs
            ],
        },
        "receivers": [
            {
                "name": _name(owner, severity),
                "webhook_configs": [{"url": _address(routes, owner, severity), "send_resolved": True}],
            }
            for owner, severity in pairs
        ],
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="JobFailed"'],
                "target_matchers": [f'alertname=~"{_FOLLOWS}"'],
                "equal": ["run"],
            },
            {
                "source_matchers": ['alertname="ExporterStale"'],
                "target_matchers": ['alertname="MetricAbsent"'],
            },
        ],
    }


def silence(url: str, run: str, seconds: float, by: str, reason: str) -> str:
    """Silence notifications about a run from now on; return the ID of the silence.

    Args:
        url: Alertmanager's address.
        run: run ID.

    Raises:
        RequestError: Alertmanager rejects the request.
        MissingError: Alertmanager does not answer.
    """
    now = datetime.now(UTC).timestamp()
    body = {
        "matchers": [{"name": "run", "value": run, "isRegex": False, "isEqual": True}],
        "startsAt": _time(now),
        "endsAt": _time(now + seconds),
        "createdBy": by,
        "comment": reason,
    }
    return str(_asked("post", f"{url.rstrip('/')}/api/v2/silences", json=body)["silenceID"])


def silences(url: str) -> list[dict[str, Any]]:
    """Return Alertmanager's active and pending silences.

    Raises the same errors as `silence`.
    """
    found: list[dict[str, Any]] = _asked("get", f"{url.rstrip('/')}/api/v2/silences")
    return [one for one in found if one["status"]["state"] != "expired"]


def end_silence(url: str, number: str) -> None:
    """End a silence in Alertmanager.

    Args:
        number: ID of the silence.

    Raises the same errors as `silence`.
    """
    _asked("delete", f"{url.rstrip('/')}/api/v2/silence/{number}")


def _asked(method: str, url: str, **more: Any) -> Any:
    import requests

    try:
        answer = requests.request(method, url, timeout=TIMEOUT_S, allow_redirects=False, **more)
    except requests.RequestException as error:
        found = type(error).__name__
        raise MissingError(
            f"{url} does not answer", found=found, remedy="set --url to the address of Alertmanager"
        ) from error
    if not answer.ok:
        raise RequestError(f"{url} rejected the request", found=f"status {answer.status_code}: {answer.text[:500]}")
    return answer.json() if answer.content else None


def _matchers(owner: str, severity: str) -> list[str]:
    whose = [] if severity == "escalation" else [f'owner="{owner}"']
    return [*whose, f'severity="{severity}"']


def _name(owner: str, severity: str) -> str:
    return f"{owner}-{severity}"


def _address(routes: Routing, owner: str, severity: Severity) -> str:
    named = routes.escalation if severity == "escalation" else routes.owners.get(owner, {}).get(severity, "")
    if not (found := named or routes.default):
        raise RequestError(
            f"no address for {severity} alerts of owner {owner}",
            expected=f"`default` or owners.{owner}.{severity} in {FILE}",
        )
    return found


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
