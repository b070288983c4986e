"""The table of what the guard did: acts that are alike in one row, with sources and documents of their windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plinth.report.run.formats import number
from plinth.report.run.metrics import Event
from plinth.text.plural import counted

DOCUMENTS_SHOWN, SOURCES_SHOWN = 3, 3


def interventions(events: Sequence[Event]) -> list[dict[str, Any]]:
    """A row for each act of the guard; of acts that are alike and follow each other, one."""
    named = {_act(event): event for event in events if event["event"] == "documents"}
    groups: list[list[Event]] = []
    for event in (event for event in events if event["event"] == "intervention"):
        if groups and _goes_on(groups[-1][-1], event):
            groups[-1].append(event)
        else:
            groups.append([event])
    return [_row(group, [named[_act(event)] for event in group if _act(event) in named]) for group in groups]


def _act(event: Event) -> tuple[Any, ...]:
    """What an intervention and the event that names its documents have in common."""
    return event.get("action"), event.get("rule"), event.get("number"), tuple(event.get("window") or ())


def _goes_on(before: Event, event: Event) -> bool:
    alike = all(before.get(name) == event.get(name) for name in ("rule", "action", "reason"))
    return alike and event.get("action") == "skip" and before["window"][1] + 1 == event["window"][0]


def _row(group: Sequence[Event], named: Sequence[Event]) -> dict[str, Any]:
    first, last = group[0], group[-1]
    window = sorted({*first.get("window", ())[:1], *last.get("window", ())[1:]})
    worst = max(group, key=lambda event: float(event.get("value") or 0.0))
    return {
        "step": _span([first.get("step", ""), last.get("step", "")]),
        "rule": first.get("rule", ""),
        "value": number(worst.get("value")),
        "threshold": number(worst.get("threshold")),
        "action": first.get("action", ""),
        "why": first.get("reason", ""),
        "weight": "" if first.get("action") == "warn" else "bad",
        "window": _span(window),
        "documents": _documents(named),
    }


def _span(values: Sequence[Any]) -> str:
    return "–".join(dict.fromkeys(map(str, values)))


def _documents(named: Sequence[Event]) -> str:
    """The sources that stand out in a window, by their share of its tokens, and some of the documents."""
    if not named:
        return ""
    unknown = next((event["unknown"] for event in named if "unknown" in event), None)
    if unknown is not None:
        return str(unknown)
    sources = [source for source in named[0].get("sources", ()) if source["share"] > source["share_before"]]
    shares = [
        f"{source['source']} ({source['bucket']}) {source['share']:.0%} of the tokens, "
        f"{source['share_before']:.0%} before"
        for source in sources[:SOURCES_SHOWN]
    ]
    listed = list(dict.fromkeys(one["uri"] for event in named for one in event.get("documents", ())))
    total = sum(event.get("documents_count", 0) for event in named)
    names = f"{counted(total, 'document')}, such as {', '.join(listed[:DOCUMENTS_SHOWN])}"
    return "; ".join([*shares, *([names] if listed else [])])
