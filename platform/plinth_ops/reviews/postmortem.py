"""Facts of a postmortem from recorded evidence (timeline, lost work, impact), and their page in HTML or Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.operation import settlement, spending
from plinth.records import Frozen
from plinth.report.page import template
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import Event, read_events
from plinth.trust.dsse import time_of
from plinth_registry import audit_log, consumers
from plinth_registry.incidents import Incident


class FactTable(Frozen):
    """Table of facts. `source` names the evidence. If there are no rows, the page shows "None"."""

    title: str
    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = ()


class IncidentData(Frozen):
    """Contents of the postmortem page. `gaps` lists evidence that could not be read."""

    number: int
    title: str
    state: str
    tables: tuple[FactTable, ...]
    gaps: tuple[str, ...] = ()


def page(data: IncidentData) -> str:
    """Render the postmortem as an HTML page. The same data gives the same bytes."""
    return template("postmortem.html.j2", __package__).render(data=data)


def markdown(data: IncidentData) -> str:
    """Render the postmortem as Markdown."""
    lines = [f"# Incident {data.number}: {_cell(data.title)}", "", data.state, ""]
    lines += [f"- A source could not be read: {_cell(gap)}" for gap in data.gaps]
    for one in data.tables:
        lines += ["", f"## {one.title}", "", f"Source: {one.source}.", ""]
        if not one.rows:
            lines.append("No entries were found.")
            continue
        lines += [f"| {' | '.join(one.columns)} |", f"|{'---|' * len(one.columns)}"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in one.rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Escape untrusted text for a Markdown table cell."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark])
    return " ".join(text.split())


#     collect(ctx, incident)    tables: timeline, lost work, impact, blocked promotions
#
# Times come from records and events. Every table has its source; evidence that cannot be read is listed as a gap.
# People write the lessons learned.

#: Seconds before the opening that the timeline includes, since an incident starts before it is reported.
BEFORE_S: Final = 24 * 3600.0
#: Events without information about an incident.
_ROUTINE = ("step", "checkpoint", "evaluated", "uploaded", "retired", "privacy", "averaged")
_OWN = ("seq", "time", "event")
_SHOWN = 300

Row = tuple[str, ...]
T = TypeVar("T")


def collect(ctx: Context, incident: Incident, now: float) -> IncidentData:
    """Collect all facts of an incident.

    Args:
        now: end of the timeline of an open incident, in Unix seconds.
    """
    gaps: list[str] = []
    begun = time_of(incident.opened).timestamp() - BEFORE_S
    ended = time_of(incident.closed).timestamp() if incident.closed else now
    runs = list(_read(gaps, _runs(ctx, incident)))
    decisions = list(_entries(ctx, gaps, begun, ended))
    course = [
        *((record.at, "incident", record.by, f"{record.action}: {record.text}") for record in incident.records),
        *((each.at, "decision", each.who, _decided(each)) for each in decisions),
        *_alerts(ctx, gaps, begun, ended),
        *(row for config in runs for row in _events(gaps, config, begun, ended)),
    ]
    refused = [each for each in decisions if each.outcome == "refused" and each.action == "promote"]
    return IncidentData(
        number=incident.number,
        title=incident.title,
        state=_state(incident, ended),
        gaps=tuple(gaps),
        tables=(
            FactTable(title="Timeline", source="incidents/, audit/, alerts.jsonl and the runs' events.jsonl",
                      columns=("at (UTC)", "evidence", "who", "what"), rows=tuple(sorted(course))),
            FactTable(title="Lost work", source="the goodput ledger of the runs", rows=tuple(_losses(ctx, gaps, runs)),
                      columns=("run", "cause", "rank-seconds", "money")),
            FactTable(title="Blocked promotions", source="audit/", columns=("at (UTC)", "who", "what", "why"),
                      rows=tuple((each.at, each.who, each.subject, each.refusal) for each in refused)),
            FactTable(title="Derived artifacts", source="the manifests that `plinth release impact` reads",
                      columns=("target", "kind", "what"), rows=tuple(_impact(ctx, gaps, incident))),
        ),
    )  # fmt: skip


def _state(incident: Incident, ended: float) -> str:
    minutes = (ended - time_of(incident.opened).timestamp()) / 60
    signer = ", ".join(incident.records[0].signed_by) or "a key that was revoked later"
    begun = f"Opened {incident.opened}, signed by {signer}."
    if incident.closed:
        return f"{begun} Closed {incident.closed}, after {minutes:,.0f} minutes."
    return f"{begun} The incident has been open for {minutes:,.0f} minutes; promotions are frozen."


def _runs(ctx: Context, incident: Incident) -> Iterator[tuple[str, Callable[[], RunConfig]]]:
    for name in incident.runs:
        path = ctx.workspace.runs / name / "config.json"
        yield f"run {name}", partial(configuration.load, path)


def _read(gaps: list[str], wanted: Iterable[tuple[str, Callable[[], T]]]) -> Iterator[T]:
    """Yield the results of the reads that succeed; add the name and error of each failed read to `gaps`."""
    for what, read in wanted:
        try:
            yield read()
        except (PlinthError, OSError) as error:
            gaps.append(f"{what}: {getattr(error, 'what', error)}")


def _entries(ctx: Context, gaps: list[str], begun: float, ended: float) -> Iterator[audit_log.AuditEntry]:
    for found in _read(gaps, [("audit/", lambda: audit_log.entries(ctx))]):
        yield from (each for each in found if begun <= time_of(each.at).timestamp() <= ended)


def _decided(each: audit_log.AuditEntry) -> str:
    why = "; ".join(part for part in (each.reason, each.refusal) if part)
    return f"{each.action} {each.outcome}: {each.subject}{f' ({why})' if why else ''}"


def _alerts(ctx: Context, gaps: list[str], begun: float, ended: float) -> Iterator[Row]:
    path = ctx.workspace.root / "alerts.jsonl"
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            found = json.loads(line)
            at = float(found["time"])
        except (ValueError, KeyError, TypeError):
            gaps.append(f"alerts.jsonl, line {number}")
            continue
        if begun <= at <= ended:
            yield _at(at), "alert", str(found.get("job", "")), str(found.get("message", ""))[:_SHOWN]


def _events(gaps: list[str], config: RunConfig, begun: float, ended: float) -> Iterator[Row]:
    for events in _read(gaps, [(f"timeline of {config.run_id}", lambda: list(read_events(config.directory.events)))]):
        for event in events:
            if begun <= float(event["time"]) <= ended and event["event"] not in _ROUTINE:
                yield _at(float(event["time"])), "event", config.run_id, f"{event['event']}{_fields(event)}"


def _fields(event: Event) -> str:
    words = json.dumps({name: value for name, value in event.items() if name not in _OWN}, ensure_ascii=False)
    return f" {words[:_SHOWN]}" if len(words) > 2 else ""


def _losses(ctx: Context, gaps: list[str], runs: Iterable[RunConfig]) -> Iterator[Row]:
    """Yield the lost rank-seconds and their cost, by run and cause. The causes goodput and queue are omitted."""
    prices = list(_read(gaps, [("budget/settings.yaml", lambda: spending.load(ctx.workspace))]))
    for config in runs:
        for ledger in _read(gaps, [(f"ledger of {config.run_id}", partial(settlement.run_goodput, config))]):
            price = prices[0].price(0.0) if prices else 0.0
            for cause, us in ledger.rank_us.items():
                if us and cause not in ("goodput", "queue"):  # a queue costs nothing
                    money = f"{us / 3.6e9 * price:,.4f}" if price else "no price configured"
                    yield config.run_id, cause, f"{us / 1e6:,.1f}", money


def _impact(ctx: Context, gaps: list[str], incident: Incident) -> Iterator[Row]:
    for target in incident.targets:
        for found in _read(gaps, [(target, partial(consumers.impact, ctx, target))]):
            yield from ((target, "manifest", f"{one.asset} {one.digest[:16]} ({one.state})") for one in found.manifests)
            yield from ((target, "run", one.run_id) for one in found.runs)
            yield from ((target, "version", f"{one.model}/{one.version} {' '.join(one.aliases)}".strip())
                        for one in found.versions)  # fmt: skip
            yield from ((target, "consumer", f"{one.name} of {one.owner}: {one.uses}") for one in found.consumers)
            gaps += found.gaps


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
