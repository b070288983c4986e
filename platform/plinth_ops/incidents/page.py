"""The page of an incident: facts of a postmortem as tables, in HTML or Markdown; loads nothing, writes no prose."""

from __future__ import annotations

from plinth.records import Frozen
from plinth.report.page import template


class FactTable(Frozen):
    """Facts of one kind. `source` names the evidence; without rows the page says that there is none."""

    title: str
    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...] = ()


class IncidentData(Frozen):
    """Contents of the page. `gaps` name evidence that could not be read."""

    number: int
    title: str
    state: str
    tables: tuple[FactTable, ...]
    gaps: tuple[str, ...] = ()


def page(data: IncidentData) -> str:
    """The page as HTML. The same data gives the same bytes."""
    return template("page.html.j2", __package__).render(data=data)


def markdown(data: IncidentData) -> str:
    """The same as Markdown."""
    lines = [f"# Incident {data.number}: {_cell(data.title)}", "", data.state, ""]
    lines += [f"- Not read: {_cell(gap)}" for gap in data.gaps]
    for one in data.tables:
        lines += ["", f"## {one.title}", "", f"From {one.source}.", ""]
        if not one.rows:
            lines.append("None.")
            continue
        lines += [f"| {' | '.join(one.columns)} |", f"|{'---|' * len(one.columns)}"]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in one.rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Others' text: it ends no cell and no line, and is no markup."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark])
    return " ".join(text.split())
