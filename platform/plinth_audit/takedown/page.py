"""Takedown report as Markdown and as an HTML page, both rendered from the signed facts."""

from __future__ import annotations

import html as markup
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plinth.report.page import template
from plinth.text import counted, visible

#: State of an asset, as `plinth status` shows it.
UP_TO_DATE = "up to date"
_ENTRY = ("number", "kind", "value", "found", "texts", "by", "at", "reason")


class ReportTable(NamedTuple):
    """Section of the takedown report, with a title, a sentence and a table."""

    title: str
    text: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()


def markdown(facts: Mapping[str, Any]) -> str:
    """Render the takedown report as Markdown. The same facts give the same text."""
    lines = [f"# {_title(facts)}", "", _lead(facts), ""]
    for section in _sections(facts):
        lines += [f"## {section.title}", "", section.text, ""]
        if section.rows:
            lines += [_row(section.columns), "|---" * len(section.columns) + "|", *map(_row, section.rows), ""]
    return "\n".join(lines)


def html(facts: Mapping[str, Any]) -> str:
    """Render the takedown report as an HTML page without external resources. The same facts give the same page."""
    return template("page.html.j2", "plinth_audit.takedown").render(
        title=_title(facts), lead=_lead(facts), verdict=_removed(facts["documents"]), sections=[*_sections(facts)],
        shown=_shown,
    )  # fmt: skip


def _title(facts: Mapping[str, Any]) -> str:
    return f"Takedown report, {facts['at'][:10]}"


def _lead(facts: Mapping[str, Any]) -> str:
    root = facts["root"]
    demo = " This is a demo root, so the signature does not prove who signed." if root["demo"] else ""
    return f"Signed by the role compliance of root {root['name']}, version {root['version']}, at {facts['at']}.{demo}"


def _sections(facts: Mapping[str, Any]) -> Iterator[ReportTable]:
    yield ReportTable(
        "Removed documents",
        _removed(facts["documents"]),
        ("entry", "kind", "value", "documents found when added", "texts recognized", "by", "at", "reason"),
        [tuple(one[name] for name in _ENTRY) for one in facts["entries"]],
    )
    total, looked = sum(one["hits"] for one in facts["corpus"]), sum(one["documents"] for one in facts["corpus"])
    yield ReportTable(
        "Current corpus",
        f"Every exclusion rule, including rules for near duplicates, was checked against "
        f"{counted(looked, 'published document')}: {counted(total, 'hit')}.",
        ("bucket", "parts", "documents", "hits", "rejected by entry", "manifest"),
        [_bucket(one) for one in facts["corpus"]],
    )
    yield ReportTable(
        "Assets rebuilt without the text",
        _rebuilt(facts),
        ("asset", "manifest", "earlier manifests that contain the text"),
        [(one["asset"], one["digest"][:12], one["earlier"]) for one in facts["rebuilt"]],
    )
    yield ReportTable(
        "Remaining copies",
        "Removing text from a corpus does not remove it from models trained on it. The table lists all known "
        "copies.",
        ("what", "state", "where", "until"),
        [(one["what"], one["state"], one["where"], one["until"]) for one in facts["remains"]],
    )
    yield ReportTable(
        "Extraction and exposure by model",
        "The table shows extraction and exposure of the removed text for each checkpoint, with intervals."
        if facts["measured"]
        else "Not measured: no checkpoint was named, or the removed text is no longer in the store.",
        ("checkpoint", "run, step", "read text", "documents", "extracted", "held-out control", "exposure, bits", "p"),
        [model_cells(one) for one in facts["measured"]],
    )


def _removed(documents: Mapping[str, Any]) -> str:
    least = "" if documents["complete"] else "at least "
    return f"Removed documents, which are now only in saved earlier snapshots: {least}{documents['count']:,}."


def _rebuilt(facts: Mapping[str, Any]) -> str:
    """Return a sentence with the number of assets that read documents and are up to date, and with the names of the
    others."""
    assets = facts["downstream"]
    late = [f"{one['asset']} ({one['state']})" for one in assets if one["state"] != UP_TO_DATE]
    fresh = f"Assets that read documents and are up to date: {len(assets) - len(late):,} of {len(assets):,}."
    return f"{fresh} Not up to date: {', '.join(late)}." if late else fresh


def _bucket(one: Mapping[str, Any]) -> tuple[object, ...]:
    taken = ", ".join(f"{entry}: {count:,}" for entry, count in one["taken"].items()) or "none"
    return one["bucket"], one["parts"], one["documents"], one["hits"], taken, one["manifest"][:12]


def model_cells(one: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the table row of a measured checkpoint."""
    tried, known = one["extraction"] or {}, one["exposure"] or {}
    control = tried.get("control") or {}
    return (
        one["checkpoint"][:12],
        f"{one['run']}, {one['step']:,}",
        "yes" if one["read_it"] else "no",
        one["documents"],
        _share(tried.get("either"), tried.get("n")),
        _share(control.get("either"), control.get("n")),
        _interval(known.get("mean")),
        f"{known['p_value']:.2g}" if known else "-",
    )


def _share(share: Mapping[str, Any] | None, n: int | None) -> str:
    if not share:
        return "-"
    return f"{share['count']} of {n}, {share['low']:.1%} to {share['high']:.1%}"


def _interval(mean: Mapping[str, Any] | None) -> str:
    return f"{mean['value']:.2f}, {mean['low']:.2f} to {mean['high']:.2f}" if mean else "-"


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(value: object) -> str:
    """Escape external text for a Markdown table cell."""
    text = " ".join(_safe(value).split())
    for mark in "\\`*_[]|<>~":
        text = text.replace(mark, f"\\{mark}")
    return text


def _safe(value: object) -> str:
    return markup.escape(_shown(value))


def _shown(value: object) -> str:
    return visible(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
