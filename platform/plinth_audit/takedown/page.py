"""Takedown report as Markdown and as an HTML page, both rendered from the signed facts."""

from __future__ import annotations

import html as markup
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import plinth.report
from plinth.text import counted, visible

STYLE = Path(plinth.report.__file__).parent / "page_style.css.j2"
#: State of an asset, as `plinth status` shows it.
UP_TO_DATE = "up to date"
_ENTRY = ("number", "kind", "value", "found", "texts", "by", "at", "reason")


class ReportTable(NamedTuple):
    """Section with title, sentence and table."""

    title: str
    text: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()


def markdown(facts: Mapping[str, Any]) -> str:
    """Render the report as Markdown. The same facts give the same text."""
    lines = [f"# {_title(facts)}", "", _lead(facts), ""]
    for section in _sections(facts):
        lines += [f"## {section.title}", "", section.text, ""]
        if section.rows:
            lines += [_row(section.columns), "|---" * len(section.columns) + "|", *map(_row, section.rows), ""]
    return "\n".join(lines)


def html(facts: Mapping[str, Any]) -> str:
    """Render the report as a self-contained HTML page. The same facts give the same page."""
    cards = "".join(_card(section) for section in _sections(facts))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{_safe(_title(facts))}</title>'
        f"<style>{STYLE.read_text()}</style></head><body><main><header><h1>{_safe(_title(facts))}</h1>"
        f'<p class="lead">{_safe(_lead(facts))}</p></header><div class="column">{cards}</div></main></body></html>\n'
    )


def _title(facts: Mapping[str, Any]) -> str:
    return f"Takedown report, {facts['at'][:10]}"


def _lead(facts: Mapping[str, Any]) -> str:
    root = facts["root"]
    demo = " This is a demo root, which does not prove who signed." if root["demo"] else ""
    return f"Signed by the role compliance of root {root['name']}, version {root['version']}, at {facts['at']}.{demo}"


def _sections(facts: Mapping[str, Any]) -> Iterator[ReportTable]:
    yield ReportTable(
        "What was taken down",
        _removed(facts["documents"]),
        ("entry", "kind", "value", "documents found then", "texts recognized", "by", "at", "reason"),
        [tuple(one[name] for name in _ENTRY) for one in facts["entries"]],
    )
    total, looked = sum(one["hits"] for one in facts["corpus"]), sum(one["documents"] for one in facts["corpus"])
    yield ReportTable(
        "The corpus now",
        f"{counted(looked, 'published document')} checked against every rule, near duplicates included: "
        f"{counted(total, 'hit')}.",
        ("bucket", "parts", "documents", "hits", "rejected by entry", "manifest"),
        [_bucket(one) for one in facts["corpus"]],
    )
    yield ReportTable(
        "Rebuilt without it",
        _rebuilt(facts),
        ("asset", "manifest", "earlier manifests that held it"),
        [(one["asset"], one["digest"][:12], one["earlier"]) for one in facts["rebuilt"]],
    )
    yield ReportTable(
        "What still holds it",
        "Removing text from a corpus removes it from no model that read it. This is everything that is known:",
        ("what", "state", "where", "until"),
        [(one["what"], one["state"], one["where"], one["until"]) for one in facts["remains"]],
    )
    yield ReportTable(
        "What models give of it",
        "Extraction and exposure of the removed text, with intervals."
        if facts["measured"]
        else "Not measured: no checkpoint was named, or the removed text is no longer in the store.",
        ("checkpoint", "run, step", "read it", "documents", "extracted", "held-out control", "exposure, bits", "p"),
        [model_cells(one) for one in facts["measured"]],
    )


def _removed(documents: Mapping[str, Any]) -> str:
    least = "" if documents["complete"] else "At least "
    return f"{least}{counted(documents['count'], 'document')} of saved earlier snapshots removed."


def _rebuilt(facts: Mapping[str, Any]) -> str:
    """Return the state of assets that read documents, with the names of models that were not retrained."""
    assets = facts["downstream"]
    late = [f"{one['asset']} ({one['state']})" for one in assets if one["state"] != UP_TO_DATE]
    fresh = f"{len(assets) - len(late):,} of {counted(len(assets), 'asset')} that read documents up to date"
    return f"{fresh}; not: {', '.join(late)}." if late else f"{fresh}."


def _bucket(one: Mapping[str, Any]) -> tuple[object, ...]:
    taken = ", ".join(f"{entry}: {count:,}" for entry, count in one["taken"].items()) or "none"
    return one["bucket"], one["parts"], one["documents"], one["hits"], taken, one["manifest"][:12]


def model_cells(one: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the row of a measured checkpoint."""
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


def _card(section: ReportTable) -> str:
    table = ""
    if section.rows:
        head = "".join(f"<th>{_safe(name)}</th>" for name in section.columns)
        rows = "".join("<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in section.rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        table = f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{table}</div>'
    return f'<section class="card"><h2>{_safe(section.title)}</h2><p>{_safe(section.text)}</p>{table}</section>'


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(value: object) -> str:
    """Escape external text for a Markdown table cell."""
    text = " ".join(_safe(value).split())
    for mark in "\\`*_[]|<>~":
        text = text.replace(mark, f"\\{mark}")
    return text


def _safe(value: object) -> str:
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return markup.escape(visible(shown))
