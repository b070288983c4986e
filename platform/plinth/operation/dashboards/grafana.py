"""Grafana's JSON of a dashboard (schema 38, Grafana 10 and later), two panels beside each other."""

from __future__ import annotations

from typing import Any, Final

from plinth.operation.dashboards.table import Dashboard, DashboardPanel

SCHEMA: Final = 38
#: Grafana's grid has 24 columns.
_WIDTH, _HEIGHT = 12, 8
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def dashboard(of: Dashboard) -> dict[str, Any]:
    """A dashboard as Grafana imports it; its source of data is chosen in it."""
    variables: list[dict[str, Any]] = [{"name": "source", "type": "datasource", "query": "prometheus"}]
    if of.by_run:
        variables.append(
            {
                "name": "run",
                "type": "query",
                "datasource": _SOURCE,
                "query": {"query": "label_values(plinth_run_active, run)", "refId": "run"},
                "refresh": 2,  # at every change of the time range
                "sort": 1,
            }
        )
    return {
        "uid": f"plinth-{of.name}",
        "title": of.title,
        "tags": ["plinth"],
        "schemaVersion": SCHEMA,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, one) for number, one in enumerate(of.panels)],
    }


def _panel(number: int, of: DashboardPanel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": of.kind,
        "title": of.title,
        "description": of.description,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": number % 2 * _WIDTH, "y": number // 2 * _HEIGHT},
        "fieldConfig": {"defaults": {"unit": of.unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": of.kind == "table",
                "range": of.kind != "table",
                "format": "table" if of.kind == "table" else "time_series",
            }
            for place, (query, legend) in enumerate(of.queries)
        ],
    }
